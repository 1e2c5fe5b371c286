"""Commits that are lost for real: by crashes with outages, and by failovers to a standby that lags.

What survived and what came later is handled, whoever handles it; exactly once is exact. The worst moments are
forced in `engine/test_lives.py`.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from engine.faults.test_restarts import FORGETFUL, flush, hold_writers
from lossy import until_available
from milepost import Message, Milepost, NewMessage, Transaction, Unavailable
from patience import until, within
from servers import Server, embedded_binaries
from support import qualified

RUNS = 10
KINDS = ("handlers", "exactly once", "consumers", "pulls")

Seen = set[tuple[int, str]]


@pytest.fixture
def forgetful() -> Iterator[Server]:
    """A server whose crash loses what was committed."""
    server = Server(embedded_binaries(), settings=FORGETFUL).create()
    yield server
    server.remove()


@pytest.fixture
def primary() -> Iterator[Server]:
    """A server that a standby can follow."""
    server = Server(embedded_binaries(), settings={"wal_keep_size": "256MB"}).create()
    yield server
    server.remove()


@asynccontextmanager
async def working(mp: Milepost, kind: str, seen: Seen) -> AsyncIterator[None]:
    """Somebody handles all messages in one of four ways, and notes them."""
    async with AsyncExitStack() as stack:
        if kind in ("consumers", "pulls"):
            await mp.create_subscription(
                "lines", category="order", tracking="all" if kind == "pulls" else "failures"
            )
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            task = tasks.create_task(consume(mp, seen) if kind == "consumers" else pull(mp, seen))
            stack.callback(task.cancel)
        else:
            subscribe(mp, kind, seen)
            await stack.enter_async_context(mp.running(grace=5))
        yield


def subscribe(mp: Milepost, kind: str, seen: Seen) -> None:
    if kind == "handlers":

        @mp.subscription("lines", category="order", lanes=4)
        async def note(message: Message[Any]) -> None:
            seen.add((message.position, message.type))

    else:

        @mp.subscription("lines", category="order", lanes=4)
        async def write(message: Message[Any], tx: Transaction) -> None:
            statement = qualified("insert into {}.effects values (%s, %s)", mp)
            await tx.execute(statement, (message.position, message.type))
            seen.add((message.position, message.type))


async def consume(mp: Milepost, seen: Seen) -> None:
    async with mp.consumer("lines", capacity=10) as consumer:
        async for delivery in consumer:
            async with delivery as message:
                seen.add((message.position, message.type))


async def pull(mp: Milepost, seen: Seen) -> None:
    while True:
        with suppress(Unavailable):
            tasks = await mp.pull("lines", wait=1)
            seen.update((task.position, task.message.type) for task in tasks)
            await mp.settle(ack=tasks)


async def append(mp: Milepost, type: str, count: int) -> Seen:
    """Appends some messages; those that were acknowledged."""
    messages = [await mp.append(f"order-{number % 7}", NewMessage(type, number)) for number in range(count)]
    return {(each.position, type) for each in messages}


async def in_the_log(mp: Milepost) -> Seen:
    """What survived and what came later."""
    return {(message.position, message.type) async for message in mp.read(category="order")}


async def until_handled(mp: Milepost, wanted: Callable[[], Seen], seen: Seen) -> None:
    async with within(60, lambda: f"missing {sorted(wanted() - seen)}"):
        while wanted() - seen:
            await asyncio.sleep(0.02)


async def until_stored(mp: Milepost) -> None:
    """Waits until nothing is left to be handled, as it is stored."""
    async with asyncio.timeout(60):
        while (await mp.manage("lines").info()).lag.positions:
            await asyncio.sleep(0.02)


async def check(mp: Milepost, kind: str, seen: Seen) -> None:
    """Everything that is in the log was handled, and took effect once."""
    await until_stored(mp)
    log = await in_the_log(mp)
    assert log <= seen
    if kind == "exactly once":
        rows = await mp.log.database.execute(qualified("select position, type from {}.effects", mp), {})
        assert Counter((row[0], row[1]) for row in rows) == Counter(log)


async def prepare(mp: Milepost) -> None:
    await mp.log.database.execute(qualified("create table {}.effects (position bigint, type text)", mp), {})


@pytest.mark.shard("faults")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("outage", [0.2, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
async def test_crashes_with_outages(forgetful: Server, kind: str, outage: float) -> None:
    """Ten times commits are lost and positions drawn again, after the server was away for a while."""
    seen: Seen = set()
    taken_back = 0
    async with Milepost(forgetful.url()) as mp:
        await prepare(mp)
        async with working(mp, kind, seen):
            for run in range(RUNS):
                kept = await append(mp, f"kept{run}", 5)
                await until(lambda kept=kept: kept <= seen, 60)  # type: ignore[misc]
                await flush(mp)
                await hold_writers(mp)
                lost = await append(mp, f"lost{run}", 40)
                await until(lambda lost=lost: lost <= seen, 60)  # type: ignore[misc]
                await asyncio.to_thread(forgetful.stop, "immediate")
                await asyncio.sleep(outage)
                await asyncio.to_thread(forgetful.start)
                async with Milepost(forgetful.url()) as direct:
                    new = await append(direct, f"new{run}", 60)
                taken_back += min(new) <= max(lost)
                await until(lambda new=new: new <= seen, 60)  # type: ignore[misc]
                await until_available(mp)
            await check(mp, kind, seen)
    assert taken_back > RUNS // 2, "the crashes took too few positions back: the test proves little"


def receiver_of(standby: Server) -> int:
    """The process of a standby that receives what the primary has written."""
    postmaster = int((standby.data / "postmaster.pid").read_text().split()[0])
    for task in Path(f"/proc/{postmaster}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"walreceiver" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise AssertionError("the standby does not follow")


async def until_followed(mp: Milepost) -> None:
    """Waits until a standby has all that was committed by now."""
    [[now]] = await mp.log.database.execute("select pg_current_wal_lsn()::text", {})
    statement = "select exists (select from pg_stat_replication where replay_lsn >= %(now)s::text::pg_lsn)"
    async with asyncio.timeout(60):
        while not (await mp.log.database.execute(statement, {"now": now}))[0][0]:
            await asyncio.sleep(0.02)


@pytest.mark.shard("faults")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_standby_that_lags_is_promoted_under_load(primary: Server, kind: str) -> None:
    """It never gets the last messages, which were handled already; appends go on all the time."""
    seen: Seen = set()
    async with Milepost(primary.url()) as mp:
        await prepare(mp)
    standby = await asyncio.to_thread(primary.copy)
    address = f"postgresql://postgres@/postgres?host={primary.folder},{standby.folder}"
    try:
        async with Milepost(address) as mp, working(mp, kind, seen):
            kept = await append(mp, "kept", 30)
            await until(lambda: kept <= seen, 60)
            await until_followed(mp)
            receiver = receiver_of(standby)
            os.kill(receiver, signal.SIGSTOP)
            lost = await append(mp, "lost", 50)
            await until(lambda: lost <= seen, 60)
            async with asyncio.TaskGroup() as group:
                load = group.create_task(appending(mp))
                await asyncio.to_thread(primary.stop, "immediate")
                os.kill(receiver, signal.SIGKILL)
                await asyncio.to_thread(standby.promote)
                async with Milepost(standby.url()) as direct:
                    new = await append(direct, "new", 60)
                await until(lambda: new <= seen, 60)
                load.cancel()
            assert min(new) <= max(lost)
            await until_available(mp)
            await check(mp, kind, seen)
    finally:
        await asyncio.to_thread(standby.remove)
        await asyncio.to_thread(primary.start)


async def appending(mp: Milepost) -> None:
    """Appends all the time, whatever comes of it."""
    while True:
        with suppress(Unavailable):
            await append(mp, "load", 10)
        await asyncio.sleep(0)


@pytest.mark.shard("faults")
@pytest.mark.timeout(300)
async def test_nothing_acknowledged_is_lost_with_synchronous_replication(primary: Server) -> None:
    """The primary is killed while 15,000 appends are under way; its standby has each that was acknowledged."""
    seen: Seen = set()
    async with Milepost(primary.url()) as mp:
        await prepare(mp)
    standby = await asyncio.to_thread(primary.copy)
    address = f"postgresql://postgres@/postgres?host={primary.folder},{standby.folder}"
    acknowledged: Seen = set()
    half = asyncio.Event()

    async def write(mp: Milepost, writer: int) -> None:
        for number in range(1500):
            while True:
                with suppress(Unavailable):
                    done = await mp.append(f"order-{writer}", NewMessage(f"w{writer}", number))
                    acknowledged.add((done.position, f"w{writer}"))
                    break
            if len(acknowledged) >= 7500:
                half.set()

    try:
        async with Milepost(address, pool_size=10) as mp:
            await mp.log.database.execute("alter system set synchronous_standby_names = '*'", {})
            await mp.log.database.execute("select pg_reload_conf()", {})
            async with working(mp, "exactly once", seen), asyncio.TaskGroup() as group:
                for writer in range(10):
                    group.create_task(write(mp, writer))
                await half.wait()
                await asyncio.to_thread(primary.stop, "immediate")
                # Its commits would wait for a standby of its own.
                async with asyncio.timeout(60):
                    await asyncio.to_thread(standby.promote)
                await asyncio.to_thread(alone, standby)
            await until_available(mp)
            assert len(acknowledged) == 15_000
            assert acknowledged <= await in_the_log(mp)
            async with mp.running():
                await check(mp, "exactly once", seen)
    finally:
        await asyncio.to_thread(standby.remove)
        await asyncio.to_thread(primary.start)


def alone(server: Server) -> None:
    """Lets a server commit without a standby."""
    with (server.data / "postgresql.auto.conf").open("a") as file:
        file.write("synchronous_standby_names = ''\n")
    server.run("pg_ctl", "-D", str(server.data), "reload")
