"""What becomes of a row after an attempt: the same for whoever works on it."""

from collections.abc import Callable

from milepost.dispatch.delivery import Row, State, Suspicion
from milepost.dispatch.reasons import one_line
from milepost.dispatch.retry import Retry

ALONE = "a process vanished while it ran, with others: it runs alone now"
"""What a person reads of a message that may have ended a process."""
VANISHED = "its process vanished"
"""What a person reads of a message that has ended a process."""


def is_suspect(row: Row) -> bool:
    """Whether it has to run alone, so that nothing else is blamed for what it does."""
    return row.suspicion is not None


def suspected(row: Row) -> Row:
    """It has to run alone from now on."""
    return row if is_suspect(row) else row.changed(suspicion=Suspicion.POSSIBLE, reason=ALONE, error="")


def cleared(row: Row) -> Row:
    """It need not run alone."""
    return row.changed(suspicion=None, reason="") if is_suspect(row) else row


def blamed(row: Row, now: float) -> Row:
    """After a suspect's process vanished: that counts, and so does the time before, when it was one of several."""
    more = 2 if row.suspicion is Suspicion.POSSIBLE else 1
    return attempted(row, now, more=more, reason=VANISHED).changed(suspicion=Suspicion.CERTAIN)


def attempted(
    row: Row, now: float, *, more: int = 1, reason: str = "", error: str = "", consumer: str | None = None
) -> Row:
    """With so many more attempts counted, and why, and no longer suspect; its state is for the others to say."""
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


def failed(row: Row, now: float, policy: Retry, random: Callable[[], float], after: float | None = None) -> Row:
    """After an attempt that counts: tried again after `after` seconds, or when the policy says, or parked."""
    wait = policy.wait(row.attempts, random)
    if wait is None:
        return parked(row.changed(reason=row.reason or f"gave up after attempt {row.attempts}"))
    return postponed(row, now, wait if after is None else after)


def postponed(row: Row, now: float, seconds: float) -> Row:
    """Tried again after so many seconds."""
    return row.changed(state=State.RETRYING, due=now + seconds)


def waiting(row: Row, now: float, seconds: float, within: float) -> Row:
    """Tried again after so many seconds, maybe by somebody who can read it; parked if nobody came in time."""
    since = now if row.waits_since is None else row.waits_since
    left = since + within - now
    return postponed(row.changed(waits_since=since), now, min(seconds, left)) if left > 0 else parked(row)


def parked(row: Row) -> Row:
    """Given up until a person decides."""
    return row.changed(state=State.PARKED, due=None)
