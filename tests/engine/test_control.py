"""Pause, resume, move, replay, update and delete, while workers run: at once, and so that it holds."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from milepost import (
    Busy,
    Context,
    DeclaredInCode,
    Message,
    Milepost,
    NewMessage,
    NotConfirmed,
    Park,
    Transaction,
    UnknownSubscription,
)
from milepost.events import Event, Paused, Resumed
from support import MakeMilepost, qualified

Seen = list[tuple[int, bool]]


def shop(mp: Milepost, seen: Seen, **options: Any) -> Milepost:
    """Notes the position of each message, and whether it is a replay."""

    @mp.subscription("orders", category="order", **{"lanes": 4, **options})
    async def handle(message: Message[Any], context: Context) -> None:
        seen.append((message.position, context.replay))

    return mp


async def append(mp: Milepost, count: int) -> None:
    for n in range(count):
        await mp.append(f"order-{n % 10}", NewMessage("placed"))


async def until(condition: Any) -> None:
    async with asyncio.timeout(40):
        while not condition():
            await asyncio.sleep(0.01)


async def at_rest(mp: Milepost) -> None:
    """Until everything is handled, and written."""
    async with asyncio.timeout(40):
        while (await mp.manage("orders").info()).lag.positions:
            await asyncio.sleep(0.01)


class TestPause:
    async def test_nothing_runs_when_it_returns_however_many_workers_there_are(
        self, mp: Milepost, make_mp: MakeMilepost
    ) -> None:
        seen: Seen = []
        async with AsyncExitStack() as workers:
            for _ in range(4):
                await workers.enter_async_context(shop(make_mp(), seen).running(grace=5))
            await append(mp, 50)
            await until(lambda: len(seen) == 50)
            await mp.manage("orders").pause()
            assert (await mp.manage("orders").info()).status == "paused"
            await append(mp, 50)
            assert len(seen) == 50
            await mp.manage("orders").resume()
            await until(lambda: len(seen) == 100)
        assert sorted(seen) == [(position, False) for position in range(1, 101)]

    async def test_paused_stays_paused_over_restarts(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        seen: Seen = []
        await shop(make_mp(), seen).run_until_idle()
        await mp.manage("orders").pause()
        await append(mp, 10)
        await shop(make_mp(), seen).run_until_idle()
        assert not seen
        await mp.manage("orders").resume()
        await shop(make_mp(), seen).run_until_idle()
        assert len(seen) == 10

    async def test_who_has_not_confirmed_is_said(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        begun, end = asyncio.Event(), asyncio.Event()
        slow = make_mp()

        @slow.subscription("orders", category="order", lanes=1)
        async def handle(message: Message[Any]) -> None:
            begun.set()
            await end.wait()

        async with slow.running(grace=5):
            await mp.append("order-1", [NewMessage("placed"), NewMessage("placed")])
            await begun.wait()
            with pytest.raises(NotConfirmed) as refused:
                await mp.manage("orders").pause(timeout=0.2)
            [owner] = (await mp.manage("orders").info()).owners
            assert refused.value.workers == (owner,)
            end.set()
            await mp.manage("orders").pause()
            assert (await mp.manage("orders").info()).lanes[0].position == 1

    async def test_listeners_are_told(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        told: list[Event] = []
        program = shop(make_mp(), [])

        @program.on_event
        def note(event: Paused | Resumed) -> None:
            told.append(event)

        async with program.running(grace=5):
            await append(mp, 1)
            await at_rest(mp)
            await mp.manage("orders").pause()
            await mp.manage("orders").resume()
            await until(lambda: len(told) == 2)
        assert told == [Paused("orders", "default"), Resumed("orders", "default")]

    async def test_one_that_is_not_there(self, mp: Milepost) -> None:
        with pytest.raises(UnknownSubscription):
            await mp.manage("nobody").pause()


class TestMove:
    async def test_back_and_everything_comes_again(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        seen: Seen = []
        async with shop(make_mp(), seen).running(grace=5):
            await append(mp, 30)
            await at_rest(mp)
            plan = await mp.manage("orders").plan_move("beginning")
            assert (plan.position, plan.again, plan.passed_over, plan.rows) == (0, 30, 0, {})
            seen.clear()
            await mp.manage("orders").move("beginning")
            await until(lambda: len(seen) == 30)
        assert sorted(seen) == [(position, False) for position in range(1, 31)]

    async def test_forward_and_what_is_between_is_never_handled(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        seen: Seen = []
        await shop(make_mp(), seen).run_until_idle()
        await append(mp, 30)
        plan = await mp.manage("orders").plan_move(20)
        assert (plan.again, plan.passed_over) == (0, 20)
        await mp.manage("orders").move(20)
        await shop(make_mp(), seen).run_until_idle()
        assert sorted(position for position, _ in seen) == list(range(21, 31))

    async def test_to_now_and_to_a_time(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        seen: Seen = []
        await append(mp, 10)
        between = datetime.now(UTC)
        await append(mp, 10)
        async with shop(make_mp(), seen).running(grace=5):
            await until(lambda: len(seen) == 20)
            seen.clear()
            await mp.manage("orders").move(between)
            await until(lambda: len(seen) == 10)
            await mp.manage("orders").move("now")
            await append(mp, 1)
            await until(lambda: len(seen) == 11)
        assert sorted(position for position, _ in seen) == list(range(11, 22))

    async def test_rows_above_go_and_rows_below_stay(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        parks = make_mp()

        @parks.subscription("orders", category="order", on_park="continue", lanes=2)
        async def handle(message: Message[Any]) -> None:
            raise Park("no")

        async with parks:
            await append(mp, 10)
            await parks.run_until_idle()
            assert (await mp.manage("orders").plan_move(4)).rows == {"parked": 6}
            assert await mp.manage("orders").move(4) == 6
            assert (await mp.manage("orders").info()).parked == 4
            await parks.run_until_idle()
            assert (await mp.manage("orders").info()).parked == 10

    async def test_two_at_once(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        begun, end = asyncio.Event(), asyncio.Event()
        slow = make_mp()

        @slow.subscription("orders", category="order", lanes=1)
        async def handle(message: Message[Any]) -> None:
            begun.set()
            await end.wait()

        async with slow.running(grace=5):
            await append(mp, 1)
            await begun.wait()
            moving = asyncio.create_task(mp.manage("orders").move("now"))
            info = mp.manage("orders").info
            async with asyncio.timeout(20):
                while (await info()).barrier is None:
                    await asyncio.sleep(0.01)
            with pytest.raises(Busy, match="is being moved"):
                await mp.manage("orders").replay("beginning")
            end.set()
            await moving
            assert (await info()).barrier is None

    @pytest.mark.parametrize("to", ["yesterday", -1, 1.5, None, datetime(2026, 1, 1)])  # noqa: DTZ001
    async def test_to_nowhere(self, mp: Milepost, make_mp: MakeMilepost, to: Any) -> None:
        await shop(make_mp(), []).run_until_idle()
        with pytest.raises(ValueError, match="to: "):
            await mp.manage("orders").move(to)
        assert (await mp.manage("orders").info()).barrier is None

    async def test_who_asked_for_it_and_vanished_holds_up_nobody_for_long(
        self, mp: Milepost, make_mp: MakeMilepost
    ) -> None:
        seen: Seen = []
        async with shop(make_mp(), seen).running(grace=5):
            await append(mp, 1)
            await until(lambda: len(seen) == 1)
            barrier = "select {0}.set_barrier(s.id, 'gone', null, '1 second') from {0}.subscriptions s"
            await mp.log.database.execute(qualified(barrier, mp), {})
            await append(mp, 1)
            await until(lambda: len(seen) == 2)


class TestReplay:
    async def test_what_was_handled_is_marked_and_what_is_new_is_not(
        self, mp: Milepost, make_mp: MakeMilepost
    ) -> None:
        seen: Seen = []
        async with shop(make_mp(), seen).running(grace=5):
            await append(mp, 40)
            await at_rest(mp)
            seen.clear()
            appending = asyncio.create_task(append(mp, 40))
            assert (await mp.manage("orders").plan_replay(10, 30)).again == 20
            assert await mp.manage("orders").replay(10, 30) == 20
            await appending
            await until(lambda: len(seen) == 60)
            assert (await mp.manage("orders").info()).replaying == 0
        again = [(position, True) for position in range(11, 31)]
        new = [(position, False) for position in range(41, 81)]
        assert sorted(seen) == again + new

    async def test_without_an_end_all_that_was_handled(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        seen: Seen = []
        program = shop(make_mp(), seen)
        async with program:
            await append(mp, 20)
            await program.run_until_idle()
            await append(mp, 20)
            await mp.manage("orders").replay("beginning")
            assert (await mp.manage("orders").info()).replaying >= 20
            seen.clear()
            await program.run_until_idle()
        assert sorted(seen) == [(position, position <= 20) for position in range(1, 41)]

    async def test_again_while_one_is_under_way(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        seen: Seen = []
        program = shop(make_mp(), seen)
        async with program:
            await append(mp, 20)
            await program.run_until_idle()
            await mp.manage("orders").replay("beginning", 15)
            await mp.manage("orders").replay(5)
            seen.clear()
            await program.run_until_idle()
        # The second goes on where the first was to: nothing that was handled before is taken for new.
        assert {position for position, replay in seen if not replay} == set()
        assert {position for position, _ in seen} >= set(range(6, 21))

    async def test_what_had_not_been_handled_is_not_marked(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        seen: Seen = []
        fails = True
        program = make_mp()

        @program.subscription("orders", category="order", on_park="continue", lanes=2)
        async def handle(message: Message[Any], context: Context) -> None:
            if fails and message.position == 5:
                raise Park("no")
            seen.append((message.position, context.replay))

        async with program:
            await append(mp, 10)
            await program.run_until_idle()
            assert (await mp.manage("orders").plan_replay("beginning")).rows == {"parked": 1}
            await mp.manage("orders").replay("beginning")
            fails = False
            seen.clear()
            await program.run_until_idle()
        assert sorted(seen) == [(position, position != 5) for position in range(1, 11)]
        assert (await mp.manage("orders").info()).parked == 0

    async def test_batches_are_one_or_the_other(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        seen: list[tuple[list[int], bool]] = []
        program = make_mp()

        @program.subscription("orders", category="order", ordered_by=None, lanes=1)
        async def handle(messages: list[Message[Any]], context: Context) -> None:
            seen.append(([message.position for message in messages], context.replay))

        async with program:
            await append(mp, 10)
            await program.run_until_idle()
            await append(mp, 10)
            await mp.manage("orders").replay(5)
            seen.clear()
            await program.run_until_idle()
        flat = sorted((position, replay) for positions, replay in seen for position in positions)
        assert flat == [(position, position <= 10) for position in range(6, 21)]

    async def test_exactly_once_it_says_so_too(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        seen: Seen = []
        program = make_mp()

        @program.subscription("orders", category="order", lanes=2)
        async def handle(message: Message[Any], context: Context, tx: Transaction) -> None:
            seen.append((message.position, context.replay))

        async with program:
            await append(mp, 10)
            await program.run_until_idle()
            await append(mp, 5)
            await mp.manage("orders").replay("beginning")
            seen.clear()
            await program.run_until_idle()
        assert sorted(seen) == [(position, position <= 10) for position in range(1, 16)]

    async def test_of_nothing(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        await shop(make_mp(), []).run_until_idle()
        with pytest.raises(ValueError, match="nothing in it"):
            await mp.manage("orders").replay(20, 10)


class TestPassedOver:
    """What a move passes over is known exactly afterwards."""

    @staticmethod
    async def states(mp: Milepost) -> dict[int, str]:
        traced = [one for n in range(10) for one in await mp.trace(f"order-{n}")]
        return {one.message.position: one.state for one in traced}

    async def test_what_was_settled_ahead_was_not_passed_over(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        seen: list[int] = []
        program, begun, end = make_mp(), asyncio.Event(), asyncio.Event()

        @program.subscription("orders", category="order", lanes=1)
        async def handle(message: Message[Any]) -> None:
            if message.position == 2:
                begun.set()
                await end.wait()
            seen.append(message.position)

        async with program.running(grace=0.1):
            await append(mp, 5)
            await until(lambda: len(seen) == 4)
        await append(mp, 3)
        assert await mp.manage("orders").move("now") == 0
        states = await self.states(mp)
        assert {position for position, state in states.items() if state == "done"} == set(seen)

    async def test_a_replay_leaves_alone_what_is_beyond_it(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        seen: Seen = []
        program = shop(make_mp(), seen, lanes=1)
        async with program:
            await program.run_until_idle()
            await append(mp, 10)
            await mp.manage("orders").move(8)
            await program.run_until_idle()
            before = await self.states(mp)
            await mp.manage("orders").replay(2, 4)
            await program.run_until_idle()
            after = await self.states(mp)
        assert {position for position, state in before.items() if state != "done"} == set(range(1, 9))
        assert {position for position, state in after.items() if state != "done"} == {1, 2, 5, 6, 7, 8}
        # What had never been handled is not marked.
        assert sorted(seen) == [(3, False), (4, False), (9, False), (10, False)]


class TestUpdateAndDelete:
    async def test_what_is_declared_in_code_is_changed_there(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        await shop(make_mp(), []).run_until_idle()
        with pytest.raises(DeclaredInCode, match="where"):
            await mp.manage("orders").update(where="a > 1")
        with pytest.raises(ValueError, match="concurrency"):
            await mp.manage("orders").update(concurrency=0)

    async def test_a_limit_holds_at_once_and_after_a_restart(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        running, most = 0, 0

        def program() -> Milepost:
            made = make_mp(concurrency=8)

            @made.subscription("orders", category="order", ordered_by=None, lanes=2)
            async def handle(message: Message[Any]) -> None:
                nonlocal running, most
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.005)
                running -= 1

            return made

        async with program().running(grace=5):
            await append(mp, 60)
            await until(lambda: most > 2)
        await mp.manage("orders").update(concurrency=2)
        most = 0
        await append(mp, 60)
        await program().run_until_idle()
        assert most == 2
        await mp.manage("orders").update(concurrency=None)
        await append(mp, 60)
        await program().run_until_idle()
        assert most > 2

    async def test_deleted_it_is_gone_and_its_program_makes_it_anew(
        self, mp: Milepost, make_mp: MakeMilepost
    ) -> None:
        seen: Seen = []
        async with shop(make_mp(), seen).running(grace=5):
            await append(mp, 10)
            await until(lambda: len(seen) == 10)
            await mp.manage("orders").delete()
            assert await mp.subscriptions() == []
            await append(mp, 10)
        assert len(seen) == 10
        for table in ("cursors", "deliveries", "definitions", "lanes", "counts"):
            rows = await mp.log.database.execute(qualified(f"select count(*) from {{}}.{table}", mp), {})
            assert rows == [(0,)], table
        await shop(make_mp(), seen).run_until_idle()
        assert len(seen) == 30
