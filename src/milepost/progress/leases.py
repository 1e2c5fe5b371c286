"""How lanes are shared out among workers, and leases within one process."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from milepost.progress.protocol import LaneShare, LeaseHome


def target_lane_count(subscription: int, lanes: int, workers: int, before: int) -> int:
    """How many lanes of a subscription are a worker's, of so many that want it, so many of them before it.

    Who gets one more is another for each subscription, or one worker would have all that have one lane.
    """
    return lanes // workers + ((before + subscription) % workers < lanes % workers)


def share_lanes(goal: int, owned: Collection[int], held: Collection[int], free: Iterable[int]) -> LaneShare:
    """What to take and give, for a worker that owns some lanes and holds some of those.

    What it holds and does not own is lost; what it owns and does not hold it may take.
    """
    kept = sorted(lane for lane in held if lane in owned)
    waiting = sorted(lane for lane in owned if lane not in held)
    room = max(0, goal - len(kept))
    taken = [*waiting, *sorted(free)][:room]
    return LaneShare(take=tuple(taken), give=tuple(sorted({*kept[goal:], *(set(held) - set(owned))})))


@dataclass
class _LeasedWorker:
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
        self.workers: dict[str, _LeasedWorker] = {}
        self.owners: dict[tuple[int, int], str] = {}

    async def admit(self, worker: str, group: str, lease: float, home: LeaseHome) -> "MemoryMembership":
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
            leases.workers[self._id] = _LeasedWorker(self._lease, leases.clock())
            return False

    async def change_lease(self, lease: float) -> None:
        """Live for so many seconds after each beat, from this one on."""
        self._lease = lease
        if await self.beat():
            with self._leases.lock:
                self._leases.workers[self._id].lease = lease

    async def balance(
        self, wanted: Mapping[int, int], held: Mapping[int, Collection[int]]
    ) -> dict[int, LaneShare]:
        """What to take and what to give; of subscriptions that are held and not wanted, all."""
        leases = self._leases
        with leases.lock:
            for worker in [worker for worker in leases.workers if not leases.lives(worker)]:
                leases.forget(worker)
            if self._id not in leases.workers:
                return {subscription: LaneShare(give=tuple(sorted(lanes))) for subscription, lanes in held.items()}
            leases.workers[self._id].wants = frozenset(wanted)
            subscriptions = {*wanted, *held}
            return {of: self._balance(of, wanted.get(of, 0), held.get(of, ())) for of in subscriptions}

    def _balance(self, subscription: int, lanes: int, held: Collection[int]) -> LaneShare:
        leases = self._leases
        others = sorted(worker for worker, found in leases.workers.items() if subscription in found.wants)
        goal = target_lane_count(subscription, lanes, len(others), others.index(self._id)) if lanes else 0
        owned = leases.owned(self._id, subscription)
        free = [lane for lane in range(lanes) if (subscription, lane) not in leases.owners]
        found = share_lanes(goal, owned, held, free)
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
