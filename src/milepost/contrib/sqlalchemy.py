"""A SQLAlchemy session on a handler's transaction: what it writes commits together with the progress.

`mp.provide(session)` gives one to every handler that asks for an `AsyncSession`. `async with session_of(tx)` opens
one where there is a `Transaction` already.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from psycopg import AsyncConnection

from milepost.engine.declare.context import Transaction
from milepost.progress.postgres.transaction import LOST_RACE_ERRORS

try:
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
    from sqlalchemy.pool import NullPool
except ImportError as error:
    raise ImportError(
        'milepost.contrib.sqlalchemy needs SQLAlchemy 2: pip install "milepost[sqlalchemy]"'
    ) from error


async def session(tx: Transaction) -> AsyncIterator[AsyncSession]:
    """A provider: the session is flushed when the handler returns, and everything is undone when it raises."""
    async with session_of(tx) as opened:
        yield opened


@asynccontextmanager
async def session_of(tx: Transaction, **options: Any) -> AsyncIterator[AsyncSession]:
    """A session on a transaction, flushed at the end of the block.

    `commit` and `rollback` of the session mean a savepoint: nothing is final before the handler has returned and
    the progress is written.

    Args:
        tx: The transaction that a handler was given.
        options: Of SQLAlchemy's `AsyncSession`. `expire_on_commit` is False unless it is given.
    """
    options = {"expire_on_commit": False, **options}
    token = _borrowed_connection.set(_BorrowedConnection(tx.connection))
    try:
        connection = await _engine().connect()
    finally:
        _borrowed_connection.reset(token)
    try:
        await connection.begin()
        async with AsyncSession(connection, join_transaction_mode="create_savepoint", **options) as opened:
            yield opened
            await opened.commit()
    except DBAPIError as error:
        # Who lost a race runs again, and has to be known for that.
        if isinstance(error.orig, LOST_RACE_ERRORS):
            raise error.orig from error
        raise
    finally:
        await connection.close()


class _BorrowedConnection:
    """A connection whose transaction is another's: SQLAlchemy can use it, and neither end nor change it."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def commit(self) -> None:
        """The owner does."""

    async def rollback(self) -> None:
        """The owner does."""

    async def close(self) -> None:
        """The owner does."""

    def add_notice_handler(self, handler: object) -> None:
        """It would stay, one more for each session."""


_borrowed_connection: ContextVar[_BorrowedConnection] = ContextVar("lent")


async def _current_connection(*_: object, **__: object) -> _BorrowedConnection:
    return _borrowed_connection.get()


@cache
def _engine() -> AsyncEngine:
    """One for all: it learns what the server can do once, and takes whatever connection it is lent."""
    return create_async_engine(
        "postgresql+psycopg://",
        async_creator=_current_connection,
        poolclass=NullPool,
        pool_reset_on_return=None,
        # The driver would look for the type through a connection of the class that it knows.
        use_native_hstore=False,
    )
