"""Pause, resume, move, replay, update and delete, while workers run: at once, and so that it holds."""

import _thread
import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from milepost import (
    Busy,
    Context,
    DeclaredInCode,
    InvalidMessage,
    Message,
    Milepost,
    NewMessage,
    NotConfirmed,
    Park,
    Retry,
    Transaction,
    Unavailable,
    UnknownSubscription,
    by_function,
    by_property,
)
from milepost.engine.observe.events import Event, Paused, Resumed
from milepost.progress.postgres.operate import PostgresControl
from patience import looked_at, within
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
    async with within(40, lambda: looked_at(condition)):
        while not condition():
            await asyncio.sleep(0.01)


async def at_rest(mp: Milepost) -> None:
    """Until everything is handled, and written."""
    async with within(40, mp.manage("orders").info):
        while (await mp.manage("orders").info()).lag.positions:
            await asyncio.sleep(0.01)


async def until_lanes(mp: Milepost, count: int) -> None:
    """Until as many lanes are in force."""
    async with within(40, mp.manage("orders").info):
        while len((await mp.manage("orders").info()).lanes) != count:
            await asyncio.sleep(0.02)


class Stuck:
    """A program whose handler has begun with the first message, and goes on when it is told so."""

    def __init__(self, mp: Milepost, **options: Any) -> None:
        self.mp = mp
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.seen: list[int] = []

        @mp.subscription("orders", category="order", **{"lanes": 1, **options})
        async def handle(message: Message[Any]) -> None:
            if message.position == 1:
                self.begun.set()
                await self.go_on.wait()
            self.seen.append(message.position)

    @asynccontextmanager
    async def running(self, mp: Milepost) -> AsyncIterator[None]:
        """It runs, and has one message of another key done."""
        async with self.mp.running(grace=5):
            await mp.append("order-1", NewMessage("placed"))
            await self.begun.wait()
            await mp.append("order-2", NewMessage("placed"))
            await until(lambda: self.seen == [2])
            try:
                yield
            finally:
                self.go_on.set()


class TestWhatFails:
    """A command that is not confirmed does nothing: all workers go on."""

    @pytest.mark.shard("variants", fast=["1-move", "8-delete"])
    @pytest.mark.parametrize("command", ["move", "replay", "delete"])
    @pytest.mark.parametrize("lanes", [1, 8])
    async def test_others_are_handled_at_once(
        self, mp: Milepost, make_mp: MakeMilepost, command: str, lanes: int
    ) -> None:
        stuck = Stuck(make_mp(), lanes=lanes)
        async with stuck.running(mp):
            words = () if command == "delete" else ("beginning",)
            with pytest.raises(NotConfirmed, match="nothing was done"):
                await getattr(mp.manage("orders"), command)(*words, timeout=0.1)
            for n in range(2, 8):
                await mp.append(f"order-{n}", NewMessage("placed"))
            await until(lambda: sorted(stuck.seen) == list(range(2, 9)))
            stuck.go_on.set()
            await until(lambda: len(stuck.seen) == 8)
        assert (await mp.manage("orders").info()).lag.positions == 0

    @pytest.mark.parametrize(
        "error", [Unavailable("cut"), asyncio.CancelledError()], ids=lambda error: type(error).__name__
    )
    async def test_a_barrier_that_stands_and_nobody_was_told_is_lifted(
        self, mp: Milepost, make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch, error: BaseException
    ) -> None:
        set_barrier = PostgresControl.set_barrier

        async def lose_answer(control: PostgresControl, subscription: int, barrier: str) -> str:
            await set_barrier(control, subscription, barrier)
            raise error

        await shop(make_mp(), []).run_until_idle()
        monkeypatch.setattr(PostgresControl, "set_barrier", lose_answer)
        with pytest.raises(type(error)):
            await mp.manage("orders").move("beginning")
        barriers = await mp.log.database.execute(qualified("select barrier from {}.subscriptions", mp), {})
        assert barriers == [(None,)]

    def test_all_go_on_when_a_blocking_call_is_interrupted(self, make_mp: MakeMilepost) -> None:
        worker = make_mp()
        begun, go_on = threading.Event(), threading.Event()

        @worker.subscription("orders", category="order", lanes=1)
        def handle(message: Message[Any]) -> None:
            begun.set()
            go_on.wait()

        def stands() -> bool:
            return worker.sync.manage("orders").info().barrier is not None

        def interrupt() -> None:
            while not stands():
                go_on.wait(0.01)
            _thread.interrupt_main()

        with worker.sync as sync, sync.running(grace=5):
            sync.append("order-1", NewMessage("placed"))
            begun.wait()
            interrupting = threading.Thread(target=interrupt)
            with pytest.raises(KeyboardInterrupt), make_mp().sync as other:
                interrupting.start()
                other.manage("orders").move("beginning")
            is_lifted = not stands()
            go_on.set()
        assert is_lifted


