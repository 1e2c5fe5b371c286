"""Counters of each subscription, made of its events, for metrics."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from milepost.engine.observe.events import (
    AttemptFailed,
    HandledSeveral,
    LaneLost,
    LaneReleased,
    LaneTaken,
    Parked,
    RetryScheduled,
    Skipped,
    Started,
    Stopped,
)

HISTOGRAM_BOUNDS_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds up to which times are counted together; those above the last are counted apart."""


class SubscriptionCounters(msgspec.Struct, tag=True):
    """What was counted of one subscription since the process began."""

    subscription: str
    handled: int = 0
    failed: int = 0
    """Attempts that failed."""
    retried: int = 0
    """How often a message was put aside to be tried again."""
    parked: int = 0
    skipped: int = 0
    lost: int = 0
    """Lanes that were lost instead of released."""
    lanes: int = 0
    """Lanes that are held now."""
    seconds: float = 0.0
    """How long handlers or consumers took, together."""
    times: list[int] = msgspec.field(default_factory=lambda: [0] * (len(HISTOGRAM_BOUNDS_SECONDS) + 1))
    """How many attempts took up to each of `HISTOGRAM_BOUNDS_SECONDS`, and more than the last. A batch's time is
    shared evenly."""

    def took(self, seconds: Sequence[float]) -> None:
        """Attempts took so long, one or more."""
        self.seconds += sum(seconds)
        # Where there are many they are short.
        if max(seconds) <= HISTOGRAM_BOUNDS_SECONDS[0]:
            self.times[0] += len(seconds)
            return
        for each in seconds:
            self.times[bisect_left(HISTOGRAM_BOUNDS_SECONDS, each)] += 1

    def add(self, other: "SubscriptionCounters") -> None:
        """Counts what another process counted as well."""
        for name in ("handled", "failed", "retried", "parked", "skipped", "lost", "lanes", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.times = [mine + theirs for mine, theirs in zip(self.times, other.times, strict=True)]


GroupAndName: TypeAlias = tuple[str, str]
"""A subscription: the names of its group and its own."""


def sum_by_subscription(
    counted: Iterable[tuple[GroupAndName, SubscriptionCounters]],
) -> dict[GroupAndName, SubscriptionCounters]:
    """What several have counted of each subscription, together."""
    sums: dict[GroupAndName, SubscriptionCounters] = {}
    for of, figures in counted:
        sums.setdefault(of, SubscriptionCounters(figures.subscription)).add(figures)
    return sums


class _CountersBySubscription(dict[GroupAndName, SubscriptionCounters]):
    def __missing__(self, of: GroupAndName) -> SubscriptionCounters:
        return self.setdefault(of, SubscriptionCounters(of[1]))


class EventCounter:
    """Counts what happens in this process to the subscriptions of a program, and to those it has consumers of.

    `listen` is `mp.on_event`: the counting begins when the program next starts.
    """

    def __init__(self, listen: Callable[[Callable[[Any], None]], object]) -> None:
        self._counted = _CountersBySubscription()
        self._held: defaultdict[GroupAndName, set[int]] = defaultdict(set)
        for listener in (self._handled, self._settled, self._lanes, self._worked):
            listen(listener)

    def figures(self) -> list[tuple[GroupAndName, SubscriptionCounters]]:
        """What was counted of each subscription by now. To be asked from any thread."""
        return list(self._counted.items())

    def _handled(self, event: HandledSeveral) -> None:
        figures = self._counted[event.group, event.subscription]
        figures.handled += len(event.seconds)
        figures.took(event.seconds)

    def _settled(self, event: AttemptFailed | RetryScheduled | Parked | Skipped) -> None:
        figures = self._counted[event.group, event.subscription]
        match event:
            case AttemptFailed():
                figures.failed += 1
                figures.took([event.seconds / event.together])
            case RetryScheduled():
                figures.retried += 1
            case Parked():
                figures.parked += 1
            case Skipped():
                figures.skipped += 1

    def _lanes(self, event: LaneTaken | LaneReleased | LaneLost) -> None:
        of = event.group, event.subscription
        figures, held = self._counted[of], self._held[of]
        if isinstance(event, LaneTaken):
            held.add(event.lane)
        else:
            held.discard(event.lane)
            figures.lost += isinstance(event, LaneLost)
        figures.lanes = len(held)

    def _worked(self, event: Started | Stopped) -> None:
        of = event.group, event.subscription
        self._held[of].clear()
        self._counted[of].lanes = 0
