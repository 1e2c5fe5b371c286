"""The log of one database: its parts, opened and closed together."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from milepost.log.message import Appended
from milepost.log.postgres.appender import send_appends
from milepost.log.postgres.catalogue import Catalogue, CatalogueKind
from milepost.log.postgres.feed import Feed
from milepost.log.postgres.horizon import Horizon
from milepost.log.postgres.reader import Reader
from milepost.log.postgres.wakeups import Wakeups
from milepost.log.protocol import (
    CataloguePage,
    Fingerprint,
    HeldBack,
    HorizonHolder,
    HorizonState,
    PreparedAppend,
    RelatedMessage,
    StreamVersion,
)
from milepost.log.query import Page, Query
from milepost.names import MAX_POSITION_NUMBER, MigrateMode
from milepost.postgres import schema
from milepost.postgres.connections import Executor, ResultRow, executor_in_loop
from milepost.postgres.pool import Database
from milepost.postgres.statements import Statements
from milepost.postgres.tokens import PostgresTokens
from milepost.ranges import Ranges

SLOW_MESSAGES_PER_SECOND = 1000
"""Messages that a slow server writes in a second; a large append gets that much more time."""


def log_statements(schema: str) -> Statements:
    """Return the log's statements for one schema."""
    return Statements(schema, "milepost.log.postgres")


class PostgresTransactionLog:
    """What can be done with a log on connections of callers: no connection of its own is needed."""

    def __init__(self, statements: Statements, reader: Reader) -> None:
        self.statements = statements
        self.reader = reader
        self._raw_reader = reader.without_classes()

    def executor(self, connection: object | None) -> Executor:
        """Return what runs statements on a caller's connection."""
        return executor_in_loop(connection)

    async def append(
        self, batches: Sequence[PreparedAppend], *, wake: bool = True, connection: object | None = None
    ) -> list[Appended]:
        """Append to one stream or several, all or nothing; the results are in the order given."""
        return await send_appends(self.executor(connection), self.statements, batches, wake=wake)

    def stream_pages(
        self,
        stream: str,
        query: Query,
        *,
        after: int = 0,
        after_version: int = 0,
        before_version: int = MAX_POSITION_NUMBER + 1,
        limit: int | None,
        connection: object | None = None,
        looked: Callable[[int], None] = lambda _: None,
    ) -> AsyncGenerator[Page, None]:
        """Yield the messages of one stream, to its last committed one or before a version, in pages."""
        return self.reader.stream_pages(
            self.executor(connection),
            stream,
            query,
            after=after,
            after_version=after_version,
            before_version=before_version,
            limit=limit,
            looked=looked,
        )

    async def messages_at(
        self,
        positions: Sequence[int],
        *,
        life: UUID | None = None,
        max_bytes: int | None = None,
        connection: object | None = None,
        raw: bool = False,
    ) -> Page:
        """Return the messages at these positions, in order, as far as they are there."""
        reader = self._raw_reader if raw else self.reader
        executor = self.executor(connection)
        if max_bytes is not None:
            return await reader.page_at(executor, positions, max_bytes)
        return await reader.messages_at(executor, positions, life=life)

    async def last_version(
        self, stream: str, *, up_to: int | None = None, connection: object | None = None
    ) -> int:
        """Return the highest version of a stream, or the highest at or below a position; 0 if none is."""
        executor = self.executor(connection)
        if up_to is None:
            rows = await executor.execute(self.statements.get("last_version"), {"stream": stream})
        else:
            statement = self.statements.get("version_up_to")
            rows = await executor.execute(statement, {"stream": stream, "position": up_to})
        return int(rows[0][0])


