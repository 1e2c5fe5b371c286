"""The heart of a worker, whatever happens to its beats."""

import asyncio
import threading
from collections.abc import Collection, Mapping

import pytest

from milepost.engine.lanes.heartbeat import Heartbeat
from milepost.errors import Unavailable
from milepost.progress.protocol import LaneShare, LeaseHome, LeaseMembership

LEASE = 0.03
PATIENCE = 60.0


class FailsFirst:
    """A membership whose first beat fails, and leases that admit to it."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self._beats = 0
        self.beats_again = threading.Event()
        self.is_closed = False

    async def admit(self, worker: str, group: str, lease: float, home: LeaseHome) -> LeaseMembership:
        return self

    async def beat(self) -> bool:
        self._beats += 1
        if self._beats == 1:
            raise self._error
        self.beats_again.set()
        return True

    async def change_lease(self, lease: float) -> None: ...

    async def balance(
        self, wanted: Mapping[int, int], held: Mapping[int, Collection[int]]
    ) -> dict[int, LaneShare]:
        return {}

    async def release(self, subscription: int, lanes: Collection[int]) -> None: ...

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("error", [Unavailable("no connection"), ValueError("a defect")])
async def test_a_heart_goes_on_after_a_beat_that_failed(error: Exception) -> None:
    leases = FailsFirst(error)
    home = LeaseHome("postgresql://nowhere", "milepost")
    async with Heartbeat(leases, "w", "g", LEASE, home, is_blocked=lambda: False, exits=False):
        assert await asyncio.to_thread(leases.beats_again.wait, PATIENCE)
    assert leases.is_closed