class TestWhatTakesLong:
    """While a command waits for a handler that takes long, all others go on, in all processes."""

    @pytest.mark.shard("variants", fast=["replay"])
    @pytest.mark.parametrize("command", ["move", "replay", "delete"])
    async def test_others_are_handled_meanwhile(
        self, mp: Milepost, make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.setattr("milepost.engine.operate.control.STANDSTILL_SECONDS", 0.05)
        stuck, other = Stuck(make_mp(), lanes=4), Stuck(make_mp(), lanes=4)
        async with stuck.running(mp), other.mp.running(grace=5):
            words = () if command == "delete" else ("beginning",)
            acting = asyncio.create_task(getattr(mp.manage("orders"), command)(*words))
            for turn in range(1, 4):
                await append(mp, 8)
                await until(lambda turn=turn: len(stuck.seen) + len(other.seen) >= 1 + 7 * turn)
                assert not acting.done()
            stuck.go_on.set()
            other.go_on.set()
            await acting


class Hung:
    """A program whose handler hangs with the first message, in one of several ways."""

    def __init__(self, mp: Milepost, kind: str) -> None:
        self.mp = mp
        self.seen: list[tuple[int, int]] = []
        self.cancelled = False
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.hangs = True

        def begin(message: Message[Any], context: Context) -> bool:
            self.seen.append((message.position, context.attempt))
            if message.position != 1 or not self.hangs:
                return False
            self.begun.set()
            return True

        async def hang() -> None:
            try:
                while not self.go_on.is_set():
                    await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                self.cancelled = True
                if kind == "deaf":
                    await hang()
                raise

        async def in_a_coroutine(message: Message[Any], context: Context) -> None:
            if begin(message, context):
                await hang()

        def in_a_thread(message: Message[Any], context: Context) -> None:
            if begin(message, context):
                self.go_on.wait()

        async def together(messages: list[Message[Any]], context: Context) -> None:
            if sum(begin(message, context) for message in messages):
                await hang()

        def together_in_a_thread(messages: list[Message[Any]], context: Context) -> None:
            if sum(begin(message, context) for message in messages):
                self.go_on.wait()

        async def in_a_transaction(message: Message[Any], context: Context, tx: Transaction) -> None:
            if begin(message, context):
                await tx.execute("select 1")
                await hang()

        handlers: dict[str, Any] = {
            "coroutine": in_a_coroutine,
            "deaf": in_a_coroutine,
            "thread": in_a_thread,
            "batch": together,
            "batch in a thread": together_in_a_thread,
            "transaction": in_a_transaction,
        }
        mp.subscription("orders", category="order", lanes=4, retry=Retry.never)(handlers[kind])


HUNG = ("coroutine", "deaf", "thread", "batch", "batch in a thread", "transaction")


class TestForce:
    """What hangs is taken back, which is no attempt; what still comes of it counts for nothing."""

    @pytest.mark.shard("variants", fast=["thread", "transaction"])
    @pytest.mark.parametrize("kind", HUNG)
    async def test_a_pause(self, mp: Milepost, make_mp: MakeMilepost, kind: str) -> None:
        hung = Hung(make_mp(), kind)
        async with hung.mp.running(grace=5):
            try:
                await mp.append("order-1", NewMessage("placed"))
                await until(hung.begun.is_set)
                await mp.append("order-2", NewMessage("placed"))
                await until(lambda: (2, 1) in hung.seen)
                await mp.manage("orders").pause(force=True)
                assert (await mp.manage("orders").info()).owners == ()
                assert hung.cancelled == (kind not in ("thread", "batch in a thread"))
                hung.hangs = False
                await mp.append("order-1", NewMessage("placed"))
                await mp.manage("orders").resume()
                await at_rest(mp)
            finally:
                hung.go_on.set()
        assert sorted(hung.seen) == [(1, 1), (1, 1), (2, 1), (3, 1)]
        assert (await mp.manage("orders").info()).parked == 0

    async def test_what_a_failed_command_forced_no_other_forces(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        hung = Hung(make_mp(), "coroutine")
        async with hung.mp.running(grace=5):
            await mp.append("order-1", NewMessage("placed"))
            await until(hung.begun.is_set)
            # It gives up before any worker has looked.
            forced = (
                "select {0}.set_barrier(s.id, 'gone', null, '1 minute'), {0}.take_back(s.id),"
                " {0}.lift_barrier(s.id, 'gone') from {0}.subscriptions s"
            )
            await mp.log.database.execute(qualified(forced, mp), {})
            pausing = asyncio.create_task(mp.manage("orders").pause())
            # By then the worker has done with the lane of the message what it does with it.
            async with within(40, mp.manage("orders").info):
                while sum(lane.owner is not None for lane in (await mp.manage("orders").info()).lanes) != 1:
                    await asyncio.sleep(0.01)
            hung.go_on.set()
            await pausing
        assert not hung.cancelled

    @pytest.mark.parametrize("kind", ["coroutine", "thread"])
    async def test_a_move(self, mp: Milepost, make_mp: MakeMilepost, kind: str) -> None:
        hung = Hung(make_mp(), kind)
        async with hung.mp.running(grace=5):
            try:
                await mp.append("order-1", NewMessage("placed"))
                await until(hung.begun.is_set)
                await mp.manage("orders").move("now", force=True)
                await mp.append("order-1", NewMessage("placed"))
                await at_rest(mp)
                assert hung.seen == [(1, 1), (2, 1)]
            finally:
                hung.go_on.set()
        assert (await mp.manage("orders").info()).lag.positions == 0


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
            assert f"it is paused; not confirmed by {owner}" in str(refused.value)
            with pytest.raises(NotConfirmed, match="nothing was done; not confirmed by"):
                await mp.manage("orders").move("beginning", timeout=0.2)
            end.set()
            await mp.manage("orders").pause()
            assert (await mp.manage("orders").info()).lanes[0].position == 1

    async def test_all_go_on_at_once_when_it_is_resumed(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        stuck = Stuck(make_mp())
        async with stuck.running(mp):
            with pytest.raises(NotConfirmed):
                await mp.manage("orders").pause(timeout=0.1)
            await mp.append("order-2", NewMessage("placed"))
            await mp.manage("orders").resume()
            await until(lambda: stuck.seen == [2, 3])

    async def test_who_waits_is_told_that_it_was_resumed(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        stuck = Stuck(make_mp())
        async with stuck.running(mp):
            pausing = asyncio.create_task(mp.manage("orders").pause())
            async with within(40, mp.manage("orders").info):
                while (await mp.manage("orders").info()).status != "paused":
                    await asyncio.sleep(0.01)
            await mp.manage("orders").resume()
            with pytest.raises(Busy, match="it was resumed meanwhile"):
                await pausing

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
            async with asyncio.timeout(40):
                while (await info()).barrier is None:
                    await asyncio.sleep(0.01)
            with pytest.raises(Busy, match="is being moved"):
                await mp.manage("orders").replay("beginning")
            end.set()
            await moving
            assert (await info()).barrier is None

    @pytest.mark.shard("variants", fast=["yesterday", "-1"])
    @pytest.mark.parametrize("to", ["yesterday", -1, 1.5, None, datetime(2026, 1, 1)])  # noqa: DTZ001
    async def test_to_nowhere(self, mp: Milepost, make_mp: MakeMilepost, to: Any) -> None:
        await shop(make_mp(), []).run_until_idle()
        with pytest.raises(ValueError, match="to: "):
            await mp.manage("orders").move(to)
        assert (await mp.manage("orders").info()).barrier is None

    async def test_beyond_the_end_of_the_log(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        """What is appended until then would be missed."""
        await shop(make_mp(), []).run_until_idle()
        await append(mp, 3)
        orders = mp.manage("orders")
        for action in (orders.move(4), orders.plan_move(4), orders.replay(4), orders.plan_replay(4)):
            with pytest.raises(InvalidMessage, match="the log ends at position 3, before 4"):
                await action
        await orders.move(3)

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
            await at_rest(mp)
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

    async def test_what_waits_beyond_a_replay_stays_behind_what_it_waits_for(self, mp: Milepost) -> None:
        seen: Seen = []
        fails = True

        @mp.subscription("orders", category="order", lanes=1)
        async def handle(message: Message[Any], context: Context) -> None:
            if message.position == 1 and fails:
                raise Park("not yet")
            seen.append((message.position, context.replay))

        await mp.append_many({f"order-{n}": NewMessage("placed") for n in range(1, 6)})
        await mp.append("order-1", [NewMessage("paid"), NewMessage("sent")])
        await mp.run_until_idle()
        orders = mp.manage("orders")
        assert [each.state async for each in orders.deliveries()] == ["parked", "waiting", "waiting"]
        assert (await orders.plan_replay("beginning", 3)).rows == {"parked": 1, "waiting": 2}
        seen.clear()
        await orders.replay("beginning", 3)
        await mp.run_until_idle()
        # It fails again, and what is behind it waits again.
        assert sorted(seen) == [(2, True), (3, True)]
        assert [each.state async for each in orders.deliveries()] == ["parked", "waiting", "waiting"]
        seen.clear()
        fails = False
        await orders.replay("beginning", 3)
        await mp.run_until_idle()
        assert [each for each in seen if each[0] in (1, 6, 7)] == [(1, False), (6, False), (7, False)]
        assert sorted(each for each in seen if each[0] not in (1, 6, 7)) == [(2, True), (3, True)]
        assert [each async for each in orders.deliveries()] == []

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

    @pytest.mark.shard("variants", fast=["10"])
    @pytest.mark.parametrize("start", ["now", 10, None])
    async def test_what_was_before_its_start_was_not_handled_and_does_not_come(
        self, mp: Milepost, make_mp: MakeMilepost, start: Any
    ) -> None:
        seen: Seen = []
        await append(mp, 10)
        [[now]] = await mp.log.database.execute(qualified("select {}.clock()", mp), {})
        async with shop(make_mp(), seen, start=start or now) as program:
            await program.create_declared()
            await append(mp, 10)
            await program.run_until_idle()
            orders = mp.manage("orders")
            assert (await orders.plan_replay("beginning")).again == 10
            assert await orders.replay("beginning") == 10
            await program.run_until_idle()
            assert sorted(seen[10:]) == [(position, True) for position in range(11, 21)]
            # What a move brings is handled from then on.
            seen.clear()
            await orders.move(5)
            await program.run_until_idle()
            await orders.replay("beginning")
            await program.run_until_idle()
        assert sorted(seen[15:]) == [(position, True) for position in range(6, 21)]

    async def test_what_was_visible_above_the_horizon_when_it_began_was_not_handled_either(
        self, mp: Milepost, make_mp: MakeMilepost, database_url: str
    ) -> None:
        seen: Seen = []
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            await mp.append("order-9", NewMessage("late"), connection=connection)
            await append(mp, 2)
            program = shop(make_mp(), seen, start="now")
            async with program:
                await program.create_declared()
                await connection.commit()
                await append(mp, 1)
                await program.run_until_idle()
                assert sorted(seen) == [(1, False), (4, False)]
                await mp.manage("orders").replay("beginning")
                await program.run_until_idle()
        assert sorted(seen[2:]) == [(1, True), (4, True)]

    async def test_before_the_time_that_it_was_moved_to(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        seen: Seen = []
        async with shop(make_mp(), seen) as program:
            await append(mp, 10)
            await program.run_until_idle()
            [[between]] = await mp.log.database.execute(qualified("select {}.clock()", mp), {})
            await append(mp, 10)
            await mp.manage("orders").move(between)
            await program.run_until_idle()
            seen.clear()
            assert await mp.manage("orders").replay("beginning") == 20
            await program.run_until_idle()
        assert sorted(seen) == [(position, True) for position in range(1, 21)]

    async def test_what_a_filter_of_before_did_not_select_had_not_been_handled(
        self, mp: Milepost, make_mp: MakeMilepost
    ) -> None:
        seen: Seen = []
        async with shop(make_mp(), seen, where="amount >= 5") as program:
            for amount in range(10):
                await mp.append(f"order-{amount}", NewMessage("placed", properties={"amount": amount}))
            await program.run_until_idle()
        async with shop(make_mp(), seen, where="amount >= 2") as program:
            seen.clear()
            await mp.manage("orders").replay("beginning")
            await program.run_until_idle()
            assert sorted(seen) == [(amount + 1, amount >= 5) for amount in range(2, 10)]
            # By now it had.
            seen.clear()
            await mp.manage("orders").replay("beginning")
            await program.run_until_idle()
        assert sorted(seen) == [(amount + 1, True) for amount in range(2, 10)]

    async def test_again_before_it_came_to_its_end_and_with_another_filter(
        self, mp: Milepost, make_mp: MakeMilepost
    ) -> None:
        seen: Seen = []
        async with shop(make_mp(), seen, where="amount < 5") as program:
            for amount in range(10):
                await mp.append(f"order-{amount}", NewMessage("placed", properties={"amount": amount}))
            await program.run_until_idle()
            await mp.manage("orders").replay("beginning")
        async with shop(make_mp(), seen) as program:
            await mp.manage("orders").replay("beginning")
            seen.clear()
            await program.run_until_idle()
        assert sorted(seen) == [(amount + 1, amount < 5) for amount in range(10)]

    async def test_what_it_brought_and_parked_is_marked_whenever_it_is_tried_again(
        self, mp: Milepost, make_mp: MakeMilepost
    ) -> None:
        seen: Seen = []
        fails = False

        def program(lanes: int) -> Milepost:
            made = make_mp()

            @made.subscription("orders", category="order", on_park="continue", lanes=lanes)
            async def handle(message: Message[Any], context: Context) -> None:
                seen.append((message.position, context.replay))
                if fails and message.position in (3, 4, 12):
                    raise Park("no")

            return made

        orders = mp.manage("orders")
        async with program(2) as first:
            await append(mp, 10)
            await first.run_until_idle()
            await orders.replay("beginning")
            fails = True
            await append(mp, 10)
            await first.run_until_idle(errors="park")
            fails = False
            await orders.move(20)
        seen.clear()
        async with program(2) as second:
            await orders.retry([3])
            await second.run_until_idle()
        async with program(3) as third, third.running(grace=5):
            await until_lanes(mp, 3)
            await orders.retry([4, 12])
            await until(lambda: len(seen) == 3)
        assert sorted(seen) == [(3, True), (4, True), (12, False)]

    async def test_of_nothing(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        await shop(make_mp(), []).run_until_idle()
        await append(mp, 20)
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

    async def test_other_lanes_since(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        seen: Seen = []
        async with shop(make_mp(), seen, lanes=4) as program:
            await append(mp, 10)
            await program.run_until_idle()
            await append(mp, 10)
            await mp.manage("orders").move("now")
            await append(mp, 10)
            await program.run_until_idle()
        for lanes, known in ((2, range(11, 21)), (4, range(0))):
            async with shop(make_mp(), seen, lanes=lanes) as program, program.running(grace=5):
                await until_lanes(mp, lanes)
                assert await self.states(mp) == {at: "skipped" if at in known else "done" for at in range(1, 31)}
                seen.clear()
                await mp.manage("orders").replay("beginning")
                await until(lambda: len(seen) == 30)
                assert sorted(seen) == [(position, position not in known) for position in range(1, 31)]
                await at_rest(mp)
            assert set((await self.states(mp)).values()) == {"done"}

    async def test_lanes_that_stood_apart_and_are_others_since(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        """What one lane had handled lies among what another was moved past; then order and lanes are others."""
        seen: Seen = []
        handled = await self.apart(mp, make_mp(), lanes=2)
        changes: list[dict[str, Any]] = [{"lanes": 3}, {"lanes": 2, "ordered_by": by_property("shop")}]
        for options in changes:
            async with shop(make_mp(), seen, **options) as program, program.running(grace=5):
                await until_lanes(mp, options["lanes"])
                seen.clear()
                # Not to its end: what is beyond is still to be told apart after the next change.
                await mp.manage("orders").replay("beginning", 20)
                await until(lambda: len(seen) == 20)
                await at_rest(mp)
            assert sorted(seen) == [(position, position in handled) for position in range(1, 21)]
            handled |= set(range(1, 21))
        async with shop(make_mp(), seen, lanes=2, ordered_by=by_property("shop")) as program:
            seen.clear()
            await mp.manage("orders").replay("beginning")
            await program.run_until_idle()
        assert sorted(seen) == [(position, position in handled) for position in range(1, 41)]

    @pytest.mark.shard("variants", fast=["2"])
    @pytest.mark.parametrize("version", [1, 2])
    async def test_by_a_function_that_only_its_program_knows(
        self, mp: Milepost, make_mp: MakeMilepost, version: int
    ) -> None:
        """With the function it is known which messages had been handled; without, what is not known is new."""
        seen: Seen = []
        by = by_function(lambda message: message.stream)
        handled = await self.apart(mp, make_mp(), lanes=2, ordered_by=by)
        now = by_function(lambda message: message.stream, version=version)
        async with shop(make_mp(), seen, lanes=3, ordered_by=now) as program, program.running(grace=5):
            await until_lanes(mp, 3)
            await mp.manage("orders").replay("beginning")
            await until(lambda: len(seen) == 40)
        marked = {position for position, replay in seen if replay}
        assert marked == handled if version == 1 else marked < handled
        assert {position for position, _ in seen} == set(range(1, 41))

    @staticmethod
    async def apart(mp: Milepost, program: Milepost, **options: Any) -> set[int]:
        """Moves past messages while lanes stand apart, for one handler does not end; what was handled."""
        seen: set[int] = set()
        never = asyncio.Event()

        @program.subscription("orders", category="order", window=2, timeout=3600, **options)
        async def handle(message: Message[Any]) -> None:
            if message.stream == "order-1":
                await never.wait()
            seen.add(message.position)

        async with program.running(grace=0.1):
            for n in range(40):
                await mp.append(f"order-{n % 10}", NewMessage("placed", properties={"shop": n % 3}))
            await until(lambda: max(seen, default=0) >= 38)
        # Else they would be as far as each other by chance.
        assert set(range(1, 41)) - seen > {2, 12, 22, 32}
        await mp.manage("orders").move("now")
        return seen

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
        with pytest.raises(DeclaredInCode, match="where is declared by its program.* concurrency can be limited$"):
            await mp.manage("orders").update(where="a > 1")
        with pytest.raises(DeclaredInCode, match="did you mean 'concurrency'"):
            await mp.manage("orders").update(concurency=1)
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
                # Whoever may begin beside it does so meanwhile.
                for _ in range(20):
                    await asyncio.sleep(0)
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