class PostgresLog(PostgresTransactionLog):
    """A log in a schema of a PostgreSQL database; see `milepost.log.protocol.Log` for what its methods promise."""

    def __init__(self, database: Database, statements: Statements, reader: Reader) -> None:
        super().__init__(statements, reader)
        self.database = database
        self.horizon = Horizon(database, statements)
        self.wakeups = Wakeups(database, statements)
        self.feed = Feed(database, statements, self.horizon, reader, self.wakeups)
        self._catalogue = Catalogue(database, statements)

    async def open(self, migrate: MigrateMode) -> None:
        """Connect, and bring or check the schema; raise `SchemaMismatch` if this program does not fit it."""
        await self.database.open()
        try:
            async with self.database.connection() as connection:
                await schema.prepare(connection, self.statements.schema, migrate)
        except BaseException:
            await self.database.close()
            raise

    async def close(self) -> None:
        """End all following and all connections."""
        await self.feed.close()
        await self.horizon.close()
        await self.database.close()

    async def identity(self) -> UUID:
        """Return what tells this log from others; it stays the same when the log is restored from a backup."""
        found: UUID = (await self._rows("identity"))[0][0]
        return found

    def executor(self, connection: object | None) -> Executor:
        """Return what runs statements on a caller's connection, or on the log's own where there is none."""
        return self.database if connection is None else super().executor(connection)

    async def _rows(self, name: str, **parameters: Any) -> Sequence[ResultRow]:
        return await self.database.execute(self.statements.get(name), parameters)

    async def append(
        self, batches: Sequence[PreparedAppend], *, wake: bool = True, connection: object | None = None
    ) -> list[Appended]:
        """Append to one stream or several; a large append may take longer."""
        if connection is not None or (count := sum(batch.count for batch in batches)) == 1:
            return await super().append(batches, wake=wake, connection=connection)
        seconds = self.database.statement_seconds + count / SLOW_MESSAGES_PER_SECOND
        return await send_appends(self.database.within(seconds), self.statements, batches, wake=wake)

    def limit_statement_time(self, lease: float) -> None:
        """End statements of the log before a lease does that depends on them."""
        self.database.limit_statement_time(lease)

    # Read

    async def page(
        self, query: Query, *, low: int, high: int, limit: int, life: UUID | None, raw: bool = False
    ) -> Page:
        """Return messages with `low < position <= high`; none if the server has another life."""
        reader = self._raw_reader if raw else self.feed.history.reader
        return await reader.log_page(self.database, query, low=low, high=high, limit=limit, life=life)

    def pages(
        self,
        query: Query,
        *,
        low: int,
        high: int,
        limit: int | None,
        life: UUID | None,
        looked: Callable[[int], None] = lambda _: None,
    ) -> AsyncGenerator[Page, None]:
        """Yield all messages with `low < position <= high`, both of them final, in pages."""
        return self.reader.log_pages(
            self.database, query, low=low, high=high, limit=limit, life=life, looked=looked
        )

    async def streams_at(self, positions: Sequence[int]) -> list[StreamVersion]:
        """Return stream and version of the messages at these positions, as far as they are there."""
        rows = await self._rows("streams_at", positions=list(positions))
        return [StreamVersion(*row) for row in rows]

    async def find(self, id: UUID, *, limit: int) -> list[int]:
        """Return the positions of messages with this id, in order."""
        return [position for (position,) in await self._rows("positions_of_id", id=id, limit=limit)]

    async def stream_positions(self, stream: str, *, limit: int) -> list[StreamVersion]:
        """Return where the first messages of a stream stand, in order."""
        rows = await self._rows("positions_of_stream", stream=stream, limit=limit)
        return [StreamVersion(position, stream, version) for version, position in rows]

    async def position_before(self, time: datetime) -> int:
        """Return the position before the first committed message of this time or later."""
        return int((await self._rows("position_before", since=time))[0][0])

    async def count(self, above: int, up_to: int) -> int:
        """Return how many messages are between two positions, the second included, however long that takes."""
        statement, parameters = self.statements.get("count_between"), {"above": above, "up_to": up_to}
        return int((await self.database.within(None).execute(statement, parameters))[0][0])

    async def oldest_ages(self, sets: Mapping[int, Sequence[tuple[int, int]]]) -> dict[int, float]:
        """Return for each set of ranges of positions the age in seconds of its first message, if it has one."""
        wanted = [
            {"number": number, "lows": [low for low, _ in ranges], "highs": [high for _, high in ranges]}
            for number, ranges in sets.items()
            if ranges
        ]
        if not wanted:
            return {}
        rows = await self._rows("oldest_within", sets=msgspec.json.encode(wanted).decode())
        return {number: float(age) for number, age in rows}

    # The horizon

    @property
    def known_horizon(self) -> HorizonState:
        """The horizon as it was last looked at."""
        return HorizonState(self.horizon.position, self.horizon.drawn, self.horizon.life)

    async def current_horizon(self, *, wait_for_short_appends: bool = True) -> HorizonState:
        """Look at the horizon now."""
        await (self.horizon.look() if wait_for_short_appends else self.horizon.sample())
        return self.known_horizon

    async def is_in_life(self, life: UUID | None) -> bool:
        """Return True if the server still has this life."""
        rows = await self._rows("current_life")
        return bool(rows) and rows[0][0] == life

    async def horizon_holders(self) -> list[HorizonHolder]:
        """Return the transactions that may hold the horizon now, the oldest first."""
        return await self.horizon.holders()

    async def held_back(self) -> HeldBack:
        """Return what lies beyond the horizon as it was last looked at, and who holds it there."""
        return await self.horizon.held_back()

    async def visible_above(self, position: int) -> Ranges:
        """Return the positions above this one whose messages are committed."""
        rows = await self._rows("visible_above", horizon=position)
        return Ranges((low, high) for low, high in rows)

    async def fingerprints(self, positions: Sequence[int], *, nearest: bool = False) -> list[Fingerprint]:
        """Return what identifies the messages at these positions, or at the nearest ones below."""
        rows = await self._rows("marks_up_to" if nearest else "marks_at", positions=list(positions))
        return [Fingerprint(*row) for row in rows]

    # What is there

    async def catalogue(
        self,
        kind: CatalogueKind,
        *,
        prefix: str = "",
        after: str = "",
        within: Sequence[str] | None = None,
        limit: int,
        newest: int = 0,
    ) -> CataloguePage:
        """Return names that begin with a prefix, from `after` on."""
        return await self._catalogue.page(kind, prefix, after, within, limit=limit, newest=newest)

    async def related(
        self, correlation: str, id: UUID, *, low: int, below: int, above: int, high: int, limit: int
    ) -> list[RelatedMessage]:
        """Return messages with this correlation id, or caused by the message with this id, in order."""
        return await self._catalogue.related(
            correlation, id, low=low, below=below, above=above, high=high, limit=limit
        )

    # What is beside the log in its schema

    @property
    def tokens(self) -> PostgresTokens:
        """The tokens of the server."""
        return PostgresTokens(self.database, self.statements.schema)

    async def schema_status(self) -> schema.SchemaStatus:
        """Return which migrations the schema has. For this the log may be opened with `migrate` "off"."""
        async with self.database.connection() as connection:
            return await schema.status(connection, self.statements.schema)

    async def migrate_schema(self) -> list[schema.Migration]:
        """Bring the schema to what this program needs, and return what was added. Any number may do it at once."""
        async with self.database.connection() as connection:
            return await schema.migrate(connection, self.statements.schema)
