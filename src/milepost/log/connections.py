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

Row = tuple[Any, ...]


class Executor(Protocol):
    """Runs statements in somebody's transaction."""

    blocking: bool
    """Whether `execute` blocks the thread instead of suspending the coroutine."""

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[Row]:
        """The rows that the statement returns."""
        ...


class Stepped:
    """A blocking connection in the hands of `mp.sync`, whose caller means to wait: it blocks nobody else."""

    blocking = False

    def __init__(self, connection: object) -> None:
        executor = executor_of(connection)
        if not executor.blocking:
            raise TypeError("connection: it is an async one; await the method of mp itself instead of mp.sync")
        self.execute = executor.execute


def executor_of(connection: object) -> Executor:
    """What runs statements on the caller's connection."""
    if isinstance(connection, Stepped):
        return connection
    for module, name, executor in _KINDS:
        # Who gives an object of a library has imported that library.
        cls = getattr(sys.modules.get(module), name, None)
        if cls is not None and isinstance(connection, cls):
            return executor(connection)
    raise _unknown(connection)


def _unknown(connection: object) -> TypeError:
    return TypeError(
        f"connection: {type(connection).__module__}.{type(connection).__qualname__} is not known to Milepost; "
        "give a psycopg connection, a SQLAlchemy Session, AsyncSession or Connection, or Django's connection"
    )


class _Psycopg:
    blocking = False

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._cursor = connection.cursor_factory
        self._connection = connection
        if issubclass(self._cursor, psycopg.AsyncRawCursor):
            self._cursor = psycopg.AsyncCursor

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[Row]:
        async with self._cursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(statement, parameters)
            return await cursor.fetchall()


class _BlockingPsycopg:
    blocking = True

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._cursor = connection.cursor_factory
        self._connection = connection
        if issubclass(self._cursor, psycopg.RawCursor):
            self._cursor = psycopg.Cursor

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[Row]:
        with self._cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall()


@cache
def _named(statement: str) -> Any:
    """The statement as SQLAlchemy writes it. Parentheses, or it would take `:name::type` for no parameter."""
    from sqlalchemy import text

    return text(re.sub(r"%\((\w+)\)s", r"(:\1)", statement).replace("%%", "%"))


class _BlockingSqlalchemy:
    blocking = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[Row]:
        return [tuple(row) for row in self._connection.execute(_named(statement), parameters)]


class _Sqlalchemy:
    blocking = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[Row]:
        return [tuple(row) for row in await self._connection.execute(_named(statement), parameters)]


class _Django:
    blocking = True

    def __init__(self, connection: Any) -> None:
        # Django's caches are proxies of the same class, and its databases need not be PostgreSQL.
        if getattr(connection, "vendor", None) != "postgresql":
            raise _unknown(connection)
        self._connection = connection

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            rows: Sequence[Row] = cursor.fetchall()
            return rows


_KINDS: Sequence[tuple[str, str, Callable[[Any], Executor]]] = (
    ("psycopg", "AsyncConnection", _Psycopg),
    ("psycopg", "Connection", _BlockingPsycopg),
    ("sqlalchemy", "Connection", _BlockingSqlalchemy),
    ("sqlalchemy.orm", "Session", _BlockingSqlalchemy),
    ("sqlalchemy.orm", "scoped_session", _BlockingSqlalchemy),
    ("sqlalchemy.ext.asyncio", "AsyncConnection", _Sqlalchemy),
    ("sqlalchemy.ext.asyncio", "AsyncSession", _Sqlalchemy),
    ("sqlalchemy.ext.asyncio", "async_scoped_session", _Sqlalchemy),
    ("django.db.backends.base.base", "BaseDatabaseWrapper", _Django),
    ("django.utils.connection", "ConnectionProxy", _Django),
)
