"""Charts: the last minutes of every subscription, kept in memory, and the SVG lines drawn from them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from milepost.console.snapshot import OverviewSnapshot
from milepost.engine.operate.info import SubscriptionInfo

HISTORY_SECONDS = 300.0
"""Seconds that are remembered."""
MAX_POINTS = 160
"""Points that are kept of each subscription. At the usual pace there are fewer in that time."""
MEAN_SECONDS = 10.0
"""Seconds, at the least, that a mean covers: workers report what they did every few seconds."""


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """The figures of a subscription at a moment."""

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


def mean_handling_seconds(points: Sequence[HistoryPoint]) -> list[tuple[float, float]]:
    """Return moments, and the mean handling time of messages in the seconds before each.

    Workers measure it. 0: they ended no attempt. Nothing is known of the first point.
    """
    means, first = [], 0
    for last, point in enumerate(points[1:], start=1):
        while first + 1 < last and points[first + 1].at <= point.at - MEAN_SECONDS:
            first += 1
        means.append((point.at, _mean_seconds(points[first], point)))
    return means


def _mean_seconds(earlier: HistoryPoint, later: HistoryPoint) -> float:
    # Both are less than before when a worker of yesterday is forgotten.
    attempts, seconds = later.attempts - earlier.attempts, later.handling_seconds - earlier.handling_seconds
    return seconds / attempts if attempts > 0 and seconds > 0 else 0.0


class RecentHistory:
    """The figures of the last snapshots. Subscriptions that are gone are forgotten."""

    def __init__(self) -> None:
        self._points: dict[str, deque[HistoryPoint]] = {}
        self._heads: deque[tuple[float, int]] = deque(maxlen=MAX_POINTS)

    def add(self, snapshot: OverviewSnapshot) -> None:
        """Add the figures of a snapshot."""
        oldest = snapshot.taken - HISTORY_SECONDS
        self._heads.append((snapshot.taken, snapshot.log.horizon))
        while self._heads[0][0] < oldest:
            self._heads.popleft()
        for gone in self._points.keys() - snapshot.by_address.keys():
            del self._points[gone]
        for address, info in snapshot.by_address.items():
            points = self._points.setdefault(address, deque(maxlen=MAX_POINTS))
            points.append(_history_point(snapshot.taken, info))
            while points[0].at < oldest:
                points.popleft()

    def of(self, address: str) -> Sequence[HistoryPoint]:
        """Return the points of a subscription, oldest first."""
        return tuple(self._points.get(address, ()))

    def log_rates(self) -> Sequence[tuple[float, float]]:
        """Return moments, and the positions a second that became final since the snapshot before each."""
        heads = tuple(self._heads)
        return [
            (then, max(0, later - earlier) / max(0.001, then - at))
            for (at, earlier), (then, later) in pairwise(heads)
        ]

    def log_rate(self, now: float) -> float | None:
        """Return the positions a second that became final lately; None without an earlier snapshot."""
        if len(self._heads) < 2:
            return None
        recent = [head for head in self._heads if head[0] >= now - MEAN_SECONDS]
        earlier = recent[0] if len(recent) > 1 else self._heads[-2]
        later = self._heads[-1]
        return max(0, later[1] - earlier[1]) / max(0.001, later[0] - earlier[0])


def _history_point(at: float, info: SubscriptionInfo) -> HistoryPoint:
    return HistoryPoint(
        at=at,
        lag=info.lag.positions,
        age=info.lag.seconds,
        rate=info.rate,
        attempts=info.attempts,
        handling_seconds=info.handling_seconds,
    )


WIDTH_UNITS = 120
HEIGHT_UNITS = 24
"""The size of a chart in the units of its drawing."""

ChartLine = Sequence[tuple[float, float]]
"""Moments, in seconds, and what there was at each."""


def sparkline(line: ChartLine, label: str) -> Markup:
    """Return a small line. It is flat if nothing changes, so that it is drawn again only when something does."""
    return _draw("spark", line, label)


def chart(line: ChartLine, label: str) -> Markup:
    """Return a large line."""
    return _draw("chart", line, label)


def _draw(kind: str, line: ChartLine, label: str) -> Markup:
    # Put together as plain text, since there are hundreds on a page; all but the label is ours.
    path = "M" + "L".join(f"{x:g} {y:g}" for x, y in _chart_points(line))
    size = f"{WIDTH_UNITS} {HEIGHT_UNITS}"
    return Markup(  # noqa: S704
        f'<svg class="{kind}" viewBox="0 0 {size}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}"><path class="spark-area" d="{path}L{size}L0 {HEIGHT_UNITS}Z"/>'
        f'<path class="spark-line" d="{path}"/></svg>'
    )


def _chart_points(line: ChartLine) -> list[tuple[float, float]]:
    """Return the points in the units of the drawing, the newest at the right edge."""
    values = [value for _, value in line]
    if not values or min(values) == max(values):
        level = 1.0 if not values or values[0] == 0 else HEIGHT_UNITS / 2
        return [(0, HEIGHT_UNITS - level), (WIDTH_UNITS, HEIGHT_UNITS - level)]
    top, first = max(values), line[0][0]
    scale = WIDTH_UNITS / max(0.001, line[-1][0] - first)
    return [
        (round((at - first) * scale, 1), round(HEIGHT_UNITS - 1 - value / top * (HEIGHT_UNITS - 2), 1))
        for at, value in line
    ]
