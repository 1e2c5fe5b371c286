"""Many consumers, many subscriptions, and none in the other's way."""

import asyncio
import threading
from contextlib import AsyncExitStack

import pytest

from engine.consuming.taking import PATIENCE, Taker, ack, orders, take, taking, until
from milepost import Milepost, NewMessage
from support import MakeMilepost, qualified


@pytest.mark.timeout(110)
@pytest.mark.shard("large")
async def test_a_thousand_consumers_in_one_process(mp: Milepost) -> None:
    """Each gets its own, exactly once; what is nobody's waits."""
    await mp.create_subscription("shipping", category="order")
    messages = [NewMessage("placed", properties={"CustomerId": number % 1010}) for number in range(3030)]
    await mp.append_many({f"order-{number}": messages[number::30] for number in range(30)})
    async with AsyncExitStack() as stack:
        takers: list[Taker] = []
        for number in range(1000):
            consumer = await stack.enter_async_context(
                mp.consumer("shipping", where=f"CustomerId == {number}", capacity=2)
            )
            takers.append(Taker(consumer))
        async with asyncio.timeout(60):
            await asyncio.gather(*(taker.until(3) for taker in takers))
        assert len({position for taker in takers for position in taker.seen}) == 3000
        await until(lambda: _unrouted(mp, 30))
        assert (await mp.manage("shipping").info()).consumers == 1000
        for taker in takers:
            await taker.stop()


async def _unrouted(mp: Milepost, count: int) -> bool:
    info = await mp.manage("shipping").info()
    return (info.unrouted, info.lag.positions) == (count, 0) and info.consumers == 1000


@pytest.mark.timeout(110)
@pytest.mark.shard("large")
async def test_a_thousand_equal_ones_share_evenly(mp: Milepost) -> None:
    await mp.create_subscription("shipping")
    async with AsyncExitStack() as stack:
        consumers = [await stack.enter_async_context(mp.consumer("shipping", capacity=1)) for _ in range(1000)]
        messages = [NewMessage("placed")] * 1000
        await mp.append_many({f"order-{number}": messages[:50] for number in range(20)})
        async with asyncio.timeout(PATIENCE):
            given = [await anext(consumer) for consumer in consumers]
        assert {delivery.position for delivery in given} == set(range(1, 1001))


async def test_fan_out_every_subscription_gets_everything_and_one_that_is_stuck_slows_no_other(
    mp: Milepost,
) -> None:
    names = [f"reader-{number}" for number in range(5)]
    for name in ("stuck", "failing", *names):
        await mp.create_subscription(name, window=10, timeout=3600)
    async with AsyncExitStack() as stack:
        stuck = await stack.enter_async_context(mp.consumer("stuck", capacity=1))
        await orders(mp, 1)
        [held] = await take(stuck, 1)
        failing = await stack.enter_async_context(
            taking(mp, "failing", lambda delivery: delivery.retry(reason="no"))
        )
        takers = [await stack.enter_async_context(taking(mp, name)) for name in names]
        await orders(mp, 199)
        for taker in takers:
            assert await taker.until(200) == list(range(1, 201))
        assert failing.seen
        assert held.position == 1
        for name in names:
            await until(lambda: _is_done(mp, name))  # noqa: B023
        behind = await mp.manage("stuck").info()
        assert behind.lag.positions == 200
        # And it goes on where it was.
        await held.ack()
        assert [await ack(await take(stuck, 1)) for _ in range(3)] == [[2], [3], [4]]


async def _is_done(mp: Milepost, name: str) -> bool:
    return (await mp.manage(name).info()).lag.positions == 0


def _threads() -> int:
    """All but those that fetch pages, as many as the pool has connections."""
    return sum(not thread.name.startswith("milepost-reader") for thread in threading.enumerate())


async def test_many_subscriptions_in_one_process_have_one_heart(mp: Milepost, make_mp: MakeMilepost) -> None:
    """Neither threads nor connections grow with the subscriptions that have consumers."""
    for number in range(20):
        await mp.create_subscription(f"reader-{number}")
    await orders(mp, 3)
    async with make_mp(pool_size=4) as one, AsyncExitStack() as stack:
        first = await stack.enter_async_context(one.consumer("reader-0"))
        threads, before = _threads(), await _connections(mp)
        others = [one.consumer(f"reader-{number}") for number in range(1, 20)]
        consumers = [first, *[await stack.enter_async_context(consumer) for consumer in others]]
        for consumer in consumers:
            assert await ack(await take(consumer, 3)) == [1, 2, 3]
        assert _threads() <= threads + 1
        assert await _connections(mp) <= before + 4
        # One that goes takes nothing from the others, and can come back.
        await consumers[7].__aexit__(None, None, None)
        await orders(mp, 1)
        assert await ack(await take(consumers[8], 1)) == [4]
        async with one.consumer("reader-7") as again:
            assert await ack(await take(again, 1)) == [4]


async def _served(mp: Milepost) -> list[str]:
    """What living processes say that they serve."""
    text = "select s.name from {0}.serving v join {0}.subscriptions s on s.id = v.subscription"
    return [name for (name,) in await mp.log.database.execute(qualified(text, mp), {})]


async def _connections(mp: Milepost) -> int:
    text = "select count(*) from pg_stat_activity where datname = current_database()"
    [[count]] = await mp.log.database.execute(text, {})
    return int(count)


async def test_one_that_breaks_breaks_no_other(mp: Milepost, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("broken", "well"):
        await mp.create_subscription(name)
    async with mp.consumer("broken") as broken, mp.consumer("well") as well:
        broken.dispatcher.checkpoint_writer._write = None  # type: ignore[method-assign,assignment]
        broken.dispatcher.checkpoint_writer.wake()
        await until(lambda: broken.closed == "lost")
        await orders(mp, 1)
        assert await ack(await take(well, 1)) == [1]
        # Whoever comes next finds it as it was.
        async with mp.consumer("broken") as anew:
            assert await ack(await take(anew, 1)) == [1]
    assert "its consumers end: 'NoneType' object is not callable" in caplog.text


async def test_one_that_nobody_takes_from_any_more_can_be_operated_at_once(mp: Milepost) -> None:
    """Though the process lives on, for other subscriptions: it tells that it does nothing for this one."""
    for name in ("left", "kept"):
        await mp.create_subscription(name, lease=3600)
    await orders(mp, 2)
    async with mp.consumer("kept") as kept:
        async with mp.consumer("left") as left:
            await ack(await take(left, 1))
        assert await _served(mp) == ["kept"]
        await mp.manage("left").move("beginning", timeout=PATIENCE)
        async with mp.consumer("left") as anew:
            assert [each.position for each in await take(anew, 2)] == [1, 2]
        await mp.manage("left").delete(timeout=PATIENCE)
        assert await ack(await take(kept, 2)) == [1, 2]
