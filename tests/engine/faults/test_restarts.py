"""PostgreSQL that ends and comes back, while messages flow."""

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from engine.faults import effects
from engine.faults.book import is_in_order, overlaps
from engine.faults.chance import seeded
from engine.faults.crew import crew, until
from engine.faults.load import Load
from engine.faults.watch import watching
from milepost import Message, Milepost, NewMessage, Unavailable
from milepost.engine.pull.claims import PulledDeliveries
from patience import within
from servers import Server, embedded_binaries
from support import qualified

FORGETFUL = {"synchronous_commit": "off", "wal_writer_delay": "10000"}
"""Commits answer before they are on disk, and stay off it until somebody asks: a crash loses them."""


async def until_back(mp: Milepost) -> None:
    """Waits until the pool has connections again."""
    async with asyncio.timeout(30):
        while True:
            try:
                await mp.log.database.execute("select 1", {})
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                return


@pytest.mark.parametrize("mode", [pytest.param("fast", marks=pytest.mark.shard("faults")), "immediate"])
@pytest.mark.timeout(100)
async def test_a_worker_outlives_a_restart_of_the_server(server: Server, mode: str, tmp_path: Path) -> None:
    async with Milepost(server.url()) as mp:
        await effects.create(mp)
        with seeded() as chance, crew(server.url(), "milepost", tmp_path, lines={}, effects={}) as workers:
            load = Load(mp, chance)
            worker = workers.start()
            async with watching(server.url(), "milepost"):
                for turn in range(1, 3):
                    await load.append(50, {"takes": 0.01})
                    await workers.until_handled(50 * turn - 40)
                    await asyncio.to_thread(server.stop, mode)
                    await asyncio.to_thread(server.start)
                    await until_back(mp)
                await load.append(20)
                await workers.until_handled(load.total)
                await effects.until_all(mp, load)
            assert workers.alive == [worker], workers.said(worker)
            assert await effects.read(mp) == load.once()
            wanted = load.versions()
            assert all(is_in_order(found, wanted[stream]) for stream, found in workers.book.handled().items())
            assert overlaps(workers.book.lines()) == []


@pytest.fixture
def forgetful() -> Iterator[Server]:
    """A server whose crash loses what was committed."""
    server = Server(embedded_binaries(), settings=FORGETFUL).create()
    yield server
    server.remove()


async def flush(mp: Milepost) -> None:
    """Brings to disk what was committed so far."""
    async with mp.log.database.connection() as connection, connection.transaction():
        await connection.execute("set local synchronous_commit = on")
        await connection.execute("create temporary table flushed () on commit drop")


async def hold_writers(mp: Milepost) -> None:
    """Stops the processes of the server that bring commits to disk by themselves; the crash ends them."""
    kinds = {"kinds": ["walwriter", "background writer"]}
    statement = "select pid from pg_stat_activity where backend_type = any(%(kinds)s)"
    for (pid,) in await mp.log.database.execute(statement, kinds):
        os.kill(pid, signal.SIGSTOP)


async def append_to_server(url: str, count: int) -> list[int]:
    """Appends before the workers have found the server again."""
    async with Milepost(url) as direct:
        return [
            (await direct.append(f"order-{number % 7}", NewMessage("new"))).position for number in range(count)
        ]


@pytest.mark.timeout(60)
async def test_what_takes_the_place_of_lost_messages_is_handled(forgetful: Server) -> None:
    """A crash with asynchronous commit takes positions back: a worker had handled messages that are gone."""
    async with Milepost(forgetful.url()) as mp:
        seen: list[tuple[int, str]] = []

        @mp.subscription("lines", category="order", lanes=4, lease=3)
        async def handle(message: Message[Any]) -> None:
            seen.append((message.position, message.type))

        async with mp.running():
            for _ in range(5):
                await mp.append("order-1", NewMessage("kept"))
                await flush(mp)
                await hold_writers(mp)
                last = [await mp.append(f"order-{number % 7}", NewMessage("lost")) for number in range(40)][-1]
                await until(lambda last=last: (last.position, "lost") in seen)  # type: ignore[misc]
                await asyncio.to_thread(forgetful.crash)
                new = await append_to_server(forgetful.url(), 60)
                await until(lambda new=new: {(position, "new") for position in new} <= set(seen))  # type: ignore[misc]
                if new[0] <= last.position:
                    return
                await until_back(mp)
        pytest.fail("no crash took positions back: the test proves nothing")


