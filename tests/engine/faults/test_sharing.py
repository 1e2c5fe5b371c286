"""Workers come, go and die; the others share their lanes."""

from pathlib import Path

import pytest

from engine.faults import effects
from engine.faults.chance import seeded
from engine.faults.crew import crew, until_owners
from engine.faults.load import Load
from engine.faults.watch import watching
from milepost import Milepost
from support import qualified

pytestmark = pytest.mark.shard("faults")

LANES = 16
LEASE = 6.0


def is_even(owners: dict[int, int], workers: int) -> bool:
    """Whether so many have the same number of lanes, give or take one, and nobody else has any."""
    lanes = owners.values()
    return 0 not in owners and len(owners) == workers and sum(lanes) == LANES and max(lanes) - min(lanes) <= 1


@pytest.mark.timeout(100)
async def test_workers_share_lanes_evenly_as_they_come_and_go(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    """With a lease of half a minute, which is not waited for."""
    with crew(database_url, schema, tmp_path, lines={"lanes": LANES}) as workers:
        for number in range(1, 4):
            workers.start()
            await until_owners(mp, lambda owners, number=number: is_even(owners, number))  # type: ignore[misc]
        assert await workers.stop(workers.alive[0]) == 0
        await until_owners(mp, lambda owners: is_even(owners, 2))


@pytest.mark.timeout(100)
async def test_an_expired_owner_is_replaced_and_not_before_its_lease_ends(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    with crew(database_url, schema, tmp_path, lines={"lanes": LANES, "lease": LEASE}) as workers:
        killed, other = workers.start(), workers.start()
        await until_owners(mp, lambda owners: is_even(owners, 2))
        killed.kill()
        killed.wait()
        beat = qualified(f"select beat from {{}}.workers where id like '%-{killed.pid}-%'", mp)
        rows = await mp.log.database.execute(beat.replace("%-", "%%-").replace("-%'", "-%%'"), {})
        await until_owners(mp, lambda owners: owners == {other.pid: LANES})
        taken = await mp.log.database.execute(qualified("select max(since) from {}.lanes", mp), {})
        assert (taken[0][0] - rows[0][0]).total_seconds() >= LEASE


@pytest.mark.timeout(100)
async def test_a_lane_given_away_in_the_middle_of_a_transaction_takes_effect_once(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    """The transaction of many messages takes longer than a hand-over waits for one."""
    await effects.create(mp)
    options = {"lanes": 2, "lease": LEASE, "timeout": 0.3}
    with seeded() as chance, crew(database_url, schema, tmp_path, effects=options) as workers:
        load = Load(mp, chance, streams=100)
        for _ in range(120):
            await load.append(1, {"how": "raise", "attempts": 1})
            await load.append(3, {"takes": 0.02})
        workers.start()
        await until_owners(mp, lambda owners: owners == {workers.workers[0].pid: 2})
        workers.start()
        async with watching(database_url, schema):
            await until_owners(mp, lambda owners: set(owners.values()) == {1})
            await effects.until_all(mp, load, 40)
        assert await effects.read(mp) == load.once()
