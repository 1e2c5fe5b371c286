"""What a handler can raise to say what becomes of its message.

They are no errors of Milepost: a plain return means done, and any other exception a failed attempt.
"""

from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from milepost.dispatch.retry import one_line
from milepost.engine.checks import Check, checked, instance_of, seconds, whole
from milepost.errors import Picklable

R = TypeVar("R")

_seconds = seconds()
_position = whole(1)
_error = instance_of(BaseException, "an exception")
_mapping: Check[Mapping[Any, Any]] = instance_of(Mapping, "{position: exception, …}")  # type: ignore[type-abstract]

ENDS_PROGRAM = (SystemExit, KeyboardInterrupt)
"""What ends a program when a handler raises it. Anything else is about its message, whatever class it has:
libraries written in Rust, for one, raise what is no `Exception`."""
VERSION_RETRY_SECONDS = 10.0
"""After how long a message comes again whose payload has a newer version than a program knows: another program may
have its lane by then, or its consumers."""
VERSION_WAIT_SECONDS = 600.0
"""After how long it is parked, if nobody came who knows the version."""
FATAL = (*ENDS_PROGRAM, GeneratorExit)
"""What must not be held up: the same, and a coroutine that is closed."""


class EndsProgram(Exception):
    """Carries one of `ENDS_PROGRAM` to whoever runs the program.

    A task that raises it itself stops the event loop at once, and the worker could not give its lanes back.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(repr(error))


async def carry_program_end(coroutine: Coroutine[Any, Any, R]) -> R:
    """Return a coroutine's result, for a task; raise `EndsProgram` for what ends a program."""
    try:
        return await coroutine
    except ENDS_PROGRAM as error:
        raise EndsProgram(error) from None


class Park(Picklable):
    """Gives the message up at once: it is kept, with the reason, until a person decides."""

    def __init__(self, reason: str) -> None:
        self.reason = one_line(str(reason))
        super().__init__(self.reason)


class Skip(Picklable):
    """Passes the message over: it counts as settled, and what it wrote in a `Transaction` is undone."""

    def __init__(self, reason: str = "") -> None:
        self.reason = one_line(str(reason))
        super().__init__(self.reason)


class RetryLater(Picklable):
    """Tries the message again after so many seconds, whatever the retry policy says.

    Args:
        seconds: How long to wait, 0 or more.
        count: Whether this counts as an attempt; what is not counted can come back for ever. Defaults to True.
        reason: What a person who looks at it is told.
    """

    def __init__(self, seconds: float, *, count: bool = True, reason: str = "") -> None:
        self.seconds = checked("RetryLater: seconds", _seconds, seconds)
        self.count = bool(count)
        self.reason = one_line(str(reason))
        super().__init__(self.reason or f"again in {self.seconds:g} s")


class Failed(Picklable):
    """Says which messages of a batch failed, by their positions, and with what; the others are done.

    With a `Transaction` the others run again, without these. At least one has to be named. The error of a message
    may itself be a `Park`, `Skip` or `RetryLater`.
    """

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        checked("Failed", _mapping, errors)
        if not errors:
            raise ValueError("Failed: at least one message has to be named; if none failed, the handler returns")
        self.errors = {
            checked("Failed: position", _position, position): checked(f"Failed: {position}", _error, error)
            for position, error in errors.items()
        }
        super().__init__("; ".join(f"{position}: {error!r}" for position, error in self.errors.items()))
