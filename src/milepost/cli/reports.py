"""What the processes of a program said of themselves, and when."""

import threading
from dataclasses import dataclass, replace
from time import monotonic

import msgspec

from milepost.cli.metrics import Measured, Metrics

SILENCE = 10.0
"""Seconds without a word after which a process is not well: its event loop is blocked."""
START = 60.0
"""The same for a process that has not said anything yet."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """What a process says of itself, once a second."""

    obstacle: str | None
    """Why it is not ready, in words; None: it is."""


@dataclass(frozen=True)
class _Known:
    begun: float
    heard: float | None = None
    obstacle: str | None = "is starting"


class Reports:
    """Told of processes on one thread, and asked on another."""

    def __init__(self, size: int, group: str = "default") -> None:
        self.metrics = Metrics(group)
        """What they have counted."""
        self._size = size
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}

    def begun(self, process: int) -> None:
        """A process was started."""
        with self._lock:
            self._known[process] = _Known(monotonic())

    def heard(self, process: int, report: Report | Measured) -> None:
        """A process said something."""
        if not isinstance(report, Report):
            self.metrics.heard(process, report)
            return
        with self._lock:
            known = self._known.get(process)
            if known is not None:
                self._known[process] = replace(known, heard=monotonic(), obstacle=report.obstacle)

    def ended(self, process: int) -> None:
        """A process is no more."""
        self.metrics.ended(process)
        with self._lock:
            self._known.pop(process, None)

    def troubles(self) -> list[str]:
        """Why some process is not alive, in words. One that is being started again is no trouble yet."""
        return [f"process {process} {trouble}" for process, trouble in self._troubles().items()]

    def obstacles(self) -> list[str]:
        """Why the program is not ready, in words."""
        troubles = self._troubles()
        with self._lock:
            found = {process: known.obstacle for process, known in self._known.items() if known.obstacle}
            missing = self._size - len(self._known)
        reasons = [f"process {process} {why}" for process, why in sorted((found | troubles).items())]
        if missing:
            reasons.append(f"{missing} of {self._size} processes do not run: the next is started soon")
        return reasons

    def _troubles(self) -> dict[int, str]:
        now = monotonic()
        with self._lock:
            known = dict(self._known)
        return {process: trouble for process, one in sorted(known.items()) if (trouble := _trouble(one, now))}


def _trouble(known: _Known, now: float) -> str | None:
    if known.heard is None:
        return f"has not begun within {START:g} s" if now - known.begun > START else None
    silent = now - known.heard
    return f"has said nothing for {silent:.0f} s: its event loop is blocked" if silent > SILENCE else None
