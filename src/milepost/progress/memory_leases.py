"""Leases within one process: for tests and throw-away uses."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from milepost.progress.protocol import Share
from milepost.progress.shares import share, target


@dataclass
class _Worker:
    group: str
    lease: float
    beat: float
    wants: frozenset[int] = frozenset()


@dataclass
class LaneTable:
    """Who has which lane: one object for all workers that share lanes."""

    clock: Callable[[], float] = time.monotonic
    """In seconds."""
    workers: dict[str, _Worker] = field(default_factory=dict)
    owners: dict[tuple[int, int], str] = field(default_factory=dict)

    def lives(self, worker: str) -> bool:
        """Whether it has beaten within its lease."""
        found = self.workers.get(worker)
        return found is not None and found.beat + found.lease >= self.clock()

    def owned(self, worker: str, subscription: int) -> set[int]:
        """The lanes of a subscription that are a worker's."""
        return {lane for (of, lane), owner in self.owners.items() if of == subscription and owner == worker}

    def forget(self, worker: str) -> None:
        """A worker lives no longer, and has no lanes."""
        self.workers.pop(worker, None)
        for lane in [lane for lane, owner in self.owners.items() if owner == worker]:
            del self.owners[lane]


class MemoryLeases:
    """A worker's leases; workers of one process share lanes through one table."""

    def __init__(self, table: LaneTable | None = None) -> None:
        self._table = table if table is not None else LaneTable()
        self._id = ""
        self._group = ""
        self._lease = 0.0

    async def open(self, worker: str, group: str, lease: float) -> None:
        """This worker lives from now on."""
        self._id, self._group, self._lease = worker, group, lease
        await self.beat()

    async def beat(self) -> bool:
        """It still does. If it did not, it does again from now on, without lanes, and this is False."""
        table = self._table
        if table.lives(self._id):
            table.workers[self._id].beat = table.clock()
            return True
        table.forget(self._id)
        table.workers[self._id] = _Worker(self._group, self._lease, table.clock())
        return False

    async def balance(self, wanted: Mapping[int, int], held: Mapping[int, Collection[int]]) -> dict[int, Share]:
        """What to take and what to give; of subscriptions that are held and not wanted, all."""
        table = self._table
        for worker in [worker for worker in table.workers if not table.lives(worker)]:
            table.forget(worker)
        if self._id not in table.workers:
            return {subscription: Share(give=tuple(sorted(lanes))) for subscription, lanes in held.items()}
        table.workers[self._id].wants = frozenset(wanted)
        subscriptions = {*wanted, *held}
        return {of: self._balance(of, wanted.get(of, 0), held.get(of, ())) for of in subscriptions}

    def _balance(self, subscription: int, lanes: int, held: Collection[int]) -> Share:
        table = self._table
        others = sorted(worker for worker, found in table.workers.items() if subscription in found.wants)
        goal = target(subscription, lanes, len(others), others.index(self._id)) if lanes else 0
        owned = table.owned(self._id, subscription)
        free = [lane for lane in range(lanes) if (subscription, lane) not in table.owners]
        found = share(goal, owned, held, free)
        for lane in owned - {*found.take, *held}:
            del table.owners[subscription, lane]
        for lane in found.take:
            table.owners[subscription, lane] = self._id
        return found

    async def release(self, subscription: int, lanes: Collection[int]) -> None:
        """Others may have these."""
        for lane in lanes:
            if self._table.owners.get((subscription, lane)) == self._id:
                del self._table.owners[subscription, lane]

    async def close(self) -> None:
        """This worker no longer lives; others may have all its lanes."""
        self._table.forget(self._id)
