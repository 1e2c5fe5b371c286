"""The circuit breaker: stops a subscription whose messages all fail, before it turns the log into rows."""

from typing import Any

from milepost.dispatch.delivery import Delivery
from milepost.dispatch.exchange import Tally


class Breaker:
    """Whether a subscription is stalled, and which message is tried meanwhile.

    It stalls at a failure when more than `stall_after` messages are retrying, or when the last `stall_after`
    attempts have all failed, however they ended; all that end with a consumer which vanishes are one. From then
    on one message at a time is tried, `pace` seconds after the one before, and the first success ends it.

    One object serves all lanes of a subscription in a process. What it knows is stored with each write and
    learned back with each answer, so that it is the subscription's state and not a worker's.
    """

    def __init__(self, stall_after: int, pace: float) -> None:
        self.stall_after = stall_after
        self.pace = pace
        self.stalled: str | None = None
        self.streak = 0
        self.retrying = 0
        self.unwritten = 0
        """Failures that are not stored yet."""
        self._recovered = False
        """Whether a success ended it that is not stored yet."""
        self.probe: Delivery[Any] | None = None
        self.probe_at = float("-inf")

    def may_probe(self, now: float) -> bool:
        """Whether a message may be tried while stalled."""
        return self.probe is None and now >= self.probe_at

    def succeeded(self) -> None:
        """An attempt succeeded."""
        self.streak = 0
        self.unwritten = 0
        self._recovered = True
        self._recover()

    def failed(self, now: float) -> None:
        """An attempt failed, however it ended."""
        self.streak += 1
        self.unwritten += 1
        self.stalled = why_stalled(self.streak, self.retrying, self.stall_after) or self.stalled
        if self.stalled:
            self.probe_at = now + self.pace

    def given_up(self, delivery: Delivery[Any]) -> None:
        """A delivery is no longer under way, however it ended; also when its lane is thrown away."""
        if self.probe is delivery:
            self.probe = None

    def learn(self, streak: int, stalled: str | None, retrying: int, written: Tally) -> None:
        """Takes over what is stored, after a lane wrote this; what is not written yet is newer."""
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

    def forget(self, unwritten: Tally) -> None:
        """A lane is lost with what it did and did not write."""
        self.unwritten = max(0, self.unwritten - unwritten.failed)
        self.streak = max(0, self.streak - unwritten.failed)
        if unwritten.succeeded:
            self._recovered = False

    def _recover(self) -> None:
        self.stalled = None
        self.probe = None
        self.probe_at = float("-inf")


def why_stalled(streak: int, retrying: int, stall_after: int) -> str | None:
    """What stalls a subscription after a failure, in words; None if nothing does."""
    if retrying > stall_after:
        return f"{retrying:,} messages are retrying, more than {stall_after:,}"
    if streak >= stall_after:
        return f"the last {streak:,} attempts failed"
    return None


def judged(
    streak: int, stalled: str | None, tally: Tally, retrying: int, stall_after: int
) -> tuple[int, str | None]:
    """What is stored after a write: the streak of failures, and why the subscription is stalled."""
    if tally.succeeded:
        streak, stalled = 0, None
    streak += tally.failed
    if tally.failed:
        stalled = why_stalled(streak, retrying, stall_after) or stalled
    return streak, stalled
