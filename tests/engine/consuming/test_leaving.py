"""How consumers end, why, and what becomes of what they have."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.consuming.taking import PATIENCE, ack, has_looked, is_dry, orders, take, taking, until
from milepost import ConsumerClosed, Lost, Milepost, Retry
from milepost.engine.consumers.consumer import Consumer
from milepost.engine.consumers.host import ConsumerPeers
from support import MakeMilepost, qualified


async def reason_of(consumer: Consumer) -> str:
    """Why the consumer has ended, as its loop is told."""
    with pytest.raises(ConsumerClosed) as closed:
        async with asyncio.timeout(PATIENCE):
            async for _ in consumer:
                pass
    assert closed.value.reason == consumer.closed
    return closed.value.reason


async def rows(mp: Milepost) -> int:
    [[count]] = await mp.log.database.execute(qualified("select count(*) from {}.deliveries", mp), {})
    return int(count)


async def test_the_end_of_the_block_gives_back_at_once_and_counts_nothing(mp: Milepost) -> None:
    await mp.create_subscription("shipping", timeout=3600)
    await orders(mp, 10)
    async with mp.consumer("shipping", capacity=10) as leaving:
        held = await take(leaving, 6)
        await held[0].ack()
        async with mp.consumer("shipping", capacity=10) as other:
            await leaving.__aexit__(None, None, None)
            given = await take(other, 9)
            assert sorted(delivery.position for delivery in given) == list(range(2, 11))
            assert {delivery.attempt for delivery in given} == {1}
        with pytest.raises(Lost, match="no longer this consumer's, which has ended: left"):
            await held[1].ack()
    assert await rows(mp) == 0


async def test_the_last_one_gives_back_too(mp: Milepost) -> None:
    await mp.create_subscription("shipping", timeout=3600)
    await orders(mp, 3)
    for _ in range(2):
        async with mp.consumer("shipping") as consumer:
            assert [delivery.attempt for delivery in await take(consumer, 3)] == [1, 1, 1]
    assert await rows(mp) == 0


async def test_an_error_that_ends_the_consumer_counts_for_what_it_had_taken(mp: Milepost) -> None:
    await mp.create_subscription("shipping", retry=Retry(attempts=2, delay=0, jitter=0))
    await orders(mp, 3)
    for attempt in (1, 2):
        with pytest.raises(ZeroDivisionError):
            async with mp.consumer("shipping") as consumer:
                async with asyncio.timeout(PATIENCE):
                    async for delivery in consumer:
                        assert (delivery.position, delivery.attempt) == (1, attempt)
                        raise ZeroDivisionError("whatever")
    # The message that ended two consumers is parked; those that nobody had looked at are as good as new.
    async with mp.consumer("shipping") as consumer:
        assert [(each.position, each.attempt) for each in await take(consumer, 2)] == [(2, 1), (3, 1)]
    [parked] = [each async for each in mp.manage("shipping").deliveries(state="parked")]
    assert (parked.position, parked.attempts) == (1, 2)
    assert parked.reason == "its consumer ended by ZeroDivisionError: whatever"


class TestReasons:
    """Each ending has a word of its own."""

    async def test_left(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            assert consumer.closed is None
        assert await reason_of(consumer) == "left"
        with pytest.raises(ConsumerClosed, match="left"):
            await consumer.configure(priority=1)
        with pytest.raises(ConsumerClosed, match="left"):
            await consumer.drain()

    async def test_stopped(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 2)
        async with mp.consumer("shipping") as consumer:
            await (await take(consumer, 1))[0].stop()
            assert await reason_of(consumer) == "stopped"

    async def test_deleted(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            await ack(await take(consumer, 1))
            await mp.manage("shipping").delete()
            assert await reason_of(consumer) == "deleted"

    async def test_closed(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        await mp.create_subscription("shipping")
        async with make_mp() as other:
            consumer = await other.consumer("shipping").__aenter__()
            waiting = asyncio.create_task(reason_of(consumer))
            await asyncio.sleep(0)
        assert await waiting == "closed"
        await consumer.__aexit__(None, None, None)

    async def test_too_many(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", max_consumers=2)
        async with mp.consumer("shipping"), mp.consumer("shipping") as second:
            with pytest.raises(ConsumerClosed, match="there may be 2") as refused:
                async with mp.consumer("shipping"):
                    pass
            assert refused.value.reason == "too many consumers"
            await second.__aexit__(None, None, None)
            async with mp.consumer("shipping"):
                pass

    async def test_lost(self, mp: Milepost, make_mp: MakeMilepost, caplog: pytest.LogCaptureFixture) -> None:
        await mp.create_subscription("shipping")
        async with make_mp() as other, other.consumer("shipping") as consumer:
            # Something that nobody has thought of.
            consumer.dispatcher.checkpoint_writer._write = None  # type: ignore[method-assign,assignment]
            consumer.dispatcher.checkpoint_writer.wake()
            assert await reason_of(consumer) == "lost"
        assert "its consumers end: 'NoneType' object is not callable\nTraceback" in caplog.text

    async def test_drained(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 3)
        async with mp.consumer("shipping") as consumer:
            await consumer.drain()
            # What came before it was told.
            async for delivery in consumer:
                await delivery.ack()
            assert consumer.closed == "drained"
            with pytest.raises(ConsumerClosed, match="drained"):
                await anext(consumer)
            with pytest.raises(ConsumerClosed, match="drained"):
                await consumer.configure(priority=1)

    async def test_the_first_reason_holds(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            await (await take(consumer, 1))[0].stop()
        assert consumer.closed == "stopped"


class TestDrain:
    async def test_gets_nothing_new_and_ends_when_all_is_settled(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 3)
        async with mp.consumer("shipping") as draining, mp.consumer("shipping", capacity=0) as other:
            held = await take(draining, 3)
            await draining.drain()
            await other.configure(capacity=10)
            await orders(mp, 3)
            assert await ack(await take(other, 3)) == [4, 5, 6]
            over = asyncio.create_task(_rest(draining))
            await ack(held[:2])
            await has_looked(draining)
            assert not over.done()
            await ack(held[2:])
            assert await over == []

    async def test_what_it_has_not_looked_at_is_still_to_be_settled(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 5)
        async with mp.consumer("shipping") as consumer:
            first = await take(consumer, 1)
            await consumer.drain()
            rest = []
            async for delivery in consumer:
                rest.append(delivery.position)
                await delivery.ack()
                await ack(first)
                first = []
            assert rest == [2, 3, 4, 5]

    async def test_while_another_process_owns_the_subscription(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        await mp.create_subscription("shipping")
        async with make_mp() as owner, owner.consumer("shipping") as first, mp.consumer("shipping") as second:
            assert second.standby
            await second.drain()
            await first.__aexit__(None, None, None)
            assert await _rest(second) == []


async def _rest(consumer: Consumer) -> list[int]:
    async with asyncio.timeout(PATIENCE):
        return [delivery.position async for delivery in consumer]


async def test_a_consumer_is_used_inside_of_its_block(mp: Milepost) -> None:
    await mp.create_subscription("shipping")
    consumer = mp.consumer("shipping")
    with pytest.raises(RuntimeError, match="inside `async with`"):
        assert consumer.standby
    async with consumer:
        with pytest.raises(RuntimeError, match="entered once"):
            await consumer.__aenter__()
    with pytest.raises(RuntimeError, match="entered once"):
        await consumer.__aenter__()


async def test_coming_is_cancelled(mp: Milepost) -> None:
    """Nothing is left behind: the next one gets everything."""
    await mp.create_subscription("shipping")
    await orders(mp, 1)
    for steps in range(40):
        coming = asyncio.create_task(mp.consumer("shipping").__aenter__())
        for _ in range(steps * 2):
            await asyncio.sleep(0)
        coming.cancel()
        await asyncio.wait([coming])
        if not coming.cancelled():
            await coming.result().__aexit__(None, None, None)
    async with mp.consumer("shipping") as consumer:
        assert len(await take(consumer, 1)) == 1


async def test_coming_is_cancelled_while_it_joins(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still ending lets go of its own lane only: the next one waits until it has ended."""
    await mp.create_subscription("shipping")
    await orders(mp, 1)
    joins, may_join, joined = asyncio.Event(), asyncio.Event(), ConsumerPeers.joined

    @asynccontextmanager
    async def held_up(peers: ConsumerPeers, member: object, lease: float) -> AsyncIterator[None]:
        async with joined(peers, member, lease):
            if not joins.is_set():
                joins.set()
                await may_join.wait()
            yield

    monkeypatch.setattr(ConsumerPeers, "joined", held_up)
    coming = asyncio.create_task(mp.consumer("shipping").__aenter__())
    await joins.wait()
    coming.cancel()
    await asyncio.wait([coming])
    next_one = asyncio.create_task(mp.consumer("shipping").__aenter__())
    # It comes no sooner than the other has ended; one that came at once would have lost its lane then.
    await asyncio.wait([next_one], timeout=0.5)
    may_join.set()
    consumer = await next_one
    await until(lambda: not mp.consumer_registry._ending)
    [host] = mp.consumer_registry._hosts_by_address.values()
    try:
        assert host._peers.balancer.served == {host.record.id: host}
        assert len(await take(consumer, 1)) == 1
    finally:
        await consumer.__aexit__(None, None, None)


