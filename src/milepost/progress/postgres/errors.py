"""What PostgreSQL's errors mean for progress: stale, rolled back, another life of the server, try again."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

import psycopg

from milepost.errors import MilepostError, Unavailable
from milepost.progress.protocol import (
    AnotherLife,
    RolledBack,
    stale_lane_error,
)

_UNMET_SQLSTATE = "MP002"
_STALE_SQLSTATE = "MP003"
_ANOTHER_LIFE_SQLSTATE = "MP005"
_CERTAINLY_ROLLED_BACK = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
)
"""Errors after which nothing of a transaction holds, for certain."""


class translate_another_life:  # noqa: N801 - reads as a word at its uses
    """Around a statement that names the life in which its parameters were reckoned."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, psycopg.Error) and error.sqlstate == _ANOTHER_LIFE_SQLSTATE:
            raise AnotherLife(f"PostgreSQL: {error.diag.message_primary}; nothing was done, try again") from error


class translate_refusals:  # noqa: N801 - reads as a word at its uses
    """Around an exchange: errors that say that it was refused become `StaleLane` or `RolledBack`."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cause = error.__cause__ if isinstance(error, Unavailable) else error
        if not isinstance(cause, psycopg.Error):
            return
        if isinstance(cause, psycopg.errors.UniqueViolation) or cause.sqlstate == _STALE_SQLSTATE:
            raise stale_lane_error() from cause
        if isinstance(cause, _CERTAINLY_ROLLED_BACK) or cause.sqlstate == _UNMET_SQLSTATE:
            raise RolledBack(str(cause).splitlines()[0]) from cause


T = TypeVar("T")

MAX_DEADLOCK_ATTEMPTS = 5
"""How often a statement may lose before that is an error."""


async def retry_deadlocks(run: Callable[[], Awaitable[T]]) -> T:
    """What a statement in a transaction of its own returns: one that PostgreSQL ended for others runs again."""
    for _ in range(MAX_DEADLOCK_ATTEMPTS - 1):
        try:
            return await run()
        except Unavailable as error:
            if not isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
                raise
    return await run()


_CONTRADICTION_SQLSTATE = "MP004"


@contextmanager
def translate_contradictions() -> Iterator[None]:
    """Turns what the database says of a definition that cannot be into an error for a person."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate == _CONTRADICTION_SQLSTATE:
            raise MilepostError(str(error.diag.message_primary)) from error
        raise
