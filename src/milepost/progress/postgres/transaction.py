"""The driver's part of transactions that handlers write in: begin, savepoints, undo, and what its errors mean.

The commands are bytes: several go in one journey to the server.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

from milepost.errors import MilepostError, Unavailable
from milepost.postgres.pool import Connection, Database, Deadline, translate_errors
from milepost.postgres.statements import Statements

HandlerConnection: TypeAlias = Connection
"""The connection of one transaction."""
HandlerDatabase: TypeAlias = Database
"""Where transactions of handlers take their connections from."""
HandlerDeadline: TypeAlias = Deadline
"""Ends such a connection when a statement or a call takes longer than it may."""

ISOLATION_STATEMENTS = {
    "repeatable read": b"set transaction isolation level repeatable read; ",
    "serializable": b"set transaction isolation level serializable; ",
}
"""Before all else, and nothing for read committed, which connections have without a word."""
IDLE_TIMEOUT_STATEMENT = b"set local idle_in_transaction_session_timeout = %d; "
"""Before the first statement: how long the server waits for the next statement, in milliseconds."""
MAX_IDLE_MILLISECONDS = 2**31 - 1
"""The longest that can be set."""
PLANS_OF_ROLE = (
    b"set local enable_seqscan to default; set local enable_bitmapscan to default; set local jit to default; "
)
"""A handler's statements are planned as its role says, and not as Milepost's own."""
CHECK_AT_ONCE = PLANS_OF_ROLE + b"set constraints all immediate"
BEGIN_BATCH = CHECK_AT_ONCE + b"; select pg_current_xact_id()::text"
"""Before a call for several messages: the name of the transaction that has to be the same after it."""
FIRST_SAVEPOINT = CHECK_AT_ONCE + b"; savepoint milepost"
NEXT_SAVEPOINT = b"release savepoint milepost; savepoint milepost"
RELEASE_SAVEPOINT = b"release savepoint milepost"
ROLLBACK_TO_SAVEPOINT = b"rollback to savepoint milepost"
"""Around each message: several commands in one journey to the server."""
ROLLBACK = b"rollback"

LOST_RACE_ERRORS = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
"""What says that a transaction lost a race."""
NO_SAVEPOINT_ERRORS = (psycopg.errors.InvalidSavepointSpecification, psycopg.errors.NoActiveSqlTransaction)
"""What says that the transaction of a savepoint has ended, and perhaps another one has begun."""
DRIVER_ERRORS: Final = (psycopg.Error,)
"""Everything that the driver raises."""
CONNECTION_ERRORS: Final = (psycopg.OperationalError,)
"""What it raises where the connection may be lost."""
ROLLBACK_SIGNAL: Final = psycopg.Rollback
"""Raised in a transaction's block, it ends the block and rolls back."""


class RunAgain(Exception):
    """The transaction was rolled back for certain, and no message is to blame: its messages run again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class TransactionRefused(Exception):
    """The server or the log refused the transaction at its end: it was rolled back for certain."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class TransactionEnded(MilepostError):
    """A handler ended the transaction that it was given."""

    def __init__(self) -> None:
        super().__init__("the handler ended the transaction that its progress is part of")


async def begin_batch(connection: Connection, bound: bytes) -> str:
    """Begin a transaction for one call with several messages; return its name."""
    cursor = await connection.execute(bound + BEGIN_BATCH, prepare=False)
    while cursor.nextset():
        pass
    [name] = await cursor.fetchone() or [""]
    return str(name)


async def send_commands(connection: Connection, commands: bytes) -> None:
    """Run several commands at once."""
    # Several commands at once cannot be prepared.
    await connection.execute(commands, prepare=False)


async def check_open(connection: Connection) -> None:
    """Raises what is wrong if the handler hid an error that ended the transaction, or ended it itself."""
    match connection.info.transaction_status:
        case TransactionStatus.INTRANS:
            return
        case TransactionStatus.IDLE:
            raise TransactionEnded
        case _:
            await send_commands(connection, b"select")


def idle_timeout_statement(timeout: float, lease: float) -> bytes:
    """Lets the server end the transaction of a process that stands still, with the locks of what it wrote.

    Not before a call has had its time, which it may spend without a statement. And before the time of the same
    call is up in a process that takes over, two thirds of a lease later at the earliest: that one waits for these
    locks, and must not fail for it.
    """
    return IDLE_TIMEOUT_STATEMENT % min(round(1000 * (timeout + lease / 3)), MAX_IDLE_MILLISECONDS)


def lost_race_in(error: BaseException | None) -> Exception | None:
    """Return what says that the transaction lost a race, if that is the cause of what a handler raised instead."""
    while error is not None:
        if isinstance(error, LOST_RACE_ERRORS):
            return error
        if isinstance(error, BaseExceptionGroup):
            return next(filter(None, map(lost_race_in, error.exceptions)), None)
        error = error.__cause__
    return None


@asynccontextmanager
async def transaction_on(connection: Connection) -> AsyncIterator[None]:
    """Run a block in a transaction. What rolls it back for certain becomes `RunAgain` or `TransactionRefused`.

    After anything else the outcome is unknown.
    """
    try:
        with translate_errors():
            try:
                async with connection.transaction():
                    yield
            except LOST_RACE_ERRORS as error:
                raise RunAgain(error) from error
    except (Unavailable, RunAgain):
        raise
    except (MilepostError, psycopg.DatabaseError) as error:
        raise TransactionRefused(error) from error


_STATEMENTS = Statements("pg_catalog", "milepost.progress.postgres")


async def rows_written(connection: Connection) -> str | None:
    """Return how many rows of which tables a transaction has written, as JSON; None: the server does not say."""
    row = await (await connection.execute(_STATEMENTS.get("rows_written"), {})).fetchone()
    return None if row is None else row[0]
