"""A process that stands still for longer than its lease, and goes on: it does no harm."""

import asyncio
import signal
from pathlib import Path

import pytest

from engine.faults import effects
from engine.faults.book import is_in_order
from engine.faults.chance import seeded
from engine.faults.crew import crew, until_owners
from engine.faults.load import Load
from engine.faults.proxy import Fate, Proxy, is_commit
from engine.faults.watch import watching
from milepost import Milepost, NewMessage
from patience import within
from support import qualified

LEASE = 1.0


async def until_effects(mp: Milepost, count: int) -> None:
    async with asyncio.timeout(30):
        while await effects.count(mp) < count:
            await asyncio.sleep(0.05)


@pytest.mark.timeout(100)
async def test_a_process_stopped_beyond_its_lease_does_no_harm(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    await effects.create(mp)
    options = {"lanes": 4, "lease": LEASE}
    with seeded() as chance, crew(database_url, schema, tmp_path, lines=options, effects=options) as workers:
        load = Load(mp, chance)
        async with watching(database_url, schema):
            stopped, other = workers.start(), workers.start()
            await until_owners(mp, lambda owners: owners.keys() == {stopped.pid, other.pid})
            await load.append(40, {"takes": 0.02})
            stopped.send_signal(signal.SIGSTOP)
            await load.append(20)
            await until_owners(mp, lambda owners: owners.keys() == {other.pid})
            await until_effects(mp, load.total)
            stopped.send_signal(signal.SIGCONT)
            await until_owners(mp, lambda owners: owners.keys() == {stopped.pid, other.pid})
            handled = workers.handled_by(stopped)
            await load.append(40)
            async with within(60, lambda: f"{workers}, wanted more of {stopped.pid}"):
                while workers.handled_by(stopped) == handled:
                    await load.append(5)
                    await asyncio.sleep(0.05)
            await workers.until_handled(load.total)
            await until_effects(mp, load.total)
        assert await effects.read(mp) == load.once()
        wanted = load.versions()
        assert all(is_in_order(found, wanted[stream]) for stream, found in workers.book.handled().items())
        assert workers.alive == [stopped, other]


@pytest.mark.timeout(60)
@pytest.mark.shard("faults")
async def test_a_process_stopped_in_the_middle_of_a_commit_is_replaced(
    mp: Milepost, proxy: Proxy, database_url: str, schema: str, tmp_path: Path
) -> None:
    """Its transaction has written the lane's progress and does not end: the server has to end it."""
    await effects.create(mp)
    options = {"lanes": 1, "lease": LEASE}
    (tmp_path / "other").mkdir()
    with (
        seeded() as chance,
        crew(proxy.url, schema, tmp_path, effects=options) as stopped,
        crew(database_url, schema, tmp_path / "other", effects=options) as others,
    ):
        load = Load(mp, chance)
        async with watching(database_url, schema):
            await load.append(5)
            worker = stopped.start()
            await until_effects(mp, load.total)
            proxy.rule = lambda frame: Fate.IS_HELD if is_commit(frame) else Fate.PASSES
            await load.append(5)
            await asyncio.wait_for(proxy.held.wait(), 20)
            worker.send_signal(signal.SIGSTOP)
            other = others.start()
            await until_owners(mp, lambda owners: owners.keys() == {other.pid})
            await until_effects(mp, load.total)
            proxy.rule = lambda frame: Fate.PASSES
            proxy.let_go()
            worker.send_signal(signal.SIGCONT)
            assert await others.stop(other) == 0
            await until_owners(mp, lambda owners: owners.keys() == {worker.pid})
            await load.append(5)
            await until_effects(mp, load.total)
            assert worker.poll() is None
        assert await effects.read(mp) == load.once()


@pytest.mark.timeout(60)
@pytest.mark.shard("faults")
async def test_what_a_stopped_process_has_locked_harms_no_message(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    """Who takes over waits for the same row: the server ends the stopped transaction before that has failed."""
    await mp.log.database.execute(qualified("create table {}.totals as select 0 as n", mp), {})
    options = {"lanes": 1, "lease": 3.0, "timeout": 4.0, "retry": {"attempts": 1}}
    (tmp_path / "other").mkdir()
    with (
        crew(database_url, schema, tmp_path, totals={**options, "waits": True}) as stopped,
        crew(database_url, schema, tmp_path / "other", totals={**options, "waits": False}) as others,
    ):
        await mp.append("order-1", NewMessage("placed"))
        worker = stopped.start()
        unlocked = qualified("select n from {}.totals for update skip locked", mp)
        async with asyncio.timeout(20):
            while await mp.log.database.execute(unlocked, {}):
                await asyncio.sleep(0.05)
        worker.send_signal(signal.SIGSTOP)
        others.start()
        settled = "select n, (select count(*) from {0}.deliveries where state = 'parked') from {0}.totals"
        async with asyncio.timeout(30):
            while (found := await mp.log.database.execute(qualified(settled, mp), {}))[0] == (0, 0):
                await asyncio.sleep(0.05)
        assert list(found) == [(1, 0)]
