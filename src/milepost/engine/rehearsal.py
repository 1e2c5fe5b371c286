"""A handler's transaction that is rolled back, and what it would have come to."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psycopg

from milepost.engine.exactly_once import FIRST, IMMEDIATE, ISOLATION, LAST, UNDO
from milepost.engine.transaction import CannotAppend, Transaction
from milepost.errors import MilepostError
from milepost.log.appender import Appender, several
from milepost.log.connections import executor_of
from milepost.log.database import Connection, Database
from milepost.log.statements import Statements

CHECK = IMMEDIATE
"""A handler may have put off constraints until the commit, which never comes here."""

_NO_SAVEPOINT = (psycopg.errors.NoActiveSqlTransaction, psycopg.errors.InvalidSavepointSpecification)
_STATEMENTS = Statements("pg_catalog", "milepost.engine")


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a table that were written."""

    table: str
    inserted: int
    updated: int
    deleted: int


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """An append that was asked for."""

    stream: str
    types: list[str]


class Rehearsal:
    """A transaction on a connection of its own. Appends are asked for in it and sent at its end."""

    def __init__(self, connection: Connection, appender: Appender | None) -> None:
        self._connection = connection
        self._appender = appender
        self._appends: list[Mapping[str, Any]] = []
        self._refused: CannotAppend | None = None
        self.transaction = Transaction(connection, self._append)
        """What the handler gets."""
        self.committed = False
        """Whether the handler ended the transaction by itself, so that nothing is left to roll back."""
        self.writes: Sequence[Written] | None = None
        """What was written, also by a handler that failed in the end; None: nobody knows."""

    @classmethod
    @asynccontextmanager
    async def on(cls, database: Database, appender: Appender | None, isolation: str) -> "AsyncIterator[Rehearsal]":
        """Begins with the block, and rolls back at its end. Without an appender nothing can be appended."""
        async with await database.connect() as connection:
            try:
                async with connection.transaction(force_rollback=True):
                    await connection.execute(ISOLATION.get(isolation, b"") + FIRST, prepare=False)
                    yield cls(connection, appender)
            except psycopg.OperationalError:
                # A connection that is lost has rolled back, too.
                if not connection.broken:
                    raise

    @property
    def appends(self) -> list[Asked]:
        """What was asked to be appended."""
        return [
            Asked(stream=asked["stream"], types=[each["type"] for each in msgspec.json.decode(asked["messages"])])
            for asked in self._appends
        ]

    async def conclude(self, error: BaseException | None) -> BaseException | None:
        """The handler has returned, or raised this; returns what the transaction would have failed with."""
        self.transaction.end()
        if self._connection.broken:
            return error
        # Also where the handler hid it: a worker would see it.
        error = await self._left(self._refused if error is None else error)
        if self.committed:
            return error
        self.writes = await self._written()
        if error is not None:
            self._appends.clear()
            return error
        return await self._sent()

    async def _left(self, error: BaseException | None) -> BaseException | None:
        """Leaves the savepoint around the call, as a worker would; that shows what the handler did to it."""
        try:
            await self._connection.execute(LAST if error is None else UNDO, prepare=False)
        except _NO_SAVEPOINT as missing:
            self.committed = True
            return error or missing
        except psycopg.Error as hidden:
            # The handler went on after an error that had ended the transaction.
            await self._connection.execute(UNDO, prepare=False)
            return hidden
        return error

    async def _written(self) -> list[Written] | None:
        row = await (await self._connection.execute(_STATEMENTS.get("rows_written"), {})).fetchone()
        return None if row is None or row[0] is None else msgspec.json.decode(row[0], type=list[Written])

    async def _sent(self) -> BaseException | None:
        """Sends the appends at the end, since an open append holds back all readers."""
        try:
            for prepared in self._appends:
                if self._appender is not None:
                    await self._appender.send(executor_of(self._connection), prepared)
            await self._connection.execute(CHECK)
        except (MilepostError, psycopg.Error) as error:
            return error
        return None

    async def _append(self, stream: str, messages: Any, *, expected: int) -> None:
        if self._appender is None:
            self._refused = CannotAppend()
            raise self._refused
        self._appends.append(self._appender.prepared(stream, several(messages), expected=expected, wake=True))
