"""Report what a worker does, so that any process can show it."""

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Protocol

import msgspec

from milepost.dispatch import LimitReached
from milepost.engine.clock import Clock
from milepost.progress.protocol import Progress
from milepost.progress.reports import InFlight, StoppedLane, WorkerReport
from milepost.progress.rows import storable_text

MAX_ERROR_CHARACTERS = 1000
"""Characters of an error that are told."""
MAX_REPORTED_FILTERS = 20
"""Filters of consumers that are told of a lane that is stopped by unrouted messages."""
MAX_REPORTED_MESSAGES = 100
"""Messages in flight that are named, of a subscription."""


class ReportedWork(Protocol):
    """What came of the messages of a subscription in this process."""

    @property
    def handled(self) -> int:
        """How many messages were handled."""
        ...

    @property
    def attempts(self) -> int:
        """How many attempts at messages have ended."""
        ...

    @property
    def handling_seconds(self) -> float:
        """How long these took, together."""
        ...

    @property
    def last_error(self) -> tuple[str, float] | None:
        """Why the last attempt failed that did, and when."""
        ...


class ReportedRunner(Protocol):
    """Something that runs a subscription."""

    @property
    def settler(self) -> ReportedWork:
        """What settles its messages, and counts them."""
        ...

    @property
    def in_flight(self) -> int:
        """How many messages are with handlers, or consumers."""
        ...

    @property
    def stopped(self) -> Mapping[int, LimitReached]:
        """The lanes that read no further, and why."""
        ...

    def flights(self) -> Mapping[int, float | None]:
        """The positions of these, and by `time.monotonic` since when, if that is known."""
        ...


class WorkerReporter:
    """Looks at runners now and then; nothing is told while there is nothing new."""

    def __init__(self, worker: str, progress: Progress, clock: Clock) -> None:
        self._worker = worker
        self._progress = progress
        self._clock = clock
        self._handled: dict[int, int] = {}
        self._looked_at: float | None = None
        self._in_flight: dict[int, dict[int, float]] = {}
        """Since when each message is in flight, or was seen to be, by subscription and position."""
        self._told: dict[int, WorkerReport] = _LastReports()
        self._asked = False

    def report_all_next(self) -> None:
        """The next look is told in any case."""
        self._asked = True

    async def report_end(self, runners: Mapping[int, ReportedRunner]) -> None:
        """Tells that nothing is done any more."""
        self._looked_at = None
        await self.report(runners)

    async def report_end_of(self, subscription: int, runner: ReportedRunner) -> None:
        """Tells that nothing is done for one of them any more."""
        report = self._report(subscription, runner, None)
        for known in (self._handled, self._in_flight, self._told):
            known.pop(subscription, None)
        await self._progress.report(self._worker, [report])

    async def report(self, runners: Mapping[int, ReportedRunner]) -> None:
        """Looks, and tells what is new."""
        now = asyncio.get_running_loop().time()
        elapsed = None if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        reports = [self._report(id_, runner, elapsed) for id_, runner in runners.items()]
        asked, self._asked = self._asked, False
        news = [
            each
            for each in reports
            if asked or each.in_flight or each.stopped or each != self._told[each.subscription]
        ]
        if news:
            await self._progress.report(self._worker, news)
            self._told.update((report.subscription, report) for report in news)

    def _report(self, subscription: int, runner: ReportedRunner, elapsed: float | None) -> WorkerReport:
        work = runner.settler
        handled = work.handled
        new = handled - self._handled.get(subscription, 0)
        self._handled[subscription] = handled
        error = work.last_error
        return WorkerReport(
            subscription=subscription,
            rate=round(new / elapsed, 3) if elapsed else 0.0,
            in_flight=runner.in_flight,
            flights=self._flights(subscription, runner),
            stopped=tuple(StoppedLane(lane, _storable_limit(limit)) for lane, limit in runner.stopped.items()),
            attempts=work.attempts,
            handling_seconds=round(work.handling_seconds, 6),
            error=None if error is None else storable_text(error[0])[:MAX_ERROR_CHARACTERS],
            error_at=None if error is None else error[1],
        )

    def _flights(self, subscription: int, runner: ReportedRunner) -> tuple[InFlight, ...]:
        before, now, clock = self._in_flight.get(subscription, {}), self._clock.now(), monotonic()
        current = {
            position: before.get(position, now) if begun is None else now - (clock - begun)
            for position, begun in runner.flights().items()
        }
        self._in_flight[subscription] = current
        longest = sorted(current, key=current.__getitem__)[:MAX_REPORTED_MESSAGES]
        return tuple(InFlight(position, current[position]) for position in longest)


def _storable_limit(limit: LimitReached) -> LimitReached:
    """With some of the filters, of which there may be many long ones, and no longer key than is told."""
    filters = tuple(storable_text(text[:MAX_ERROR_CHARACTERS]) for text in limit.filters[:MAX_REPORTED_FILTERS])
    key = None if limit.key is None else storable_text(limit.key[:MAX_ERROR_CHARACTERS])
    return msgspec.structs.replace(limit, key=key, filters=filters)


class _LastReports(dict[int, WorkerReport]):
    """What was told of each subscription: at first nothing."""

    def __missing__(self, subscription: int) -> WorkerReport:
        return WorkerReport(subscription=subscription, rate=0.0, in_flight=0)
