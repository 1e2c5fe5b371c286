"""The caller's own connection, whatever it is: psycopg, SQLAlchemy or Django.

Each kind becomes one small thing, `Executor`: run a statement of ours in the caller's transaction, give back
its rows. A blocking connection never suspends, so that code without an event loop can step through the same
coroutine; see `milepost.sync`.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, LiteralString, Protocol

import psycopg
from psycopg.rows import tuple_row

from milepost.concurrency import in_event_loop

ResultRow = tuple[Any, ...]


class Executor(Protocol):
    """Runs statements in somebody's transaction."""

    blocking: bool
    """Whether `execute` blocks the thread instead of suspending the coroutine."""

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[ResultRow]:
        """The rows that the statement returns."""
        ...


class SteppedExecutor:
    """A blocking connection in the hands of `mp.sync`, whose caller means to wait: it blocks nobody else."""

    blocking = False

    def __init__(self, connection: object) -> None:
        executor = executor_of(connection)
        if not executor.blocking:
            raise TypeError("connection: it is an async one; await the method of mp itself instead of mp.sync")
        self.execute = executor.execute


def executor_of(connection: object) -> Executor:
    """What runs statements on the caller's connection."""
    if isinstance(connection, SteppedExecutor):
        return connection
    for module, name, executor in _EXECUTORS:
        # Who gives an object of a library has imported that library.
        cls = getattr(sys.modules.get(module), name, None)
        if cls is not None and isinstance(connection, cls):
            return executor(connection)
    raise _unknown_connection_error(connection)


def executor_in_loop(connection: object) -> Executor:
    """Return the same, but refuse a connection that would block the event loop of this thread."""
    executor = executor_of(connection)
    if executor.blocking and in_event_loop():
        raise TypeError("connection: it would block the event loop; use mp.sync, or an async connection")
    return executor


def _unknown_connection_error(connection: object) -> TypeError:
    return TypeError(
        f"connection: {type(connection).__module__}.{type(connection).__qualname__} is not known to Milepost; "
        "give a psycopg connection, a SQLAlchemy Session, AsyncSession or Connection, or Django's connection"
    )


class _PsycopgExecutor:
    blocking = False

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._cursor = connection.cursor_factory
        self._connection = connection
        if issubclass(self._cursor, psycopg.AsyncRawCursor):
            self._cursor = psycopg.AsyncCursor

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[ResultRow]:
        async with self._cursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(statement, parameters)
            return await cursor.fetchall()


class _BlockingPsycopgExecutor:
    blocking = True

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._cursor = connection.cursor_factory
        self._connection = connection
        if issubclass(self._cursor, psycopg.RawCursor):
            self._cursor = psycopg.Cursor

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[ResultRow]:
        with self._cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall()


@cache
def _sqlalchemy_text(statement: str) -> Any:
    """The statement as SQLAlchemy writes it. Parentheses, or it would take `:name::type` for no parameter."""
    from sqlalchemy import text

    return text(re.sub(r"%\((\w+)\)s", r"(:\1)", statement).replace("%%", "%"))


class _BlockingSqlalchemyExecutor:
    blocking = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[ResultRow]:
        return [tuple(row) for row in self._connection.execute(_sqlalchemy_text(statement), parameters)]


class _SqlalchemyExecutor:
    blocking = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[ResultRow]:
        return [tuple(row) for row in await self._connection.execute(_sqlalchemy_text(statement), parameters)]


class _DjangoExecutor:
    blocking = True

    def __init__(self, connection: Any) -> None:
        # Django's caches are proxies of the same class, and its databases need not be PostgreSQL.
        if getattr(connection, "vendor", None) != "postgresql":
            raise _unknown_connection_error(connection)
        self._connection = connection

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[ResultRow]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            rows: Sequence[ResultRow] = cursor.fetchall()
            return rows


_EXECUTORS: Sequence[tuple[str, str, Callable[[Any], Executor]]] = (
    ("psycopg", "AsyncConnection", _PsycopgExecutor),
    ("psycopg", "Connection", _BlockingPsycopgExecutor),
    ("sqlalchemy", "Connection", _BlockingSqlalchemyExecutor),
    ("sqlalchemy.orm", "Session", _BlockingSqlalchemyExecutor),
    ("sqlalchemy.orm", "scoped_session", _BlockingSqlalchemyExecutor),
    ("sqlalchemy.ext.asyncio", "AsyncConnection", _SqlalchemyExecutor),
    ("sqlalchemy.ext.asyncio", "AsyncSession", _SqlalchemyExecutor),
    ("sqlalchemy.ext.asyncio", "async_scoped_session", _SqlalchemyExecutor),
    ("django.db.backends.base.base", "BaseDatabaseWrapper", _DjangoExecutor),
    ("django.utils.connection", "ConnectionProxy", _DjangoExecutor),
)
