"""The subscription changes, rests, moves and goes under running consumers: none is dropped, it holds at once."""

import asyncio
from typing import Any

import pytest

from engine.consuming.taking import Taker, ack, is_dry, orders, take, taking, until
from milepost import Checkpoint, ConsumerClosed, Lost, Milepost, NewMessage, NotConfirmed, Retry, by_property
from milepost.engine.consuming.attended import Attended
from milepost.engine.values import LONGEST
from milepost.progress.protocol import Opened
from support import MakeMilepost, qualified


class TestSettings:
    """A change is in force when `update` returns, and the consumer that was there before sees it."""

    async def test_the_filter(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", where="n < 10")
        async with taking(mp, "shipping") as taker:
            await orders(mp, 2)
            await taker.until(2)
            for turn in range(10):
                await mp.manage("shipping").update(where=f"n == {100 + turn}")
                await orders(mp, 1)
                await orders(mp, 1, first=100 + turn)
                await taker.until(3 + turn)
            assert taker.seen == [1, 2, *range(4, 24, 2)]
            assert taker.consumer.closed is None

    async def test_what_was_read_and_nobody_has_goes_by_the_new_filter(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", where="n < 5 || n == 7")
        await orders(mp, 10)
        async with mp.consumer("shipping", capacity=1) as consumer:
            [first] = await take(consumer, 1)
            await mp.manage("shipping").update(where="n == 3 || n == 8")
            await ack([first])
            assert await ack(await take(consumer, 1)) == [4]
            # What the old one rejected stays so.
            await orders(mp, 1, first=8)
            assert await ack(await take(consumer, 1)) == [11]
        info = await mp.manage("shipping").info()
        assert (info.lag.positions, info.unrouted) == (0, 0)

    async def test_categories_streams_and_types(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", category="order")
        async with taking(mp, "shipping") as taker:
            await orders(mp, 1)
            await taker.until(1)
            await mp.manage("shipping").update(category="invoice", types=["sent"])
            await orders(mp, 1)
            await mp.append("invoice-1", [NewMessage("written"), NewMessage("sent")])
            assert await taker.until(2) == [1, 4]
            await mp.manage("shipping").update(category=None, types=None, stream="order-7")
            await mp.append("order-7", NewMessage("placed"))
            assert await taker.until(3) == [1, 4, 5]

    async def test_the_time_out(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", timeout=3600, retry=Retry(delay=0, jitter=0))
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            await take(consumer, 1)
            await mp.manage("shipping").update(timeout=0.1)
            await orders(mp, 1)
            await take(consumer, 1)
            assert [(each.position, each.attempt) for each in await take(consumer, 1)] == [(2, 2)]

    async def test_the_retries(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            [delivery] = await take(consumer, 1)
            await mp.manage("shipping").update(retry=Retry(attempts=2, delay=0, jitter=0))
            await delivery.retry()
            [delivery] = await take(consumer, 1)
            await delivery.retry(reason="again")
            await until(lambda: _parked(mp, 1))

    async def test_the_strategy(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as first, mp.consumer("shipping") as second:
            await orders(mp, 4)
            held = [*await take(first, 2), *await take(second, 2)]
            changing = asyncio.create_task(mp.manage("shipping").update(strategy="dispatch_to_single"))
            # What is out is settled first, by those who have it.
            await until(lambda: first.desk.owned is not None and first.desk.owned.closing)
            await ack(held)
            await changing
            await orders(mp, 4)
            assert await ack(await take(first, 4)) == [5, 6, 7, 8]
            assert (first.closed, second.closed) == (None, None)

    async def test_the_order(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", retry=Retry(delay=60))
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 2, streams=1, customer=1)
            first, second = await take(consumer, 2)
            await first.retry()
            changing = asyncio.create_task(mp.manage("shipping").update(ordered_by=by_property("customer")))
            await until(lambda: consumer.desk.owned is not None and consumer.desk.owned.closing)
            await second.ack()
            await changing
            # The one that failed holds its customer now, and nobody else.
            await orders(mp, 1, customer=1)
            await orders(mp, 1, customer=2)
            assert await ack(await take(consumer, 1)) == [4]
            assert await is_dry(consumer)
            await mp.manage("shipping").retry([1])
            assert await ack(await take(consumer, 1)) == [1]
            assert await ack(await take(consumer, 1)) == [3]
            await mp.manage("shipping").update(ordered_by=None)
            await orders(mp, 2, customer=1)
            assert len(await take(consumer, 2)) == 2

    async def test_how_many_consumers_there_may_be(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as first, mp.consumer("shipping") as second:
            await mp.manage("shipping").update(max_consumers=1)
            with pytest.raises(ConsumerClosed, match="too many consumers"):
                async with mp.consumer("shipping"):
                    pass
            assert (first.closed, second.closed) == (None, None)
            await mp.manage("shipping").update(max_consumers=3)
            async with mp.consumer("shipping"):
                pass

    async def test_the_window_and_the_limits(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", window=1000, max_unrouted=1000)
        async with mp.consumer("shipping", where="false") as consumer:
            await mp.manage("shipping").update(window=2, max_unrouted=3)
            await orders(mp, 20)
            await until(lambda: _unrouted(mp, 3))
            assert (await mp.manage("shipping").info()).lag.positions >= 15
            await mp.manage("shipping").update(max_unrouted=1000, window=100)
            await until(lambda: _unrouted(mp, 20))
            await consumer.configure(where=None)
            assert await ack(await take(consumer, 20)) == list(range(1, 21))

    async def test_the_checkpoint(self, mp: Milepost) -> None:
        """The first that is settled of a lane is written at once, however long the machine has been up."""
        await mp.create_subscription("shipping", checkpoint=Checkpoint(seconds=LONGEST, messages=10**6))
        await orders(mp, 3)
        async with mp.consumer("shipping") as consumer:
            await ack(await take(consumer, 1))
            await until(lambda: _lag(mp, 2))
            await ack(await take(consumer, 1))
            await mp.manage("shipping").update(checkpoint=Checkpoint(seconds=0.01))
            await until(lambda: _lag(mp, 1))

    async def test_what_parked_messages_hold(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", ordered_by="stream", on_park="block")
        await orders(mp, 2, streams=1)
        async with mp.consumer("shipping") as consumer:
            await (await take(consumer, 1))[0].park("odd")
            await until(lambda: _parked(mp, 1))
            assert await is_dry(consumer)
            await mp.manage("shipping").update(on_park="continue")
            assert await ack(await take(consumer, 1)) == [2]

    async def test_from_another_process(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        await mp.create_subscription("shipping")
        async with make_mp() as other, taking(mp, "shipping") as taker:
            for turn in range(5):
                await other.manage("shipping").update(where=f"n == {turn}")
                await orders(other, 5)
                await taker.until(turn + 1)
            assert taker.seen == [1, 7, 13, 19, 25]

    async def test_the_lease(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", lease=30)
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 2)
            first, second = await take(consumer, 2)
            await first.ack()
            changing = asyncio.create_task(mp.manage("shipping").update(lease=5))
            await until(lambda: consumer.desk.owned is not None and consumer.desk.owned.closing)
            await second.ack()
            await changing
            statement = qualified("select extract(epoch from lease)::integer from {}.workers", mp)
            await until(lambda: _is(mp, statement, 5))
            await orders(mp, 1)
            assert await ack(await take(consumer, 1)) == [3]

    async def test_who_does_not_follow_is_named(self, mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("milepost.engine.consuming.created.FOLLOW", 0.2)
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            attended = next(iter(mp.desks._attended.values()))
            monkeypatch.setattr(attended, "_follow", lambda: None)
            await until(lambda: bool(consumer.desk.lanes))
            [owner] = (await mp.manage("shipping").info()).owners
            with pytest.raises(NotConfirmed) as refused:
                await mp.manage("shipping").update(timeout=3)
            assert refused.value.workers == (owner,)


async def _is(mp: Milepost, statement: str, value: Any) -> bool:
    return list(await mp.log.database.execute(statement, {})) == [(value,)]


async def _parked(mp: Milepost, count: int) -> bool:
    return (await mp.manage("shipping").info()).parked == count


async def _unrouted(mp: Milepost, count: int) -> bool:
    return (await mp.manage("shipping").info()).unrouted == count


async def _lag(mp: Milepost, positions: int) -> bool:
    return (await mp.manage("shipping").info()).lag.positions == positions


class TestPause:
    async def test_nothing_goes_out_when_it_returns_and_consumers_stay(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 10)
            held = await take(consumer, 3)
            pausing = asyncio.create_task(mp.manage("shipping").pause())
            # What nobody has looked at goes back; what somebody has is settled first.
            await until(lambda: consumer.desk.owned is not None and consumer.desk.owned.closing)
            await ack(held)
            await pausing
            info = await mp.manage("shipping").info()
            assert (info.status, info.lag.positions) == ("paused", 7)
            assert (consumer.standby, consumer.closed) == (False, None)
            assert await is_dry(consumer)
            await mp.manage("shipping").resume()
            assert await ack(await take(consumer, 7)) == list(range(4, 11))

    async def test_who_still_has_something_is_said_and_it_is_paused_all_the_same(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 2)
            held = await take(consumer, 1)
            with pytest.raises(NotConfirmed):
                await mp.manage("shipping").pause(timeout=0.2)
            await ack(held)
            await mp.manage("shipping").pause()
            assert await is_dry(consumer)

    async def test_a_consumer_that_comes_while_it_is_paused_waits(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 1)
        await mp.manage("shipping").pause()
        async with mp.consumer("shipping") as consumer:
            assert not consumer.standby
            assert await is_dry(consumer)
            await mp.manage("shipping").resume()
            assert await ack(await take(consumer, 1)) == [1]

    async def test_it_stays_paused_over_restarts(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        await mp.create_subscription("shipping")
        async with make_mp() as other, other.consumer("shipping"):
            await mp.manage("shipping").pause()
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            assert await is_dry(consumer)

    async def test_what_times_out_meanwhile_is_an_attempt(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", timeout=0.3, retry=Retry(delay=0, jitter=0))
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 1)
            [late] = await take(consumer, 1)
            await mp.manage("shipping").pause()
            with pytest.raises(Lost, match="timed out"):
                await late.ack()
            await mp.manage("shipping").resume()
            assert [each.attempt for each in await take(consumer, 1)] == [2]


class TestMove:
    async def test_back_and_everything_comes_again(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with taking(mp, "shipping") as taker:
            await orders(mp, 5)
            await taker.until(5)
            await mp.manage("shipping").move("beginning")
            assert await taker.until(10) == [1, 2, 3, 4, 5] * 2
            assert set(taker.attempts) == {1}

    async def test_forward_while_a_consumer_has_something(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping", capacity=1) as consumer:
            await orders(mp, 5)
            held = await take(consumer, 1)
            moving = asyncio.create_task(mp.manage("shipping").move(4))
            await until(lambda: consumer.desk.owned is not None and consumer.desk.owned.closing)
            await ack(held)
            await moving
            assert await ack(await take(consumer, 1)) == [5]
            assert consumer.closed is None

    async def test_rows_above_are_forgotten(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 3)
            for delivery in await take(consumer, 3):
                await delivery.park("odd")
            await until(lambda: _parked(mp, 3))
            assert await mp.manage("shipping").move(1) == 2
            assert await ack(await take(consumer, 2)) == [2, 3]
            assert await _parked(mp, 1)


class TestReplay:
    async def test_exactly_what_was_handled_says_that_it_is_a_replay(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        seen: list[tuple[int, bool]] = []

        async def note(delivery: Any) -> None:
            seen.append((delivery.position, delivery.replay))
            await delivery.ack()

        async with taking(mp, "shipping", note):
            await orders(mp, 5)
            await until(lambda: len(seen) == 5)
            assert await mp.manage("shipping").replay(1, 4) == 3
            await orders(mp, 2)
            await until(lambda: len(seen) == 10)
        assert seen[:5] == [(position, False) for position in range(1, 6)]
        assert sorted(seen[5:]) == [(2, True), (3, True), (4, True), (6, False), (7, False)]


class TestDelete:
    async def test_under_running_consumers(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        await mp.create_subscription("shipping")
        async with make_mp() as other, other.consumer("shipping") as owner, mp.consumer("shipping") as standby:
            await orders(mp, 3)
            held = await take(owner, 1)
            deleting = asyncio.create_task(mp.manage("shipping").delete())
            await until(lambda: owner.desk.owned is not None and owner.desk.owned.closing)
            ends = [asyncio.create_task(_end(consumer)) for consumer in (owner, standby)]
            await ack(held)
            await deleting
            assert await asyncio.gather(*ends) == ["deleted", "deleted"]
            with pytest.raises(Lost, match="settled before"):
                await held[0].ack()
        assert await mp.subscriptions() == []


async def _end(consumer: Any) -> str:
    async with asyncio.timeout(40):
        try:
            async for _ in consumer:
                pass
        except ConsumerClosed as closed:
            return closed.reason
    raise AssertionError("it did not end")


async def test_all_at_once(mp: Milepost, make_mp: MakeMilepost) -> None:
    """Settings, pauses and moves in any order, while consumers take: nothing is lost."""
    await mp.create_subscription("shipping", retry=Retry(delay=0, jitter=0))
    seen: set[int] = set()

    async def note(delivery: Any) -> None:
        await asyncio.sleep(0.001)
        await delivery.ack()
        seen.add(delivery.position)

    async with make_mp() as other, taking(mp, "shipping", note) as first, taking(mp, "shipping", note) as second:
        managed = other.manage("shipping")
        for turn in range(6):
            await orders(mp, 20)
            await managed.update(strategy=("pinned", "round_robin")[turn % 2], window=turn + 1)
            await managed.pause()
            await orders(mp, 10)
            await managed.update(ordered_by=("stream", None)[turn % 2], timeout=20 + turn)
            await managed.resume()
        await until(lambda: len(seen) == 180)
        for taker in (first, second):
            assert isinstance(taker, Taker)
            assert taker.consumer.closed is None


async def test_a_trace_knows_which_filter_decided(mp: Milepost) -> None:
    await mp.create_subscription("shipping", where="n < 5")
    await orders(mp, 8, streams=1)
    async with mp.consumer("shipping", capacity=2) as consumer:
        held = await take(consumer, 2)
        await mp.manage("shipping").update(where="n > 3")
        await orders(mp, 2, streams=1, first=8)
        await ack(held)
        # The third and the fourth were read, and nobody had had them; the sixth to eighth had been rejected.
        assert await ack(await take(consumer, 1)) == [5]
        assert await ack(await take(consumer, 2)) == [9, 10]
    found = {each.message.position: (each.state, each.definition) for each in await mp.trace("order-0")}
    assert found == {
        **dict.fromkeys((1, 2), ("done", 1)),
        **dict.fromkeys((3, 4), ("filtered", 2)),
        **dict.fromkeys((6, 7, 8), ("filtered", 1)),
        **dict.fromkeys((5, 9, 10), ("done", 2)),
    }


TAKEN = "select {0}.take(s.id, '{{0}}') from {0}.subscriptions s"
"""As another process does that takes the lane: what its owner knows is of no use any more, and it cannot write."""


class TestVanished:
    """A filter changes, and the owner is gone before that is in force, or before that is written."""

    @staticmethod
    async def fates(mp: Milepost) -> dict[int, tuple[str, int | None]]:
        return {each.message.position: (each.state, each.definition) for each in await mp.trace("order-0")}

    async def test_before_it_heard_of_it_all_is_passed_by_the_old_one(
        self, mp: Milepost, make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = {**dict.fromkeys(range(1, 6), ("done", 1)), **dict.fromkeys((6, 7), ("filtered", 1))}
        hears = asyncio.Event()

        async def deaf(self: Attended, opened: Opened) -> None:
            await hears.wait()

        await mp.create_subscription("shipping", where="n < 5")
        async with make_mp() as owner, taking(owner, "shipping") as taker:
            await orders(mp, 4, streams=1)
            await taker.until(4)
            with monkeypatch.context() as patched:
                patched.setattr(Attended, "learn", deaf)
                patched.setattr("milepost.engine.consuming.created.FOLLOW", 0)
                for where in ("n == 6", "n >= 3"):
                    with pytest.raises(NotConfirmed):
                        await mp.manage("shipping").update(where=where)
                await orders(mp, 3, streams=1, first=4)
                await until(lambda: is_at_rest(mp))
                assert await self.fates(mp) == old
                # Nobody can write any more: the owner vanishes like this.
                await mp.log.database.execute(qualified(TAKEN, mp), {})
                hears.set()
        assert await self.fates(mp) == old
        async with taking(mp, "shipping") as taker:
            await orders(mp, 2, streams=1, first=2)
            assert await taker.until(1) == [9]
            await until(lambda: is_at_rest(mp))
        new = {8: ("filtered", 3), 9: ("done", 3)}
        assert await self.fates(mp) == {**old, **new}

    async def test_before_it_was_written_what_it_had_is_judged_anew(
        self, mp: Milepost, make_mp: MakeMilepost
    ) -> None:
        await mp.create_subscription("shipping", where="n < 5")
        await orders(mp, 8, streams=1)
        async with make_mp() as owner, owner.consumer("shipping", capacity=2) as consumer:
            await take(consumer, 2)
            await mp.manage("shipping").update(where="n > 3")
            await mp.log.database.execute(qualified(TAKEN, mp), {})
        async with taking(mp, "shipping") as taker:
            await taker.until(1)
            await until(lambda: is_at_rest(mp))
        # The first two had been handed out: that is forgotten, perhaps also that the last three had been rejected.
        assert await self.fates(mp) == {
            **dict.fromkeys(range(1, 5), ("filtered", 2)),
            **{at: ("done", 2) if at in taker.seen else ("filtered", 1) for at in range(5, 9)},
        }
        assert 5 in taker.seen


async def is_at_rest(mp: Milepost) -> bool:
    """Whether everything is settled, and written."""
    return (await mp.manage("shipping").info()).lag.positions == 0
