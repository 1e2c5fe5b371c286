"""What PostgreSQL's refusals mean."""

from types import TracebackType

import psycopg

from milepost.errors import Unavailable
from milepost.progress.protocol import RolledBack, Stale

_UNMET = "MP002"
_STALE = "MP003"
_ANOTHER_LIFE = "MP005"
_CERTAIN = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
)
"""Errors after which nothing of a transaction holds, for certain."""


class AnotherLife(Unavailable):
    """What was to be written was reckoned before a crash or a failover: nothing was, and it can be tried again."""


class of_this_life:  # noqa: N801 - reads as a word at its uses
    """Around a statement that names the life in which its parameters were reckoned."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, psycopg.Error) and error.sqlstate == _ANOTHER_LIFE:
            raise AnotherLife(f"PostgreSQL: {error.diag.message_primary}; nothing was done, try again") from error


class refusals:  # noqa: N801 - reads as a word at its uses
    """Around an exchange: errors that say that it was refused become `Stale` or `RolledBack`."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cause = error.__cause__ if isinstance(error, Unavailable) else error
        if not isinstance(cause, psycopg.Error):
            return
        if isinstance(cause, psycopg.errors.UniqueViolation) or cause.sqlstate == _STALE:
            raise stale() from cause
        if isinstance(cause, _CERTAIN) or cause.sqlstate == _UNMET:
            raise RolledBack(str(cause).splitlines()[0]) from cause


def stale() -> Stale:
    return Stale("the lane has another owner, or its cursor has moved")
