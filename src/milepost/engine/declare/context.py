"""What a handler can ask for beside its message: the context of its call, and the transaction of its progress."""

import logging
from enum import Enum
from typing import Any, LiteralString, Protocol, TypeAlias

import msgspec
from psycopg import AsyncConnection, AsyncCursor, sql
from psycopg.abc import Params

from milepost.engine.subscription_logger import FieldLogger
from milepost.errors import MilepostError
from milepost.log.message import ANY


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The circumstances of a call. A handler gets it by annotating a parameter with this class."""

    subscription: str
    """The name of the subscription."""
    position: int
    """Of the message; of a batch's first one."""
    group: str = "default"
    """The name of the subscriptions that the program serves."""
    stream: str | None = None
    """Of the message; of a batch's first one."""
    attempt: int = 1
    """Which attempt this is, from 1; in a batch the highest of its messages."""
    replay: bool = False
    """Whether the message had been handled before and is repeated on purpose."""

    @property
    def logger(self) -> "logging.LoggerAdapter[logging.Logger]":
        """`milepost.subscription.<name>`; its records have these fields, and what a call gives by `extra`."""
        fields = {name: getattr(self, name) for name in _LOGGED}
        return FieldLogger(logging.getLogger(f"milepost.subscription.{self.subscription}"), fields)


_LOGGED = ("subscription", "group", "position", "stream", "attempt")


class ProgressLocation(Enum):
    """How much of what a handler does can commit together with its progress."""

    WITH_THE_LOG = "in the database of the log"
    """What it writes there, and what it appends."""
    IN_ANOTHER_DATABASE = "in another database"
    """What it writes there."""
    OUTSIDE = "outside of PostgreSQL"
    """Nothing."""

    @classmethod
    def of(cls, url: str | None, progress: object) -> "ProgressLocation":
        """By the options of a `Milepost`."""
        if progress is None or progress == url:
            return cls.WITH_THE_LOG
        return cls.IN_ANOTHER_DATABASE if isinstance(progress, str) else cls.OUTSIDE


Statement: TypeAlias = LiteralString | bytes | sql.SQL | sql.Composed


class CannotAppend(MilepostError):
    """`tx.append` was called where the log is in another database than the transaction."""

    def __init__(self) -> None:
        super().__init__(
            "tx.append: progress is kept in another database than the log, and no transaction is in both: append "
            "with mp.append and an id made from the message's own, so that a repetition is a duplicate"
        )


class HandlerHasEnded(MilepostError):
    """A `Transaction` was used by something that a handler had started and not waited for."""

    def __init__(self) -> None:
        super().__init__(
            "the handler that got this Transaction has ended, and others write in it by now: a handler waits for "
            "the tasks that it starts"
        )


class AppendOnCommit(Protocol):
    """Takes messages to be appended when the transaction commits."""

    async def __call__(self, stream: str, messages: Any, *, expected: int) -> None: ...


class Transaction:
    """What is written through it commits together with the progress: exactly once.

    A handler gets it by annotating a parameter with this class.
    """

    __slots__ = ("_append", "_has_ended", "connection")

    connection: AsyncConnection[Any]
    """The psycopg connection beneath it. Do not commit, roll back or close it; settings are for `set local`."""

    def __init__(self, connection: AsyncConnection[Any], append: AppendOnCommit) -> None:
        self.connection = connection
        self._append = append
        self._has_ended = False

    def end(self) -> None:
        """Refuse whatever is asked for from now on: the handler has ended."""
        self._has_ended = True

    def _check(self) -> None:
        if self._has_ended:
            raise HandlerHasEnded

    async def execute(self, query: Statement, params: Params | None = None) -> AsyncCursor[Any]:
        """Runs a statement and gives its cursor."""
        self._check()
        return await self.connection.execute(query, params)

    async def append(self, stream: str, messages: Any, *, expected: int = ANY) -> None:
        """Appends one message, or several, when this commits.

        Args:
            stream: The stream; a new one begins with its first message.
            messages: An instance of a registered class or a `NewMessage`, or a list of them.
            expected: The version that the stream must have then, `NO_STREAM`, `STREAM_EXISTS` or `ANY`
                (the default).
        """
        self._check()
        await self._append(stream, messages, expected=expected)
