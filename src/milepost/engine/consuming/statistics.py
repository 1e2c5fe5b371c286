"""What a consumer has done: counts, rates over fixed windows, latencies."""

from bisect import bisect_left
from collections import deque
from time import monotonic

import msgspec

LATENCIES = 1000
"""Of so many settlements, the last ones, percentiles are told."""
SECONDS = 61
"""How many seconds are counted one by one."""


class ConsumerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How a consumer stands."""

    consumer: str
    in_flight: int
    """Deliveries that it has and has not settled."""
    delivered: int
    acked: int
    retried: int
    parked: int
    skipped: int
    rate: float
    """Settled, a second, in the last whole second."""
    rate_minute: float
    """Settled, a second, over the last minute."""
    latency_50: float | None
    """Seconds from delivery to settlement: of half of the last thousand not more."""
    latency_90: float | None
    latency_99: float | None
    last_error: str | None


class Numbers:
    """Counts what a consumer does."""

    def __init__(self) -> None:
        self.error: str | None = None
        self._delivered = 0
        self._counts = {"ack": 0, "retry": 0, "park": 0, "skip": 0, "stop": 0}
        self._latencies: deque[float] = deque(maxlen=LATENCIES)
        self._seconds: deque[tuple[int, int]] = deque(maxlen=SECONDS)
        """Whole seconds, and how many were settled in each."""

    def delivered(self, count: int) -> None:
        """So many deliveries have come."""
        self._delivered += count

    def settled(self, how: str, latency: float) -> None:
        """One was settled, so many seconds after it came."""
        self._counts[how] += 1
        self._latencies.append(latency)
        second = int(monotonic())
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + 1)
        else:
            self._seconds.append((second, 1))

    def told(self, consumer: str, in_flight: int) -> ConsumerStatistics:
        """As it stands."""
        counts = self._counts
        latencies = sorted(self._latencies)
        return ConsumerStatistics(
            consumer=consumer,
            in_flight=in_flight,
            delivered=self._delivered,
            acked=counts["ack"],
            retried=counts["retry"] + counts["stop"],
            parked=counts["park"],
            skipped=counts["skip"],
            rate=self._rate(1),
            rate_minute=self._rate(60),
            latency_50=_percentile(latencies, 50),
            latency_90=_percentile(latencies, 90),
            latency_99=_percentile(latencies, 99),
            last_error=self.error,
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
    return values[min(len(values) - 1, len(values) * percent // 100)]
