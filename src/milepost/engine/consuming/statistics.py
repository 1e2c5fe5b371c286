"""What consumers have done: counts, rates over fixed windows, latencies."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from time import monotonic
from typing import Final, Literal

import msgspec

How = Literal["ack", "retry", "park", "skip", "timeout"]
"""How a delivery ended."""

LATENCIES: Final = 1000
"""Of so many settlements, the last ones, percentiles are told."""
MINUTE: Final = 60


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """How a consumer, or all of a subscription together, stand. Counts begin when it came."""

    in_flight: int
    """Deliveries that are handed out and not settled."""
    delivered: int
    """How many were handed out, each an attempt."""
    redelivered: int
    """Of those, how many were not the first attempt at their message."""
    acked: int
    retried: int
    parked: int
    skipped: int
    timed_out: int
    rate: float
    """Settled, a second, in the last whole second."""
    rate_minute: float
    """Settled, a second, over the last 60 whole seconds."""
    latency_50: float | None
    """Seconds that a consumer had a message: for half of the last thousand not more. None: none was settled."""
    latency_90: float | None
    latency_99: float | None
    last_error: str | None
    """Why an attempt failed, the last that did."""
    last_error_at: datetime | None


class ConsumerStatistics(Figures, frozen=True, kw_only=True):
    """How a consumer stands."""

    consumer: str
    """Its name: the machine, the process and a name of its own."""


class Unrouted(msgspec.Struct, frozen=True, kw_only=True):
    """A message that no consumer takes."""

    position: int
    since: datetime
    """When it was found that nobody takes it."""
    age: float | None
    """Seconds since it was appended; None: it is no longer in the log."""


class SubscriptionStatistics(Figures, frozen=True, kw_only=True):
    """How a subscription stands, as its owner told; all consumers together, also those that left."""

    owner: str | None
    """That process; None: nobody has told anything in the last seconds."""
    at: datetime | None
    """When it told this."""
    unrouted: int
    """Messages that no consumer takes now."""
    oldest_unrouted: Unrouted | None
    consumers: tuple[ConsumerStatistics, ...]


class Numbers:
    """Counts what a consumer does, or several together."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.error_at: datetime | None = None
        self.delivered = 0
        self.redelivered = 0
        self._counts: dict[How, int] = {"ack": 0, "retry": 0, "park": 0, "skip": 0, "timeout": 0}
        self._latencies: deque[float] = deque(maxlen=LATENCIES)
        self._seconds: deque[tuple[int, int]] = deque(maxlen=MINUTE + 1)
        """Whole seconds, and how many were settled in each."""

    def settled(self, how: How, latencies: Sequence[float]) -> None:
        """Some were settled, so many seconds after they were taken."""
        count = len(latencies)
        self._counts[how] += count
        self._latencies.extend(latencies)
        second = int(monotonic())
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + count)
        else:
            self._seconds.append((second, count))

    @property
    def done(self) -> int:
        """How many are done, acked or skipped."""
        return self._counts["ack"] + self._counts["skip"]

    def figures(self, in_flight: int) -> Figures:
        """As it stands."""
        latencies = sorted(self._latencies)
        return Figures(
            in_flight=in_flight,
            delivered=self.delivered,
            redelivered=self.redelivered,
            acked=self._counts["ack"],
            retried=self._counts["retry"],
            parked=self._counts["park"],
            skipped=self._counts["skip"],
            timed_out=self._counts["timeout"],
            rate=self._rate(1),
            rate_minute=round(self._rate(MINUTE), 3),
            latency_50=_percentile(latencies, 50),
            latency_90=_percentile(latencies, 90),
            latency_99=_percentile(latencies, 99),
            last_error=self.error,
            last_error_at=self.error_at,
        )

    def _rate(self, seconds: int) -> float:
        """Over so many whole seconds before this one."""
        now = int(monotonic())
        starts = [second for second, _ in self._seconds]
        low, high = bisect_left(starts, now - seconds), bisect_left(starts, now)
        return sum(count for _, count in list(self._seconds)[low:high]) / seconds


def _percentile(values: list[float], percent: int) -> float | None:
    if not values:
        return None
    return round(values[min(len(values) - 1, len(values) * percent // 100)], 6)


NOTHING: Final = Numbers().figures(0)
"""Before anything was done."""
