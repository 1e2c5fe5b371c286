"""What servers and the console show of subscriptions and of the processes that work on them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from milepost.postgres.pool import Database
from milepost.postgres.statements import Statements


class OverviewSelection(NamedTuple):
    """What a subscription selects, by its newest definition."""

    id: int
    group: str
    name: str
    selects: str
    """JSON."""


class OverviewDefinition(NamedTuple):
    """The newest definition of a subscription, and what operators set beside it."""

    number: int
    selects: str
    """JSON."""
    orders: str
    program: str
    """What declared it, and in which version."""
    since: datetime
    created: datetime
    """When the subscription was created."""
    limits: str
    """JSON."""
    replay: int
    """Positions of a replay, those that it has brought included; 0: there is none."""


class OverviewWorker(NamedTuple):
    """A process that works on subscriptions, or did and has not left."""

    name: str
    group: str
    program: str
    beat: datetime
    silent: float
    """Seconds since it was last heard of."""
    lease: float
    """Seconds of silence after which others take what it had."""
    lanes: int
    consumers: int


class PostgresOverview:
    """Looks up subscriptions and workers, each with one statement."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._statements = Statements(schema, "milepost.progress.postgres")

    async def selections(
        self, *, group: str | None = None, name: str | None = None, ids: Sequence[int] | None = None
    ) -> list[OverviewSelection]:
        """Return what subscriptions select: the one of a group and a name, or those of these ids, or all."""
        rows = await self._rows("selections", group=group, name=name, ids=ids)
        return [OverviewSelection(*row) for row in rows]

    async def definition(self, group: str, name: str) -> OverviewDefinition | None:
        """Return the newest definition of a subscription; None if there is no such subscription."""
        rows = await self._rows("definition", group=group, name=name)
        return OverviewDefinition(*rows[0]) if rows else None

    async def workers(self, limit: int) -> list[OverviewWorker]:
        """Return at most `limit` workers, with handlers or consumers, by group and name."""
        return [OverviewWorker(*row) for row in await self._rows("workers", most=limit)]

    async def _rows(self, statement: str, **parameters: Any) -> Sequence[Any]:
        return await self._database.execute(self._statements.get(statement), parameters)
