"""What the processes of a program have counted, and how its subscriptions stand: for Prometheus."""

import threading
from time import monotonic
from typing import TypeAlias

from milepost.contrib.outlook import LogOutlook, SubscriptionOutlook
from milepost.engine.figures import Figures, Of

STALE = 30.0
"""Seconds after which what was said of a subscription is not repeated any more."""

Measured: TypeAlias = Figures | LogOutlook | SubscriptionOutlook
"""What a process says; each is small enough for a pipe to take it at once."""


class Metrics:
    """Told of processes on one thread, and asked on another.

    What a process has counted stays counted when it ends: sums do not go back. How subscriptions stand is the same
    whoever says it, and the newest word holds.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._counted: dict[int, dict[str, Figures]] = {}
        self._before: dict[str, Figures] = {}
        self._said: dict[str | None, tuple[float, LogOutlook | SubscriptionOutlook]] = {}

    def heard(self, process: int, measured: Measured) -> None:
        """A process said something."""
        with self._lock:
            match measured:
                case Figures():
                    self._counted.setdefault(process, {})[measured.subscription] = measured
                case SubscriptionOutlook():
                    self._said[measured.subscription] = monotonic(), measured
                case LogOutlook():
                    self._said[None] = monotonic(), measured

    def ended(self, process: int) -> None:
        """A process is no more, and holds no lanes."""
        with self._lock:
            for figures in self._counted.pop(process, {}).values():
                figures.lanes = 0
                _add(self._before, figures)

    def text(self) -> bytes:
        """All of it as Prometheus reads it; an `ImportError` says what to install."""
        from milepost.contrib.prometheus import Snapshot, families, text

        said = self._fresh()
        subscriptions = [each for each in said if isinstance(each, SubscriptionOutlook)]
        return text(families([Snapshot(self._group, self._sums(), self.log(), subscriptions)]))

    def log(self) -> LogOutlook | None:
        """How the log stands; None: nobody has said so lately."""
        return next((each for each in self._fresh() if isinstance(each, LogOutlook)), None)

    def _sums(self) -> list[tuple[Of, Figures]]:
        sums: dict[str, Figures] = {}
        with self._lock:
            for figures in (self._before, *self._counted.values()):
                for each in figures.values():
                    _add(sums, each)
        return [((self._group, name), figures) for name, figures in sums.items()]

    def _fresh(self) -> list[LogOutlook | SubscriptionOutlook]:
        with self._lock:
            return [said for at, said in self._said.values() if monotonic() - at < STALE]


def _add(sums: dict[str, Figures], figures: Figures) -> None:
    sums.setdefault(figures.subscription, Figures(figures.subscription)).add(figures)