async def pull(mp: Milepost) -> PulledDeliveries:
    """What there is. A connection that the restart has ended may be found out only now."""
    async with asyncio.timeout(30):
        while True:
            with suppress(Unavailable):
                return await mp.pull("jobs")


@pytest.mark.parametrize("mode", [pytest.param("fast", marks=pytest.mark.shard("faults")), "immediate"])
@pytest.mark.timeout(60)
async def test_whoever_pulls_goes_on_after_a_restart(server: Server, mode: str) -> None:
    async with Milepost(server.url()) as mp:
        await mp.create_subscription("jobs", category="order", tracking="all")
        appended = [(await mp.append(f"order-{number}", NewMessage("new"))).position for number in range(20)]
        before = await mp.pull("jobs", limit=5)
        await flush(mp)
        await asyncio.to_thread(server.stop, mode)
        await asyncio.to_thread(server.start)
        await until_back(mp)
        assert (await mp.settle(ack=before)).moved == tuple(before)
        after = await pull(mp)
        assert [task.position for task in (*before, *after)] == appended


@pytest.mark.parametrize("mode", ["fast", "immediate"])
@pytest.mark.shard("faults")
async def test_also_when_only_the_log_was_restarted(
    server: Server, mode: str, database_url: str, schema: str
) -> None:
    async with Milepost(server.url(), progress=database_url, schema=schema) as mp:
        await mp.create_subscription("jobs", category="order", tracking="all")
        await mp.append("order-1", [NewMessage("new")] * 50)
        pulled = [*await mp.pull("jobs", limit=5)]
        await asyncio.to_thread(server.stop, mode)
        await asyncio.to_thread(server.start)
        await until_back(mp)
        while len(pulled) < 50:
            pulled += await pull(mp)
        assert [task.position for task in pulled] == list(range(1, 51))


@pytest.mark.timeout(60)
@pytest.mark.shard("faults")
async def test_a_claim_that_a_crash_undoes_is_made_again(server: Server) -> None:
    """A pull does not wait for the disk. Nothing is lost with it; what was pulled cannot be settled any more."""
    async with Milepost(server.url()) as mp:
        await mp.create_subscription("jobs", category="order", tracking="all")
        appended = [(await mp.append(f"order-{number}", NewMessage("new"))).position for number in range(20)]
        done = await mp.pull("jobs", limit=5)
        await mp.settle(ack=done)
        await hold_writers(mp)
        lost = await mp.pull("jobs", limit=10)
        await asyncio.to_thread(server.stop, "immediate")
        await asyncio.to_thread(server.start)
        await until_back(mp)
        again = await pull(mp)
        assert [task.position for task in again] == appended[5:]
        settled = await mp.settle(ack=[*lost, *again])
        assert (settled.moved, settled.refused) == (tuple(again), tuple(lost))
        assert await mp.pull("jobs") == ()


async def epochs(mp: Milepost) -> dict[int, int]:
    """Under which epoch each lane was last taken."""
    rows = await mp.log.database.execute(
        qualified("select lane, max(epoch) from {}.cursors group by lane", mp), {}
    )
    return dict(rows)


async def test_lanes_of_an_earlier_life_are_taken_anew(mp: Milepost) -> None:
    """Though no connection was lost, as behind a pooler: what is known of them may never have been."""
    seen: dict[str, list[int]] = defaultdict(list)

    @mp.subscription("lines", category="order", lanes=4)
    async def handle(message: Message[Any]) -> None:
        seen[message.stream].append(message.version)

    async def handle_one_more() -> None:
        streams = [f"order-{number}" for number in range(20)]
        versions = [(await mp.append(stream, NewMessage("placed"))).version for stream in streams]
        await until(lambda: [max(seen[stream], default=0) for stream in streams] == versions)

    async def until_taken_after(before: dict[int, int]) -> None:
        async with within(30, lambda: epochs(mp)):
            while not all(epoch > before[lane] for lane, epoch in (await epochs(mp)).items()):
                await asyncio.sleep(0.01)

    async with mp.running():
        await handle_one_more()
        before = await epochs(mp)
        await mp.log.database.execute(qualified("update {}.server_life set token = gen_random_uuid()", mp), {})
        await handle_one_more()
        await until_taken_after(before)
        await handle_one_more()
    assert len(before) == 4
    assert all(is_in_order(versions, [1, 2, 3]) for versions in seen.values())
