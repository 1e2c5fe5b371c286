"""Statistics of consumers and subscriptions: counts, rates over fixed windows, latencies."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from time import monotonic
from typing import Final, Literal

import msgspec

DeliveryOutcome = Literal["ack", "retry", "park", "skip", "timeout"]
"""How a delivery ended."""

MAX_KEPT_LATENCIES: Final = 1000
"""Of so many settlements, the last ones, percentiles are told."""
RATE_WINDOW_SECONDS: Final = 60


class DeliveryStatistics(msgspec.Struct, frozen=True, kw_only=True):
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
    """Seconds that a consumer, or who pulled it, had a message: for half of the last thousand not more. None: none
    was settled. Of a subscription for pulling beside these only rate, in flight and errors are told."""
    latency_90: float | None
    latency_99: float | None
    last_error: str | None
    """Why an attempt failed, the last that did."""
    last_error_at: datetime | None


class RouteInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A route of a consumer, as it is now."""

    name: str
    where: str | None
    """Its filter; None: everything."""
    priority: int
    capacity: int
    capacity_bytes: int


class ConsumerStatistics(DeliveryStatistics, frozen=True, kw_only=True):
    """How a consumer stands."""

    consumer: str
    """Its name: the machine, the process and a name of its own."""
    routes: tuple[RouteInfo, ...] = ()
    """What it takes; nothing is told by a process of an older version."""


class Unrouted(msgspec.Struct, frozen=True, kw_only=True):
    """A message that no consumer takes."""

    position: int
    since: datetime
    """When it was found that nobody takes it."""
    age: float | None
    """Seconds since it was appended; None: it is no longer in the log."""


class SubscriptionStatistics(DeliveryStatistics, frozen=True, kw_only=True):
    """How a subscription stands, as its owner told; all consumers together, also those that left."""

    owner: str | None
    """That process; None: nobody has told anything in the last seconds."""
    at: datetime | None
    """When it told this."""
    unrouted: int
    """Messages that no consumer takes now."""
    oldest_unrouted: Unrouted | None
    consumers: tuple[ConsumerStatistics, ...]


class DeliveryCounters:
    """Counts what a consumer does, or several together."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.error_at: datetime | None = None
        self.delivered = 0
        self.redelivered = 0
        self._counts: dict[DeliveryOutcome, int] = {"ack": 0, "retry": 0, "park": 0, "skip": 0, "timeout": 0}
        self.seconds = 0.0
        """How long consumers had what is settled, together."""
        self._latencies: deque[float] = deque(maxlen=MAX_KEPT_LATENCIES)
        self._percentiles: tuple[float | None, float | None, float | None] | None = None
        """Of the latencies, until there are others: a server tells of a thousand consumers every two seconds."""
        self._seconds: deque[tuple[int, int]] = deque(maxlen=RATE_WINDOW_SECONDS + 1)
        """Whole seconds, and how many were settled in each."""

    def settled(self, how: DeliveryOutcome, latencies: Sequence[float]) -> None:
        """Some were settled, so many seconds after they were taken."""
        count = len(latencies)
        self._counts[how] += count
        self._latencies.extend(latencies)
        self.seconds += sum(latencies)
        self._percentiles = None
        second = int(monotonic())
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + count)
        else:
            self._seconds.append((second, count))

    @property
    def settled_count(self) -> int:
        """How many deliveries have ended, however."""
        return sum(self._counts.values())

    @property
    def done(self) -> int:
        """How many are done, acked or skipped."""
        return self._counts["ack"] + self._counts["skip"]

    def figures(self, in_flight: int) -> DeliveryStatistics:
        """As it stands."""
        latency_50, latency_90, latency_99 = self._told_percentiles()
        return DeliveryStatistics(
            in_flight=in_flight,
            delivered=self.delivered,
            redelivered=self.redelivered,
            acked=self._counts["ack"],
            retried=self._counts["retry"],
            parked=self._counts["park"],
            skipped=self._counts["skip"],
            timed_out=self._counts["timeout"],
            rate=self._rate(1),
            rate_minute=round(self._rate(RATE_WINDOW_SECONDS), 3),
            latency_50=latency_50,
            latency_90=latency_90,
            latency_99=latency_99,
            last_error=self.error,
            last_error_at=self.error_at,
        )

    def _told_percentiles(self) -> tuple[float | None, float | None, float | None]:
        if self._percentiles is None:
            latencies = sorted(self._latencies)
            self._percentiles = (
                percentile(latencies, 50),
                percentile(latencies, 90),
                percentile(latencies, 99),
            )
        return self._percentiles

    def _rate(self, seconds: int) -> float:
        """Over so many whole seconds before this one."""
        now = int(monotonic())
        starts = [second for second, _ in self._seconds]
        low, high = bisect_left(starts, now - seconds), bisect_left(starts, now)
        return sum(count for _, count in list(self._seconds)[low:high]) / seconds


def percentile(values: list[float], percent: int) -> float | None:
    """Of ordered values, the one that so many percent do not exceed."""
    if not values:
        return None
    return round(values[min(len(values) - 1, len(values) * percent // 100)], 6)


class OwnerStatistics(msgspec.Struct, frozen=True):
    """What the owner of a subscription tells."""

    all: DeliveryStatistics
    """All its consumers together, also those that left."""
    consumers: tuple[ConsumerStatistics, ...]


NO_STATISTICS: Final = DeliveryCounters().figures(0)
"""Before anything was done."""
