"""Consumers whose connections are cut, whose server restarts, whose process is killed: nothing is lost."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from engine.consuming.processes import Start
from engine.consuming.taking import Taker, orders, take, taking, until
from engine.faults.chance import seeded
from engine.faults.proxy import Fate, Proxy
from engine.vanished import expire
from milepost import Lost, Milepost, NewMessage, Retry, Unavailable
from milepost.engine.consumers.delivery import Delivery
from servers import Server
from support import MakeMilepost

ROUNDS = 12
"""How often messages are appended while connections are cut: after every third time."""


async def has_passed(mp: Milepost, name: str = "shipping") -> bool:
    info = await mp.manage(name).info()
    return not (info.lag.positions or info.retrying or info.unrouted or info.waiting or info.parked)


class Watched:
    """Acks what it gets after a moment, and notes two of one stream at once."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.versions: dict[str, list[int]] = defaultdict(list)
        self.lost = 0
        self.running: dict[str, int] = {}
        self.two_at_once: list[str] = []

    async def __call__(self, delivery: Delivery) -> None:
        message = delivery.message
        if self.running.get(message.stream, message.version) < message.version:
            self.two_at_once.append(message.stream)
        self.running[message.stream] = message.version
        await asyncio.sleep(0)
        self.versions[message.stream].append(message.version)
        try:
            await delivery.ack()
        except Lost:
            self.lost += 1
        else:
            self.acked.add(delivery.position)
        if self.running.get(message.stream) == message.version:
            del self.running[message.stream]


def in_order(versions: list[int]) -> bool:
    """What comes again may repeat; nothing is ahead of what was not seen before."""
    highest = 0
    for version in versions:
        if version > highest + 1:
            return False
        highest = max(highest, version)
    return True


@pytest.mark.timeout(100)
async def test_cut_connections_lose_nothing_and_keep_the_order(
    mp: Milepost, proxy: Proxy, make_mp: MakeMilepost
) -> None:
    await mp.create_subscription("shipping", ordered_by="stream", lease=2, retry=Retry(delay=0.05, jitter=0))
    handle = Watched()
    total = 0
    with seeded() as chance:
        async with make_mp(url=proxy.url) as other, taking(other, "shipping", handle) as taker:
            for turn in range(ROUNDS):
                await orders(mp, 20)
                total += 20
                await until(lambda: len(set(taker.seen)) > total - 20)  # noqa: B023
                if turn % 3 == 2:
                    proxy.cut(chance if chance.random() < 0.5 else None)
            await until(lambda: len(set(taker.seen)) == total)
            await until(lambda: has_passed(mp))
    assert handle.two_at_once == []
    assert all(in_order(versions) for versions in handle.versions.values())


