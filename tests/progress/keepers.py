"""Each way to keep progress, with the same small handles for tests: another process, a person, the clock."""

from typing import Any, Protocol

import psycopg
from psycopg import sql

from milepost.dispatch import Cursor, State
from milepost.postgres import schema as schemas
from milepost.postgres.pool import Connection, Database
from milepost.progress.memory import MemoryProgress
from milepost.progress.postgres.progress import PostgresProgress
from milepost.progress.protocol import Progress


class Keeper(Protocol):
    """A store of progress."""

    progress: Progress

    async def another(self) -> Progress:
        """The same as another process sees it."""
        ...

    async def person(self, subscription: int, position: int, state: State) -> None:
        """A person changes a row."""
        ...

    async def advance(self, seconds: float) -> None:
        """Time passes."""
        ...

    async def close(self) -> None: ...


class MemoryKeeper:
    """Progress in memory."""

    def __init__(self) -> None:
        self._now = 1_000_000.0
        self.memory = MemoryProgress(lambda: self._now)
        self.progress: Progress = self.memory

    async def another(self) -> Progress:
        return self.progress

    async def person(self, subscription: int, position: int, state: State) -> None:
        now = self._now
        self.change(subscription, position, state=state, due=now, since=now)

    async def advance(self, seconds: float) -> None:
        self._now += seconds

    def change(self, subscription: int, position: int, **changes: Any) -> None:
        """Change a row as a person does: one revision further."""
        for lane in self.memory._subscriptions[subscription].lanes:
            if (row := lane.rows.get(position)) is not None:
                lane.rows[position] = row.changed(**changes, revision=row.revision + 1)
                return
        raise KeyError(position)

    def memory_move(self, subscription: int, lane: int, position: int) -> int:
        """A person moves a lane's cursor; the new epoch."""
        self.memory._epochs += 1
        found = self.memory._subscriptions[subscription].lanes[lane]
        found.epoch, found.cursor = self.memory._epochs, Cursor(position)
        found.revision += 1
        found.rows = {at: row for at, row in found.rows.items() if at <= position}
        return found.epoch

    async def close(self) -> None:
        pass


class PostgresKeeper:
    """Progress in PostgreSQL."""

    def __init__(self, url: str, schema: str) -> None:
        self.url = url
        self.schema = schema
        self.database = Database(url, pool_size=4)
        self.progress: Progress = PostgresProgress(self.database, schema)
        self._others: list[Database] = []
        self._offset = 0.0

    async def open(self) -> "PostgresKeeper":
        await self.database.open()
        async with self.database.connection() as connection:
            await schemas.migrate(connection, self.schema)
        await self.progress.open()
        return self

    async def another(self) -> Progress:
        return PostgresProgress(await self.other_database(), self.schema)

    async def other_database(self) -> Database:
        database = Database(self.url, pool_size=2)
        await database.open()
        self._others.append(database)
        return database

    async def person(self, subscription: int, position: int, state: State) -> None:
        await self.run(
            "update {}.deliveries set state = %(state)s, due = {}.clock(), since = {}.clock(), "
            "revision = revision + 1 where subscription = %(subscription)s and position = %(position)s",
            state=state,
            subscription=subscription,
            position=position,
        )

    async def advance(self, seconds: float) -> None:
        self._offset += seconds
        await self.run(
            "create or replace function {}.clock() returns timestamptz language sql volatile parallel safe "
            f"as $$ select clock_timestamp() + interval '{self._offset} s' $$"
        )

    async def close(self) -> None:
        for database in (self.database, *self._others):
            await database.close()

    def qualified(self, text: str) -> str:
        """The statement with the schema's name for each `{}`."""
        return sql.SQL(text).format(*[sql.Identifier(self.schema)] * text.count("{}")).as_string(None)

    async def run(self, text: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Runs a statement of the test's own."""
        return [*await self.database.execute(self.qualified(text), parameters)]

    async def connect(self) -> Connection:
        """A connection in a transaction, as a handler has it."""
        return await psycopg.AsyncConnection.connect(self.url)
