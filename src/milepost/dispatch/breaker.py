"""The circuit breaker: stops a subscription whose messages all fail, before it turns the log into rows."""

from typing import Any

from milepost.dispatch.delivery import LaneDelivery
from milepost.dispatch.exchange import AttemptTally


class Breaker:
    """The circuit breaker of a subscription. While it is stalled, one message at a time is tried.

    A failure stalls the subscription when more than `stall_after` messages are retrying, or when the last
    `stall_after` attempts have all failed, however they ended. All attempts that end with a vanished consumer
    count as one. While stalled, one message at a time is tried, `pace` seconds after the one before. The first
    success ends the stall.

    One object serves all lanes of a subscription in a process. Its state is stored with each write and learned
    back with each answer, so that it is the state of the subscription and not of a worker.
    """

    def __init__(self, stall_after: int, pace: float) -> None:
        self.stall_after = stall_after
        self.pace = pace
        self.stalled: str | None = None
        self.streak = 0
        self.retrying = 0
        self.unwritten = 0
        """Number of failures that are not stored yet."""
        self._recovered = False
        """True if a success that is not stored yet ended the stall."""
        self.probe: LaneDelivery[Any] | None = None
        self.probe_at = float("-inf")

    def may_probe(self, now: float) -> bool:
        """Return True if a message may be tried while stalled."""
        return self.probe is None and now >= self.probe_at

    def succeeded(self) -> None:
        """Note that an attempt succeeded: that ends a stall."""
        self.streak = 0
        self.unwritten = 0
        self._recovered = True
        self._recover()

    def failed(self, now: float) -> None:
        """Note that an attempt failed, however it ended; that may begin a stall."""
        self.streak += 1
        self.unwritten += 1
        self.stalled = why_stalled(self.streak, self.retrying, self.stall_after) or self.stalled
        if self.stalled:
            self.probe_at = now + self.pace

    def given_up(self, delivery: LaneDelivery[Any]) -> None:
        """Note that a delivery is no longer in force, however it ended; also when its lane is discarded."""
        if self.probe is delivery:
            self.probe = None

    def learn(self, streak: int, stalled: str | None, retrying: int, written: AttemptTally) -> None:
        """Take over what is stored, after a lane wrote `written`. What is not written yet is newer and stays."""
        self.retrying = retrying
        if written.succeeded:
            self._recovered = False
        if self._recovered:
            return
        self.unwritten = max(0, self.unwritten - written.failed)
        self.streak = streak + self.unwritten
        if stalled:
            self.stalled = stalled
        elif not self.unwritten:
            self._recover()

    def forget(self, unwritten: AttemptTally) -> None:
        """Undo the attempts that a lane counted and did not write: the lane is lost."""
        self.unwritten = max(0, self.unwritten - unwritten.failed)
        self.streak = max(0, self.streak - unwritten.failed)
        if unwritten.succeeded:
            self._recovered = False

    def _recover(self) -> None:
        self.stalled = None
        self.probe = None
        self.probe_at = float("-inf")


def why_stalled(streak: int, retrying: int, stall_after: int) -> str | None:
    """Return why a subscription is stalled after a failure, in words; None if it is not."""
    if retrying > stall_after:
        return f"{retrying:,} messages are retrying, more than {stall_after:,}"
    if streak >= stall_after:
        return f"the last {streak:,} attempts failed"
    return None


def breaker_state_after(
    streak: int, stalled: str | None, tally: AttemptTally, retrying: int, stall_after: int
) -> tuple[int, str | None]:
    """Return what is stored after a write: the streak of failures, and why the subscription is stalled."""
    if tally.succeeded:
        streak, stalled = 0, None
    streak += tally.failed
    if tally.failed:
        stalled = why_stalled(streak, retrying, stall_after) or stalled
    return streak, stalled
