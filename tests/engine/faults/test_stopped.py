"""A process that stands still for longer than its lease, and goes on: it does no harm."""

import asyncio
import signal
from pathlib import Path

import pytest

from engine.faults import effects
from engine.faults.book import is_in_order
from engine.faults.chance import seeded
from engine.faults.crew import crew, until, until_owners
from engine.faults.load import Load
from engine.faults.proxy import Fate, Proxy, is_commit
from engine.faults.watch import watching
from milepost import Milepost

LEASE = 1.0
ROUNDS = 2


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
            for _ in range(ROUNDS):
                await until_owners(mp, lambda owners: owners.keys() == {stopped.pid, other.pid})
                await load.append(100, {"takes": 0.02})
                stopped.send_signal(signal.SIGSTOP)
                await load.append(50)
                await until_owners(mp, lambda owners: owners.keys() == {other.pid})
                await until_effects(mp, load.total)
                stopped.send_signal(signal.SIGCONT)
                await until_owners(mp, lambda owners: owners.keys() == {stopped.pid, other.pid})
            handled = workers.handled_by(stopped)
            await load.append(100)
            await workers.until_handled(load.total)
            await until_effects(mp, load.total)
            assert workers.handled_by(stopped) > handled
        assert await effects.read(mp) == load.once()
        wanted = load.versions()
        assert all(is_in_order(found, wanted[stream]) for stream, found in workers.book.handled().items())
        assert workers.alive == [stopped, other]


@pytest.mark.timeout(60)
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
            await until(lambda: worker.poll() is None, 1)
        assert await effects.read(mp) == load.once()
