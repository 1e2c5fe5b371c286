"""How everything stands at a moment: what all pages that follow are drawn from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from time import monotonic

from milepost.app import Milepost
from milepost.engine.info import SubscriptionInfo
from milepost.log.horizon import Holder
from milepost.log.statements import Statements
from milepost.progress.nodes import Node
from milepost.server.access.reach import Reach

MOST_WORKERS = 1000
"""Workers that are looked at."""


@dataclass(frozen=True)
class Worker:
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
    def lives(self) -> bool:
        """Whether it may be taken to."""
        return self.silent <= self.lease


@dataclass(frozen=True)
class LogState:
    """How the log stands."""

    horizon: int
    """Everything up to there is final."""
    drawn: int
    """The last position that anybody has got."""
    newest: datetime | None
    """When the last message was appended."""
    holders: tuple[Holder, ...]
    """Who has kept followers waiting for longer than a moment; the oldest first."""


@dataclass(frozen=True)
class Held:
    """Who keeps the horizon where it is, as every page says."""

    holder: Holder
    """The oldest of them."""
    since: datetime | None
    """When its transaction began; None: this role may not see that."""
    horizon: int
    positions: int
    """How many are held back."""
    others: int
    """How many more hold it."""


@dataclass(frozen=True)
class Snapshot:
    """How everything stood."""

    number: int
    taken: float
    """By this process's monotonic clock."""
    at: datetime
    subscriptions: Sequence[SubscriptionInfo]
    workers: Sequence[Worker]
    nodes: Sequence[Node]
    """The servers on this database."""
    log: LogState

    @property
    def held(self) -> Held | None:
        """Who holds the horizon, if somebody has for longer than a moment."""
        if not self.log.holders:
            return None
        holder, others = self.log.holders[0], len(self.log.holders) - 1
        since = None if holder.age is None else self.at - timedelta(seconds=holder.age)
        return Held(holder, since, self.log.horizon, max(0, self.log.drawn - self.log.horizon), others)

    @cached_property
    def by_address(self) -> Mapping[str, SubscriptionInfo]:
        """Each by its `group/name`."""
        return {f"{info.group}/{info.name}": info for info in self.subscriptions}


async def narrowed(snapshot: Snapshot, reach: Reach) -> Snapshot:
    """Return the part of a snapshot that is within a scope: subscriptions, and the workers of their groups."""
    if not reach.scope.limited:
        return snapshot
    sees = await reach.sees()
    subscriptions = [info for info in snapshot.subscriptions if sees(info.group, info.name)]
    groups = {info.group for info in subscriptions}
    workers = [worker for worker in snapshot.workers if worker.group in groups]
    return replace(snapshot, subscriptions=subscriptions, workers=workers)


class Observer:
    """Takes snapshots of what a `Milepost` sees: a handful of statements each."""

    def __init__(self, mp: Milepost) -> None:
        self._mp = mp

    async def look(self, number: int) -> Snapshot:
        """How everything stands now."""
        taken = monotonic()
        subscriptions = await self._mp.subscriptions()
        workers, nodes, log = await self._workers(), await self._mp.nodes(), await self._log()
        return Snapshot(number, taken, datetime.now(UTC), subscriptions, workers, nodes, log)

    def _statements(self) -> Statements:
        return Statements(self._mp.settings["schema"].value, "milepost.console")

    async def _workers(self) -> list[Worker]:
        database = self._mp.services.database
        if database is None:
            return []
        rows = await database.execute(self._statements().get("workers"), {"most": MOST_WORKERS})
        return [Worker(*row) for row in rows]

    async def _log(self) -> LogState:
        log = self._mp.log
        [[drawn, is_called, newest]] = await log.database.execute(self._statements().get("log"), {})
        held = await log.horizon.held_back()
        return LogState(held.horizon, drawn if is_called else 0, newest, held.lasting)