@pytest.mark.timeout(100)
@pytest.mark.shard("faults")
async def test_writes_whose_answer_is_lost(mp: Milepost, proxy: Proxy, make_mp: MakeMilepost) -> None:
    """What is stored is read again, never assumed: what was parked stays parked, once."""
    await mp.create_subscription("shipping", lease=2)
    total = 0

    async def handle(delivery: Delivery) -> None:
        with suppress(Lost):
            await (delivery.park("odd") if delivery.position % 10 == 0 else delivery.ack())

    async with make_mp(url=proxy.url) as other, taking(other, "shipping", handle) as taker:
        with seeded() as chance:
            fates = [Fate.LOSES_ITS_ANSWER] * 3 + [Fate.IS_LOST] + [Fate.PASSES] * 26
            # A statement ends with a Sync, which commits it.
            proxy.rule = lambda frame: chance.choice(fates) if frame[:1] == b"S" else Fate.PASSES
            async with asyncio.timeout(60):
                while proxy.lost < 20:
                    await orders(mp, 10)
                    total += 10
                    await asyncio.sleep(0.05)
            proxy.rule = lambda frame: Fate.PASSES
        await until(lambda: len(set(taker.seen)) == total)
        await until(lambda: _parked(mp, total // 10))
        await until(lambda: _lag(mp, 0))
    rows = [(each.position, str(each.state)) async for each in mp.manage("shipping").deliveries()]
    assert rows == [(position, "parked") for position in range(10, total + 1, 10)]


async def _parked(mp: Milepost, count: int) -> bool:
    return (await mp.manage("shipping").info()).parked == count


async def _lag(mp: Milepost, positions: int) -> bool:
    return (await mp.manage("shipping").info()).lag.positions == positions


@pytest.mark.parametrize("mode", ["fast", "immediate"])
@pytest.mark.timeout(100)
@pytest.mark.shard("faults")
async def test_postgresql_is_restarted(own_server: Server, mode: str) -> None:
    async with Milepost(own_server.url()) as mp:
        await mp.create_subscription("shipping", retry=Retry(delay=0.05, jitter=0))
        async with (
            taking(mp, "shipping", Watched()) as taker,
            mp.consumer("shipping", where="n == 7", priority=1) as holding,
        ):
            for turn in range(2):
                await _available(lambda: orders(mp, 20))
                if turn == 0:
                    [held] = await take(holding, 1)
                await asyncio.to_thread(own_server.stop, mode)
                await asyncio.to_thread(own_server.start)
                with pytest.raises(Lost):
                    await _lost(held)
            await _available(lambda: orders(mp, 20))
            wanted = {message.position async for message in mp.read()}
            again = Taker(holding, Watched())
            try:
                # Both are still there, and everything came, what was held included.
                await until(lambda: {*taker.seen, *again.seen} == wanted)
                await until(lambda: has_passed(mp))
                assert (taker.consumer.closed, holding.closed) == (None, None)
                assert held.position in again.seen
            finally:
                await again.stop()


async def _lost(delivery: Delivery) -> None:
    """Until it is known that the server's restart took the claim along."""
    await until(lambda: not delivery.claim.is_in_force)
    await delivery.ack()


async def _available(call: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await call()  # type: ignore[misc]
            except Exception:
                await asyncio.sleep(0.1)
            else:
                return


@pytest.mark.timeout(100)
async def test_killed_while_they_hold_deliveries_and_others_take_over(mp: Milepost, start: Start) -> None:
    """With rows of every kind: what was parked, set aside or tried again stays what it was."""
    await mp.create_subscription("shipping", lease=60, timeout=3600, retry=Retry(delay=3600))
    await orders(mp, 30)
    async with mp.consumer("shipping", where="n < 25") as consumer:
        parked, retried, *others = await take(consumer, 25)
        await parked.park("odd")
        await retried.retry(reason="later")
        await consumer.settle(ack=others[:10])
        await until(lambda: _parked(mp, 1))
    for _ in range(2):
        process = start("hold", "n < 25")
        await process.until_got(13)
        process.kill()
        await expire(mp, process.pid)
    process = start("ack", "n < 25")
    got = await process.until_got(13)
    assert sorted(set(got)) == list(range(13, 26))
    info = await mp.manage("shipping").info()
    await until(lambda: _lag(mp, 0))
    assert (info.parked, info.retrying, info.unrouted) == (1, 1, 5)


@pytest.mark.timeout(110)
@pytest.mark.shard("large")
async def test_memory_does_not_grow_with_the_backlog(mp: Milepost, start: Start) -> None:
    """A consumer that stands still is behind by a hundred thousand: its process has what it may have open."""
    await mp.create_subscription("shipping", timeout=3600)
    process = start("hold")
    await process.until("owner")
    text = {"text": "x" * 500}
    await mp.append_many({f"order-{number}": [NewMessage("placed", text)] * 20 for number in range(100)})
    await process.until_got(1000)
    few = await _resident(process.pid)
    for _ in range(20):
        await mp.append_many({f"order-{number}": [NewMessage("placed", text)] * 50 for number in range(100)})
    await process.until(f"knows {await mp.head()}")
    assert await _resident(process.pid) < few + 30 * 2**20
    assert len(process.got) == 1000


async def _resident(pid: int) -> int:
    """What a process takes once that has stopped to grow, in bytes."""
    process = psutil.Process(pid)
    quiet, most = 0, 0
    async with asyncio.timeout(60):
        while quiet < 10:
            await asyncio.sleep(0.1)
            taken = process.memory_info().rss
            quiet = quiet + 1 if taken < most + 2**20 else 0
            most = max(most, taken)
    return most


async def test_a_consumer_that_comes_while_the_database_is_away(mp: Milepost, proxy: Proxy) -> None:
    """It is told at once that it cannot be had, and can come later."""
    await mp.create_subscription("shipping")
    await orders(mp, 1)
    async with Milepost(proxy.url, schema=mp.settings["schema"].value) as other:
        proxy.rule = lambda frame: Fate.IS_LOST
        proxy.cut()
        with pytest.raises((Unavailable, TimeoutError)):
            async with asyncio.timeout(20), other.consumer("shipping"):
                pass
        proxy.rule = lambda frame: Fate.PASSES
        async with asyncio.timeout(30):
            while True:
                with suppress(Exception):
                    async with other.consumer("shipping") as consumer:
                        assert [each.position for each in await take(consumer, 1)] == [1]
                        return
                await asyncio.sleep(0.1)
