"""A handler that blocks for longer than the lease: the process still lives, and keeps its lanes."""

from pathlib import Path

import pytest

from engine.faults.crew import crew, owners, until, until_owners
from milepost import Milepost, NewMessage

LEASE = 5.0


@pytest.mark.parametrize("kind", ["lines", pytest.param("plain", marks=pytest.mark.shard("faults"))])
@pytest.mark.timeout(100)
async def test_a_blocked_process_keeps_its_lanes(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path, kind: str
) -> None:
    """`lines` blocks the loop, `plain` a thread."""
    with crew(database_url, schema, tmp_path, **{kind: {"lanes": 2, "lease": LEASE}}) as workers:
        blocked = workers.start()
        await until_owners(mp, lambda owners: owners == {blocked.pid: 2})
        wish = {"how": "block", "attempts": 1, "seconds": 2 * LEASE}
        await mp.append("order-1", NewMessage("placed", wish))
        await until(lambda: len(workers.book.lines()) == 1)
        workers.start()
        await until(lambda: workers.book.count() == 1)
        assert blocked.pid in await owners(mp)
        await mp.append("order-1", NewMessage("placed"))
        await workers.until_handled(2)
        began = [(line.version, line.attempt) for line in workers.book.lines() if line.event == "began"]
        assert began == [(1, 1), (2, 1)]
