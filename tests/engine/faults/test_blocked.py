"""A handler that blocks for longer than the lease: the process still lives, and keeps its lanes."""

import asyncio
from pathlib import Path

import pytest

from engine.faults.crew import crew, owners, until, until_owners
from milepost import Milepost, NewMessage
from patience import within
from support import qualified

LEASE = 1.5


class Beats:
    """The heartbeats of a worker, which come as its lease was declared, though others wait for an hour.

    So a machine that stands still for a while takes no lane away.
    """

    def __init__(self, mp: Milepost, pid: int) -> None:
        self._mp = mp
        self._pid = f"-{pid}-"

    async def last(self) -> float:
        """When the last was, in seconds since 1970."""
        text = "select extract(epoch from beat)::float8 from {}.workers where strpos(id, %(pid)s) > 0"
        rows = await self._mp.log.database.execute(qualified(text, self._mp), {"pid": self._pid})
        return float(rows[0][0])

    async def lasts_long(self) -> None:
        """From now on others wait for an hour."""
        text = "update {}.workers set lease = interval '1 hour' where strpos(id, %(pid)s) > 0"
        await self._mp.log.database.execute(qualified(text, self._mp), {"pid": self._pid})

    async def until_after(self, moment: float) -> None:
        """Waits until it has beaten after a moment."""
        async with within(60, self.last):
            while await self.last() <= moment:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", ["lines", pytest.param("plain", marks=pytest.mark.shard("faults"))])
@pytest.mark.timeout(100)
async def test_a_blocked_process_keeps_its_lanes(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path, kind: str
) -> None:
    """`lines` blocks the loop, `plain` a thread."""
    with crew(database_url, schema, tmp_path, **{kind: {"lanes": 2, "lease": LEASE}}) as workers:
        blocked = workers.start()
        await until_owners(mp, lambda owners: owners == {blocked.pid: 2})
        beats = Beats(mp, blocked.pid)
        await beats.lasts_long()
        go_on = tmp_path / "go-on"
        await mp.append("order-1", NewMessage("placed", {"how": "block", "attempts": 1, "until": str(go_on)}))
        await until(lambda: len(workers.book.lines()) == 1)
        begun = await beats.last()
        workers.start()
        await beats.until_after(begun + LEASE)
        assert blocked.pid in await owners(mp)
        go_on.touch()
        await until(lambda: workers.book.count() == 1)
        assert blocked.pid in await owners(mp)
        await mp.append("order-1", NewMessage("placed"))
        await workers.until_handled(2)
        began = [(line.version, line.attempt) for line in workers.book.lines() if line.event == "began"]
        assert began == [(1, 1), (2, 1)]
