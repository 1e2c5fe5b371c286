"""How everything stands at a moment: what all pages that follow are drawn from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from time import monotonic

from milepost.app import Milepost
from milepost.engine.info import SubscriptionInfo
from milepost.log.horizon import NAME_AFTER, Holder
from milepost.log.statements import Statements
from milepost.progress.nodes import Node

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
    """Who has kept followers waiting for longer than a moment."""


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

    @cached_property
    def by_address(self) -> Mapping[str, SubscriptionInfo]:
        """Each by its `group/name`."""
        return {f"{info.group}/{info.name}": info for info in self.subscriptions}


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
        holders: tuple[Holder, ...] = ()
        if is_called and drawn > log.horizon.position:
            rows = await log.database.execute(log.statements.get("holders"), {})
            found = (Holder(*row) for row in rows)
            holders = tuple(holder for holder in found if holder.age is None or holder.age > NAME_AFTER)
        return LogState(log.horizon.position, drawn if is_called else 0, newest, holders)