async def test_a_subscription_that_is_made_anew_has_new_consumers(mp: Milepost) -> None:
    await mp.create_subscription("shipping")
    async with mp.consumer("shipping") as old:
        await mp.manage("shipping").delete()
        assert await reason_of(old) == "deleted"
        await mp.create_subscription("shipping")
        await orders(mp, 2)
        async with mp.consumer("shipping") as new:
            assert len(await take(new, 1)) == 1
            await old.__aexit__(None, None, None)
            assert len(await take(new, 1)) == 1


async def test_a_capacity_in_use_is_free_again_when_somebody_leaves(mp: Milepost) -> None:
    """What a leaver had goes to those with room, in order, though they have been full."""
    await mp.create_subscription("shipping")
    await orders(mp, 6)

    async def nothing(delivery: Any) -> None:
        await asyncio.Event().wait()

    async with mp.consumer("shipping", capacity=2) as staying:
        async with taking(mp, "shipping", nothing, capacity=2) as leaving:
            await leaving.until(1)
            held = await take(staying, 2)
            assert await is_dry(staying)
        done = await ack(held)
        left = [position for position in range(1, 7) if position not in done]
        assert [delivery.position for delivery in await take(staying, 2)] == left[:2]


async def test_the_progress_is_written_at_the_end(mp: Milepost) -> None:
    await mp.create_subscription("shipping")
    await orders(mp, 100)
    async with mp.consumer("shipping") as consumer:
        await ack(await take(consumer, 100))
    info = await mp.manage("shipping").info()
    assert (info.lag.positions, info.status, info.owners) == (0, "waiting", ())


async def test_that_it_is_over_is_seen(mp: Milepost) -> None:
    await mp.create_subscription("shipping")
    async with mp.consumer("shipping"), mp.consumer("shipping"):
        await until(lambda: _consumers(mp, 2))
    assert await _consumers(mp, 0)


async def _consumers(mp: Milepost, count: int) -> bool:
    return (await mp.manage("shipping").info()).consumers == count
