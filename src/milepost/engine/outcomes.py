"""What a handler can raise to say what becomes of its message.

They are no errors of Milepost: a plain return means done, and any other exception a failed attempt.
"""

from collections.abc import Mapping
from typing import Any

from milepost.engine.values import Check, checked, instance_of, seconds, whole

_seconds = seconds()
_position = whole(1)
_error = instance_of(BaseException, "an exception")
_mapping: Check[Mapping[Any, Any]] = instance_of(Mapping, "{position: exception, …}")  # type: ignore[type-abstract]

FATAL = (SystemExit, KeyboardInterrupt, GeneratorExit)
"""What ends a program. Anything else that a handler raises is about its message, whatever class it has: libraries
written in Rust, for one, raise what is no `Exception`."""


class Park(Exception):
    """Gives the message up at once: it is kept, with the reason, until a person decides."""

    def __init__(self, reason: str) -> None:
        self.reason = str(reason)
        super().__init__(self.reason)


class Skip(Exception):
    """Passes the message over: it counts as settled, and what it wrote in a `Transaction` is undone."""

    def __init__(self, reason: str = "") -> None:
        self.reason = str(reason)
        super().__init__(self.reason)


class RetryLater(Exception):
    """Tries the message again after so many seconds, whatever the retry policy says.

    Args:
        seconds: How long to wait, 0 or more.
        count: Whether this counts as an attempt; what is not counted can come back for ever. Defaults to True.
        reason: What a person who looks at it is told.
    """

    def __init__(self, seconds: float, *, count: bool = True, reason: str = "") -> None:
        self.seconds = checked("RetryLater: seconds", _seconds, seconds)
        self.count = bool(count)
        self.reason = str(reason)
        super().__init__(self.reason or f"again in {self.seconds:g} s")


class Failed(Exception):
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
