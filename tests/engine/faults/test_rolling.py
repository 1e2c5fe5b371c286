"""A deploy: process after process is asked to end, and another takes its place."""

from pathlib import Path

import pytest

from engine.faults.book import overlaps
from engine.faults.chance import seeded
from engine.faults.crew import crew, until_owners
from engine.faults.load import Load
from engine.faults.watch import watching
from milepost import Milepost
from support import qualified

pytestmark = pytest.mark.shard("faults")

RESTARTS = 10


@pytest.mark.timeout(100)
async def test_rolling_restarts_count_no_attempt_and_repeat_nothing(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    with seeded() as chance, crew(database_url, schema, tmp_path, lines={"lease": 15, "lanes": 8}) as workers:
        load = Load(mp, chance)
        async with watching(database_url, schema):
            workers.start()
            workers.start()
            for _ in range(RESTARTS):
                oldest = workers.alive[0]
                await until_owners(mp, lambda owners, pid=oldest.pid: pid in owners)  # type: ignore[misc]
                await load.append(30, {"takes": 0.02})
                workers.start()
                assert await workers.stop(oldest) == 0, workers.said(oldest)
            await workers.until_handled(load.total)
        lines = workers.book.lines()
        assert {line.attempt for line in lines} == {1}
        assert workers.book.handled() == load.versions()
        assert overlaps(lines) == []
        rows = await mp.log.database.execute(qualified("select count(*) from {}.deliveries", mp), {})
        assert list(rows) == [(0,)]
