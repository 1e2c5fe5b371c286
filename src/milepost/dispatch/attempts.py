"""What becomes of a row after an attempt: the same for whoever works on it."""

from collections.abc import Callable

from milepost.dispatch.delivery import Row, State
from milepost.dispatch.retry import Retry


def attempted(
    row: Row, now: float, *, more: int = 1, reason: str = "", error: str = "", consumer: str | None = None
) -> Row:
    """With so many more attempts counted, and why; its state is for the others to say."""
    attempts, total = row.attempts + more, row.total + more
    return row.changed(
        attempts=attempts,
        total=total,
        since=now,
        due=None,
        route=None,
        reason=reason,
        error=error,
        consumer=consumer or row.consumer,
    )


def failed(row: Row, now: float, policy: Retry, random: Callable[[], float], after: float | None = None) -> Row:
    """After an attempt that counts: tried again after `after` seconds, or when the policy says, or parked."""
    wait = policy.wait(row.attempts, random)
    return parked(row) if wait is None else postponed(row, now, wait if after is None else after)


def postponed(row: Row, now: float, seconds: float) -> Row:
    """Tried again after so many seconds."""
    return row.changed(state=State.RETRYING, due=now + seconds)


def parked(row: Row) -> Row:
    """Given up until a person decides."""
    return row.changed(state=State.PARKED, due=None)
