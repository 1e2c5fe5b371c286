"""Leases within one process: for tests and for programs that are alone."""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from milepost.progress.protocol import Home, Share
from milepost.progress.shares import share, target


@dataclass
class _Worker:
    lease: float
    beat: float
    wants: frozenset[int] = frozenset()


class MemoryLeases:
    """Leases in memory: one object for all programs of a process that share lanes.

    Args:
        clock: Seconds that only grow. Defaults to `time.monotonic`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        # Each worker beats in a thread of its own.
        self.lock = threading.Lock()
        self.workers: dict[str, _Worker] = {}
        self.owners: dict[tuple[int, int], str] = {}

    async def admit(self, worker: str, group: str, lease: float, home: Home) -> "MemoryMembership":
        """This worker lives from now on, for `lease` seconds after each beat."""
        membership = MemoryMembership(self, worker, lease)
        await membership.beat()
        return membership

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


class MemoryMembership:
    """One worker."""

    def __init__(self, leases: MemoryLeases, worker: str, lease: float) -> None:
        self._leases = leases
        self._id = worker
        self._lease = lease

    async def beat(self) -> bool:
        """It still lives. If it did not, it does again from now on, without lanes, and this is False."""
        leases = self._leases
        with leases.lock:
            if leases.lives(self._id):
                leases.workers[self._id].beat = leases.clock()
                return True
            leases.forget(self._id)
            leases.workers[self._id] = _Worker(self._lease, leases.clock())
            return False

    async def change_lease(self, lease: float) -> None:
        """Live for so many seconds after each beat, from this one on."""
        self._lease = lease
        if await self.beat():
            with self._leases.lock:
                self._leases.workers[self._id].lease = lease

    async def balance(self, wanted: Mapping[int, int], held: Mapping[int, Collection[int]]) -> dict[int, Share]:
        """What to take and what to give; of subscriptions that are held and not wanted, all."""
        leases = self._leases
        with leases.lock:
            for worker in [worker for worker in leases.workers if not leases.lives(worker)]:
                leases.forget(worker)
            if self._id not in leases.workers:
                return {subscription: Share(give=tuple(sorted(lanes))) for subscription, lanes in held.items()}
            leases.workers[self._id].wants = frozenset(wanted)
            subscriptions = {*wanted, *held}
            return {of: self._balance(of, wanted.get(of, 0), held.get(of, ())) for of in subscriptions}

    def _balance(self, subscription: int, lanes: int, held: Collection[int]) -> Share:
        leases = self._leases
        others = sorted(worker for worker, found in leases.workers.items() if subscription in found.wants)
        goal = target(subscription, lanes, len(others), others.index(self._id)) if lanes else 0
        owned = leases.owned(self._id, subscription)
        free = [lane for lane in range(lanes) if (subscription, lane) not in leases.owners]
        found = share(goal, owned, held, free)
        for lane in owned - {*found.take, *held}:
            del leases.owners[subscription, lane]
        for lane in found.take:
            leases.owners[subscription, lane] = self._id
        return found

    async def release(self, subscription: int, lanes: Collection[int]) -> None:
        """Others may have these."""
        leases = self._leases
        with leases.lock:
            for lane in lanes:
                if leases.owners.get((subscription, lane)) == self._id:
                    del leases.owners[subscription, lane]

    async def close(self) -> None:
        """This worker no longer lives; others may have all its lanes."""
        with self._leases.lock:
            self._leases.forget(self._id)
