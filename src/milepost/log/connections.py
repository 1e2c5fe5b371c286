"""The caller's own connection, whatever it is: psycopg, SQLAlchemy or Django.

Each kind becomes one small thing, `Executor`: run a statement of ours in the caller's transaction, give back
its rows. A blocking connection never suspends, so that code without an event loop can step through the same
coroutine; see `milepost.sync`.
"""

import re
import sys
from collections.abc import Mapping, Sequence
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


def executor_of(connection: object) -> Executor:
    """What runs statements on the caller's connection."""
    if isinstance(connection, psycopg.AsyncConnection):
        return _Psycopg(connection)
    if isinstance(connection, psycopg.Connection):
        return _BlockingPsycopg(connection)
    for adapt in (_sqlalchemy, _django):
        executor = adapt(connection)
        if executor is not None:
            return executor
    raise TypeError(
        f"connection: {type(connection).__module__}.{type(connection).__qualname__} is not known to Milepost; "
        "give a psycopg connection, a SQLAlchemy Session, AsyncSession or Connection, or Django's connection"
    )


class _Psycopg:
    blocking = False

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[Row]:
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement, parameters)
            return await cursor.fetchall()


class _BlockingPsycopg:
    blocking = True

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[Row]:
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall()


def _sqlalchemy(connection: object) -> Executor | None:
    # Who gives a SQLAlchemy object has imported SQLAlchemy.
    if "sqlalchemy" not in sys.modules:
        return None
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(connection, Connection | Session | scoped_session):
        return _BlockingSqlalchemy(connection)
    if "sqlalchemy.ext.asyncio" in sys.modules:
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

        if isinstance(connection, AsyncConnection | AsyncSession | async_scoped_session):
            return _Sqlalchemy(connection)
    return None


def _named(statement: str) -> Any:
    from sqlalchemy import text

    return text(re.sub(r"%\((\w+)\)s", r":\1", statement).replace("%%", "%"))


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


def _django(connection: object) -> Executor | None:
    if "django.db" not in sys.modules:
        return None
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.utils.connection import ConnectionProxy

    if isinstance(connection, BaseDatabaseWrapper | ConnectionProxy):
        return _Django(connection)
    return None


class _Django:
    blocking = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            rows: Sequence[Row] = cursor.fetchall()
            return rows
