"""Retry policies, and the row of a message after an attempt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from milepost.dispatch.delivery import DeliveryRow, State, Suspicion
from milepost.names import OptionsWithSuggestions


def one_line(reason: str) -> str:
    """Return a reason without its line breaks: it stands in tables, logs and answers that have one line for it."""
    if reason.isprintable():
        return reason
    return " ".join(filter(None, map(str.strip, reason.splitlines())))


MAX_ATTEMPTS: Final = 2**31 - 1
"""The most attempts that can be counted."""
_MAX_DELAY_SECONDS: Final = 100 * 366 * 86_400
"""A hundred years, in seconds, which every clock can add."""
_OPTION_BOUNDS: Final = {
    "delay": (0, _MAX_DELAY_SECONDS),
    "factor": (1, 1_000_000),
    "max_delay": (0, _MAX_DELAY_SECONDS),
    "jitter": (0, 1),
}


@dataclass(frozen=True, kw_only=True)
class Retry(OptionsWithSuggestions):
    """The policy for failed attempts: how many there are, and the wait before each.

    `attempts`: how many there are before the message is parked, the first included. Defaults to 11.
    `delay`: seconds before the second attempt. Defaults to 5.
    `factor`: how much longer each following wait is. Defaults to 2.
    `max_delay`: the longest wait, in seconds, before jitter. Defaults to 240.
    `jitter`: the share by which a wait is longer or shorter at random, so that what failed together does not
    come back together. Defaults to 0.1.
    `rules`: other policies for exceptions of some classes, the closest class first: `{ValueError: Retry.never}`.
    """

    never: ClassVar["Retry"]
    """Parks at the first failure."""

    attempts: int = 11
    delay: float = 5
    factor: float = 2
    max_delay: float = 240
    jitter: float = 0.1
    rules: Mapping[type[BaseException], "Retry"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 <= self.attempts <= MAX_ATTEMPTS:
            raise ValueError(
                f"attempts counts the first one too: from 1 to {MAX_ATTEMPTS:,}, not {self.attempts!r}"
            )
        for name, (least, most) in _OPTION_BOUNDS.items():
            value = getattr(self, name)
            # Written so that NaN is refused as well.
            if type(value) not in (int, float) or not least <= value <= most:
                raise ValueError(f"{name} is a number from {least} to {most:,}, not {value!r}")
        if not isinstance(self.rules, Mapping) or not all(map(_is_rule, self.rules.items())):
            raise ValueError(
                f"rules has a Retry for classes of exceptions, {{ValueError: Retry.never}}, not {self.rules!r}"
            )

    def policy_for(self, cause: type[BaseException] | None) -> "Retry":
        """Return the policy for attempts that failed with an exception of this class."""
        for class_ in cause.__mro__ if cause and self.rules else ():
            if class_ in self.rules:
                return self.rules[class_]
        return self

    def wait(self, attempts: int, random: Callable[[], float]) -> float | None:
        """Return the seconds to wait after so many attempts; None: there is no further one.

        `random` gives numbers from 0 up to 1.
        """
        if attempts >= self.attempts:
            return None
        return self._plain_wait(attempts) * (1 + self.jitter * (2 * random() - 1))

    def _plain_wait(self, attempts: int) -> float:
        try:
            return min(self.max_delay, self.delay * float(self.factor) ** max(0, attempts - 1))
        except OverflowError:
            return self.max_delay


def _is_rule(rule: tuple[object, object]) -> bool:
    cause, policy = rule
    return isinstance(cause, type) and issubclass(cause, BaseException) and isinstance(policy, Retry)


Retry.never = Retry(attempts=1)


RUNS_ALONE_REASON = "a process vanished while it ran, with others: it runs alone now"
"""The reason shown for a message that may have ended a process."""
PROCESS_VANISHED_REASON = "its process vanished"
"""The reason shown for a message that has ended a process."""


def is_suspect(row: DeliveryRow) -> bool:
    """Return True if the message has to run alone, so that no other is blamed for what it does."""
    return row.suspicion is not None


def suspected_row(row: DeliveryRow) -> DeliveryRow:
    """Return the row of a message that has to run alone from now on."""
    return (
        row if is_suspect(row) else row.changed(suspicion=Suspicion.POSSIBLE, reason=RUNS_ALONE_REASON, error="")
    )


def cleared_row(row: DeliveryRow) -> DeliveryRow:
    """Return the row of a message that need not run alone any more."""
    return row.changed(suspicion=None, reason="") if is_suspect(row) else row


def blamed_row(row: DeliveryRow, now: float) -> DeliveryRow:
    """Return the row after a suspect's process vanished.

    That counts as an attempt, and so does the time before, when it was one of several suspects.
    """
    more = 2 if row.suspicion is Suspicion.POSSIBLE else 1
    return attempted_row(row, now, more=more, reason=PROCESS_VANISHED_REASON).changed(suspicion=Suspicion.CERTAIN)


def attempted_row(
    row: DeliveryRow, now: float, *, more: int = 1, reason: str = "", error: str = "", consumer: str | None = None
) -> DeliveryRow:
    """Return the row with `more` attempts counted, a reason and no suspicion. The caller sets the state."""
    attempts, total = row.attempts + more, row.total + more
    return row.changed(
        attempts=attempts,
        total=total,
        since=now,
        due=None,
        route=None,
        suspicion=None,
        waits_since=None if more else row.waits_since,
        reason=one_line(reason),
        error=error,
        consumer=consumer or row.consumer,
    )


def failed_row(
    row: DeliveryRow, now: float, policy: Retry, random: Callable[[], float], after: float | None = None
) -> DeliveryRow:
    """Return the row after an attempt that counts.

    It is tried again after `after` seconds, by default as the policy says, and parked at the policy's limit.
    """
    wait = policy.wait(row.attempts, random)
    if wait is None:
        return parked_row(row.changed(reason=row.reason or f"gave up after attempt {row.attempts}"))
    return postponed_row(row, now, wait if after is None else after)


def postponed_row(row: DeliveryRow, now: float, seconds: float) -> DeliveryRow:
    """Return the row of a message that is tried again after so many seconds."""
    return row.changed(state=State.RETRYING, due=now + seconds)


def waiting_row(row: DeliveryRow, now: float, seconds: float, within: float) -> DeliveryRow:
    """Return the row of a message that no consumer could read so far.

    It is tried again after so many seconds, and parked `within` seconds after the first time.
    """
    since = now if row.waits_since is None else row.waits_since
    left = since + within - now
    return postponed_row(row.changed(waits_since=since), now, min(seconds, left)) if left > 0 else parked_row(row)


def parked_row(row: DeliveryRow) -> DeliveryRow:
    """Return the row of a message that is given up until a person decides."""
    return row.changed(state=State.PARKED, due=None)
