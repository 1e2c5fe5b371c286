"""The last minutes of every subscription, in memory: what charts are drawn from."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from milepost.console.snapshot import Snapshot
from milepost.engine.info import SubscriptionInfo

SPAN = 300.0
"""Seconds that are remembered."""
POINTS = 160
"""How many points are kept of each at the most; at the usual pace there are fewer in that time."""
OVER = 10.0
"""Seconds, at the least, over which a mean is told: workers tell what they did every few seconds."""


@dataclass(frozen=True, slots=True)
class Point:
    """How a subscription stood at a moment."""

    at: float
    """By this process's monotonic clock, in seconds."""
    lag: int
    age: float
    """Of the first message that it has not passed, in seconds."""
    rate: float
    attempts: int
    """That workers had ended by then."""
    handling_seconds: float
    """That these took, together."""


def handling(points: Sequence[Point]) -> list[tuple[float, float]]:
    """When, and how long a message was with its handler or consumer, on average, in the seconds before.

    Workers measure it. 0: they ended no attempt. Nothing is known of the first point.
    """
    means, first = [], 0
    for last, point in enumerate(points[1:], start=1):
        while first + 1 < last and points[first + 1].at <= point.at - OVER:
            first += 1
        means.append((point.at, _mean(points[first], point)))
    return means


def _mean(earlier: Point, later: Point) -> float:
    # Both are less than before when a worker of yesterday is forgotten.
    attempts, seconds = later.attempts - earlier.attempts, later.handling_seconds - earlier.handling_seconds
    return seconds / attempts if attempts > 0 and seconds > 0 else 0.0


class History:
    """Remembers snapshots; subscriptions that are gone are forgotten."""

    def __init__(self) -> None:
        self._points: dict[str, deque[Point]] = {}
        self._heads: deque[tuple[float, int]] = deque(maxlen=POINTS)

    def add(self, snapshot: Snapshot) -> None:
        """One more."""
        oldest = snapshot.taken - SPAN
        self._heads.append((snapshot.taken, snapshot.log.horizon))
        while self._heads[0][0] < oldest:
            self._heads.popleft()
        for gone in self._points.keys() - snapshot.by_address.keys():
            del self._points[gone]
        for address, info in snapshot.by_address.items():
            points = self._points.setdefault(address, deque(maxlen=POINTS))
            points.append(_point(snapshot.taken, info))
            while points[0].at < oldest:
                points.popleft()

    def of(self, address: str) -> Sequence[Point]:
        """The points of a subscription, the oldest first."""
        return tuple(self._points.get(address, ()))

    def log_rates(self) -> Sequence[tuple[float, float]]:
        """When, and how many positions had become final, a second, since the snapshot before."""
        heads = tuple(self._heads)
        return [
            (then, max(0, later - earlier) / max(0.001, then - at))
            for (at, earlier), (then, later) in pairwise(heads)
        ]

    def log_rate(self, now: float) -> float | None:
        """How many became final, a second, over the last seconds; None: nothing is known of before."""
        if len(self._heads) < 2:
            return None
        recent = [head for head in self._heads if head[0] >= now - OVER]
        earlier = recent[0] if len(recent) > 1 else self._heads[-2]
        later = self._heads[-1]
        return max(0, later[1] - earlier[1]) / max(0.001, later[0] - earlier[0])


def _point(at: float, info: SubscriptionInfo) -> Point:
    return Point(
        at=at,
        lag=info.lag.positions,
        age=info.lag.seconds,
        rate=info.rate,
        attempts=info.attempts,
        handling_seconds=info.handling_seconds,
    )
