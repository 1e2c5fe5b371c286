"""The state of everything at a moment, from which all live pages are drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from time import monotonic

from milepost.app import Milepost
from milepost.engine.operate.info import SubscriptionInfo
from milepost.log.protocol import HorizonHolder
from milepost.progress.reports import Node
from milepost.server.access.scope_guard import ScopeGuard

MAX_WORKERS = 1000
"""Workers in a snapshot."""


@dataclass(frozen=True)
class WorkerSnapshot:
    """A process that works on subscriptions."""

    name: str
    group: str
    program: str
    beat: datetime
    silent: float
    """Seconds since it was last heard of."""
    lease: float
    lanes: int
    consumers: int

    @property
    def is_alive(self) -> bool:
        """True if it was heard of within its lease."""
        return self.silent <= self.lease


@dataclass(frozen=True)
class LogState:
    """The state of the log."""

    horizon: int
    """Everything up to there is final."""
    drawn: int
    """The last position that was drawn."""
    newest: datetime | None
    """The time of the last message."""
    holders: tuple[HorizonHolder, ...]
    """The transactions that have kept followers waiting for longer than a moment, oldest first."""


@dataclass(frozen=True)
class HorizonHold:
    """The transaction that holds the horizon, which every page shows."""

    holder: HorizonHolder
    """The oldest of them."""
    since: datetime | None
    """The start of its transaction; None if this role may not see that."""
    horizon: int
    positions: int
    """Number of positions that are held back."""
    others: int
    """Number of other transactions that hold it."""


@dataclass(frozen=True)
class OverviewSnapshot:
    """The state of everything at a moment."""

    number: int
    taken: float
    """By this process's monotonic clock."""
    at: datetime
    subscriptions: Sequence[SubscriptionInfo]
    workers: Sequence[WorkerSnapshot]
    nodes: Sequence[Node]
    """The servers on this database."""
    log: LogState

    @property
    def held(self) -> HorizonHold | None:
        """The transaction that holds the horizon, if one has for longer than a moment."""
        if not self.log.holders:
            return None
        holder, others = self.log.holders[0], len(self.log.holders) - 1
        since = None if holder.age is None else self.at - timedelta(seconds=holder.age)
        return HorizonHold(holder, since, self.log.horizon, max(0, self.log.drawn - self.log.horizon), others)

    @cached_property
    def by_address(self) -> Mapping[str, SubscriptionInfo]:
        """The subscriptions by `group/name`."""
        return {f"{info.group}/{info.name}": info for info in self.subscriptions}


async def narrow_to_scope(snapshot: OverviewSnapshot, scope_guard: ScopeGuard) -> OverviewSnapshot:
    """Return the part of a snapshot that is within a scope: subscriptions, and the workers of their groups."""
    if not scope_guard.scope.limited:
        return snapshot
    sees = await scope_guard.visible_subscriptions()
    subscriptions = [info for info in snapshot.subscriptions if sees(info.group, info.name)]
    groups = {info.group for info in subscriptions}
    workers = [worker for worker in snapshot.workers if worker.group in groups]
    return replace(snapshot, subscriptions=subscriptions, workers=workers)


class SnapshotTaker:
    """Takes snapshots of a `Milepost`, with a handful of statements each."""

    def __init__(self, mp: Milepost) -> None:
        self._mp = mp

    async def take(self, number: int) -> OverviewSnapshot:
        """Return a snapshot of now."""
        taken = monotonic()
        subscriptions = await self._mp.subscriptions()
        workers, nodes, log = await self._workers(), await self._mp.nodes(), await self._log()
        return OverviewSnapshot(number, taken, datetime.now(UTC), subscriptions, workers, nodes, log)

    async def _workers(self) -> list[WorkerSnapshot]:
        overview = self._mp.services.overview
        if overview is None:
            return []
        return [WorkerSnapshot(*worker) for worker in await overview.workers(MAX_WORKERS)]

    async def _log(self) -> LogState:
        log = self._mp.log
        await log.current_horizon(wait_for_short_appends=False)
        held = await log.held_back()
        newest = await log.fingerprints([held.drawn], nearest=True)
        return LogState(held.horizon, held.drawn, newest[0].time if newest else None, held.lasting)
