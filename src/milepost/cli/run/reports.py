"""The reports of a program's processes to their supervisor: health, metrics, and the pipe between them."""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import TypeAlias

import msgspec

from milepost.contrib.gauges import LogGauges, SubscriptionGauges
from milepost.engine.observe.counters import GroupAndName, SubscriptionCounters

STALE_SECONDS = 30.0
"""Seconds after which the gauges of a subscription are no longer served."""

ProcessMeasurement: TypeAlias = SubscriptionCounters | LogGauges | SubscriptionGauges
"""A measurement that a process reports. Each is small enough for a pipe to take it at once."""


class ProcessMetrics:
    """The metrics of all processes, written by one thread and read by another.

    The counts of a process stay when it ends: sums do not go back. The gauges of a subscription are the same in
    every process, and the newest holds.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._counted: dict[int, dict[str, SubscriptionCounters]] = {}
        self._ended: dict[str, SubscriptionCounters] = {}
        self._gauges: dict[str | None, tuple[float, LogGauges | SubscriptionGauges]] = {}

    def record(self, process: int, measured: ProcessMeasurement) -> None:
        """Keep what a process measured."""
        with self._lock:
            match measured:
                case SubscriptionCounters():
                    self._counted.setdefault(process, {})[measured.subscription] = measured
                case SubscriptionGauges():
                    self._gauges[measured.subscription] = monotonic(), measured
                case LogGauges():
                    self._gauges[None] = monotonic(), measured

    def remove_process(self, process: int) -> None:
        """Keep the counts of a process that has ended. It holds no lanes any more."""
        with self._lock:
            for figures in self._counted.pop(process, {}).values():
                figures.lanes = 0
                _add_figures(self._ended, figures)

    def text(self) -> bytes:
        """Return the metrics as Prometheus reads them. An `ImportError` says what to install."""
        from milepost.contrib.prometheus import MetricsSnapshot, families, text

        gauges = self._fresh_gauges()
        subscriptions = [each for each in gauges if isinstance(each, SubscriptionGauges)]
        return text(families([MetricsSnapshot(self._group, self._sums(), self.log(), subscriptions)]))

    def log(self) -> LogGauges | None:
        """Return the newest gauges of the log; None if they are stale."""
        return next((each for each in self._fresh_gauges() if isinstance(each, LogGauges)), None)

    def _sums(self) -> list[tuple[GroupAndName, SubscriptionCounters]]:
        sums: dict[str, SubscriptionCounters] = {}
        with self._lock:
            for figures in (self._ended, *self._counted.values()):
                for each in figures.values():
                    _add_figures(sums, each)
        return [((self._group, name), figures) for name, figures in sums.items()]

    def _fresh_gauges(self) -> list[LogGauges | SubscriptionGauges]:
        with self._lock:
            return [gauges for at, gauges in self._gauges.values() if monotonic() - at < STALE_SECONDS]


def _add_figures(sums: dict[str, SubscriptionCounters], figures: SubscriptionCounters) -> None:
    sums.setdefault(figures.subscription, SubscriptionCounters(figures.subscription)).add(figures)


MAX_SILENCE_SECONDS = 10.0
"""Seconds without a report after which a process is not alive: its event loop is blocked."""
MAX_START_SECONDS = 60.0
"""Seconds until the first report of a process that was started."""


class ProcessReport(msgspec.Struct, frozen=True, tag=True):
    """The health of a process, which it reports once a second."""

    obstacle: str | None
    """The reason why it is not ready, in words; None if it is ready."""


@dataclass(frozen=True)
class _KnownProcess:
    """The last report of a process, and its times on the monotonic clock."""

    started_at: float
    heard_at: float | None = None
    obstacle: str | None = "is starting"


class ProcessReports:
    """The reports of all processes, written by one thread and read by another."""

    def __init__(self, size: int, group: str) -> None:
        self.metrics = ProcessMetrics(group)
        """The metrics of the processes."""
        self._size = size
        self._lock = threading.Lock()
        self._known: dict[int, _KnownProcess] = {}

    def add_process(self, process: int) -> None:
        """Note that a process was started."""
        with self._lock:
            self._known[process] = _KnownProcess(monotonic())

    def record(self, process: int, report: ProcessReport | ProcessMeasurement) -> None:
        """Keep what a process reported."""
        if not isinstance(report, ProcessReport):
            self.metrics.record(process, report)
            return
        with self._lock:
            known = self._known.get(process)
            if known is not None:
                self._known[process] = replace(known, heard_at=monotonic(), obstacle=report.obstacle)

    def remove_process(self, process: int) -> None:
        """Forget a process that has ended."""
        self.metrics.remove_process(process)
        with self._lock:
            self._known.pop(process, None)

    def troubles(self) -> list[str]:
        """Return why processes are not alive, in words. One that is being started again is no trouble yet."""
        return [f"process {process} {trouble}" for process, trouble in self._troubles().items()]

    def obstacles(self) -> list[str]:
        """Return why the program is not ready, in words."""
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
        return {process: trouble for process, one in sorted(known.items()) if (trouble := _trouble_of(one, now))}


def _trouble_of(known: _KnownProcess, now: float) -> str | None:
    if known.heard_at is None:
        return (
            f"has not begun within {MAX_START_SECONDS:g} s" if now - known.started_at > MAX_START_SECONDS else None
        )
    silent = now - known.heard_at
    return (
        f"has said nothing for {silent:.0f} s: its event loop is blocked" if silent > MAX_SILENCE_SECONDS else None
    )


_decoder: "msgspec.json.Decoder[ProcessReport | ProcessMeasurement]" = msgspec.json.Decoder(
    ProcessReport | ProcessMeasurement
)


class ReportPipeWriter:
    """The end of the pipe in the process that reports."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)

    def write(self, report: ProcessReport | ProcessMeasurement) -> None:
        """Write a report as one line. It is lost if the reader is gone."""
        with suppress(OSError):
            os.write(self._descriptor, msgspec.json.encode(report) + b"\n")


class ReportPipeReader:
    """The end of the pipe in the supervisor."""

    def __init__(self) -> None:
        self._descriptor, inherited = os.pipe()
        self.inherited = inherited
        """The descriptor that the started process inherits."""

    def close_inherited(self) -> None:
        """Close the inherited end here: the pipe then ends with the process that reports."""
        os.close(self.inherited)
        self.inherited = -1

    async def read(self, record: Callable[[ProcessReport | ProcessMeasurement], None]) -> None:
        """Record the reports until the other end is closed. The first line that is no report ends it, too."""
        loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
        file = os.fdopen(self._descriptor, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), file)
        try:
            async for line in lines:
                record(_decoder.decode(line))
        except (ValueError, msgspec.MsgspecError):
            return
        finally:
            transport.close()
