"""Log what happens to a subscription, through the standard library's logging, with fields to search for."""

import logging
from collections.abc import MutableMapping, Sequence
from time import monotonic
from typing import Any

from milepost.dispatch import DeliveryRow, State
from milepost.errors import MilepostError
from milepost.log.message import Message

logger = logging.getLogger("milepost.engine")

TRACEBACK_INTERVAL_SECONDS = 60.0
"""Seconds between two tracebacks of errors that come from the same line."""
MAX_REMEMBERED_LINES = 1000
"""Of so many lines is known when they last raised."""


class FieldLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records have fields; what a call gives by `extra` comes on top."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Puts all fields together."""
        return msg, {**kwargs, "extra": {**(self.extra or {}), **(kwargs.get("extra") or {})}}


class SubscriptionLogger:
    """Logs what happens to one subscription.

    Records have `subscription` and `group`, and where they are about a lane or a message `lane`, or `position`,
    `stream` and `attempt`.
    """

    def __init__(self, subscription: str, group: str) -> None:
        self._name = subscription
        self._logger = FieldLogger(logger, {"subscription": subscription, "group": group})
        self._raised_at: dict[tuple[type, str, int], float] = {}

    def debug(self, text: str, *values: object, **fields: object) -> None:
        """What is as it should be."""
        self._log(logging.DEBUG, text, *values, **fields)

    def info(self, text: str, *values: object, **fields: object) -> None:
        """What an operator may want to know."""
        self._log(logging.INFO, text, *values, **fields)

    def warning(self, text: str, *values: object, **fields: object) -> None:
        """What mends itself, and should not happen often."""
        self._log(logging.WARNING, text, *values, **fields)

    def error(self, text: str, *values: object, **fields: object) -> None:
        """What somebody has to look at."""
        self._log(logging.ERROR, text, *values, **fields)

    def broke(self, what: str, error: Exception) -> None:
        """Something came to its end by an error; where it was raised is told unless the error is one of ours."""
        shown = None if isinstance(error, MilepostError) else error
        text = f"{what}: {str(error) or type(error).__name__}"
        self._logger.error("%s: %s", self._name, text, exc_info=shown)

    def status(self, status: str) -> None:
        """A person has paused it, or lets it go on: whoever reads the log should see both."""
        self.warning("it is %s", status)

    def taken_back(self, message: Message[Any], attempt: int) -> None:
        """An operator took a message back from whoever had it."""
        text = "position %d of %s: taken back by an operator at attempt %d, which does not count"
        self.warning(text, message.position, message.stream, attempt, position=message.position)

    def settled(
        self,
        message: Message[Any],
        attempt: int,
        reason: str,
        row: DeliveryRow | None,
        now: float,
        error: BaseException | None,
    ) -> None:
        """A handler did not return: `row` is what is to be stored, `error` what it raised, None for a decision.

        Where somebody has to act it is an ERROR. A failure that is tried again is a WARNING at the first attempt,
        and INFO at others; what a handler decides is for DEBUG. Errors of one line have one traceback a minute.
        """
        later = _next_attempt_text(row.due - now) if row and row.due else ""
        if row is not None and row.state is State.PARKED:
            self.parked(message, attempt, reason, error)
        elif error is not None:
            level = logging.WARNING if attempt == 1 else logging.INFO
            self._of(level, message, attempt, f"failed at attempt {attempt}{later}: {reason}", error)
        elif row is not None:
            self._of(logging.DEBUG, message, attempt, f"put off at attempt {attempt}{later}: {reason}")
        else:
            self._of(logging.DEBUG, message, attempt, f"skipped: {reason}")

    def waits_for_version(
        self, message: Message[Any], attempt: int, reason: str, row: DeliveryRow | None, now: float
    ) -> None:
        """A message is left to a program that knows its version: WARNING at first, ERROR when it is parked."""
        if row is not None and row.state is not State.PARKED and row.waits_since == now:
            text = f"left to a program that knows its version, and parked if none comes: {reason}"
            self._of(logging.WARNING, message, attempt, text)
        else:
            self.settled(message, attempt, reason, row, now, None)

    def blamed(self, message: Message[Any], row: DeliveryRow, now: float) -> None:
        """A message ended its process, as whoever took over found out; `row` is what is to be stored."""
        if row.state is State.PARKED:
            self.parked(message, row.attempts, row.reason)
            return
        later = _next_attempt_text((row.due or now) - now)
        self._of(logging.WARNING, message, row.attempts, f"failed at attempt {row.attempts}{later}: {row.reason}")

    def ended_transaction(self, message: Message[Any], attempt: int, before: Sequence[int]) -> None:
        """A handler ended a transaction in which others had run; `before` has their positions."""
        self._of(
            logging.ERROR,
            message,
            attempt,
            f"the handler ended a transaction in which others had run before it: {', '.join(map(str, before))}. "
            "They run again; if it was committed, what they wrote is there twice then",
        )

    def parked(self, message: Message[Any], attempt: int, reason: str, error: BaseException | None = None) -> None:
        """A message was given up until a person decides."""
        self._of(
            logging.ERROR,
            message,
            attempt,
            f"parked at attempt {attempt}: {reason or 'no reason was given'}",
            error,
        )

    def _of(
        self, level: int, message: Message[Any], attempt: int, text: str, error: BaseException | None = None
    ) -> None:
        if not self._logger.isEnabledFor(level):
            return
        position, stream = message.position, message.stream
        fields = {"position": position, "stream": stream, "attempt": attempt}
        shown = error if error is not None and self._is_news(error) else None
        text = f"position {position} of {stream}: {text}"
        self._logger.log(level, "%s: %s", self._name, _one_line(text), extra=fields, exc_info=shown)

    def _log(self, level: int, text: str, *values: object, **fields: object) -> None:
        self._logger.log(level, "%s: " + text, self._name, *values, extra=fields)

    def _is_news(self, error: BaseException) -> bool:
        """Whether no traceback of an error like this one was shown lately."""
        trace = error.__traceback__
        if trace is None:
            return False
        while trace.tb_next is not None:
            trace = trace.tb_next
        kind, now = (type(error), trace.tb_frame.f_code.co_filename, trace.tb_lineno), monotonic()
        if now - self._raised_at.get(kind, float("-inf")) < TRACEBACK_INTERVAL_SECONDS:
            return False
        if len(self._raised_at) >= MAX_REMEMBERED_LINES:
            self._raised_at.clear()
        self._raised_at[kind] = now
        return True


def _one_line(text: str) -> str:
    """What others wrote, without what would make it look like another line of the log."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _next_attempt_text(seconds: float) -> str:
    text = f"{max(0.0, seconds):.1f}".removesuffix(".0")
    return f", the next follows in {text} s"
