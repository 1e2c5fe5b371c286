"""Tells what a worker does, so that it can be looked at from anywhere."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from milepost.engine.clock import Clock
from milepost.progress.protocol import Progress
from milepost.progress.reports import Report, Slow

LONGEST_ERROR = 1000
"""Characters of an error that are told."""
MOST_SLOW = 100
"""Messages that are named, of a subscription."""


class Reported(Protocol):
    """Something that runs a subscription."""

    @property
    def handled(self) -> int:
        """How many messages were handled."""
        ...

    @property
    def last_error(self) -> tuple[str, float] | None:
        """Why the last attempt failed that did, and when."""
        ...

    @property
    def in_flight(self) -> int:
        """How many messages are with handlers, or consumers."""
        ...

    def positions_in_flight(self) -> set[int]:
        """The positions of these."""
        ...


class Reporting:
    """Looks at runners now and then; nothing is told while there is nothing new."""

    def __init__(self, worker: str, progress: Progress, clock: Clock) -> None:
        self._worker = worker
        self._progress = progress
        self._clock = clock
        self._handled: dict[int, int] = {}
        self._looked_at: float | None = None
        self._in_flight: dict[int, dict[int, float]] = {}
        """When each message was first seen in flight, by subscription and position."""
        self._told: dict[int, Report] = _Nothing()

    async def end(self, runners: Mapping[int, Reported]) -> None:
        """Tells that nothing is done any more."""
        self._looked_at = None
        await self.tell(runners)

    async def tell(self, runners: Mapping[int, Reported]) -> None:
        """Looks, and tells what is new."""
        now = asyncio.get_running_loop().time()
        elapsed = None if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        reports = [self._report(id_, runner, elapsed) for id_, runner in runners.items()]
        news = [report for report in reports if report.in_flight or report != self._told[report.subscription]]
        if news:
            await self._progress.report(self._worker, news)
            self._told.update((report.subscription, report) for report in news)

    def _report(self, subscription: int, runner: Reported, elapsed: float | None) -> Report:
        handled = runner.handled
        new = handled - self._handled.get(subscription, 0)
        self._handled[subscription] = handled
        error = runner.last_error
        return Report(
            subscription=subscription,
            rate=round(new / elapsed, 3) if elapsed else 0.0,
            in_flight=runner.in_flight,
            slow=self._slow(subscription, runner),
            error=None if error is None else error[0][:LONGEST_ERROR],
            error_at=None if error is None else error[1],
        )

    def _slow(self, subscription: int, runner: Reported) -> tuple[Slow, ...]:
        """What was in flight at the last look too."""
        before, now = self._in_flight.get(subscription, {}), self._clock.now()
        current = {position: before.get(position, now) for position in runner.positions_in_flight()}
        self._in_flight[subscription] = current
        slow = [Slow(position, current[position]) for position in sorted(current) if position in before]
        return tuple(slow[:MOST_SLOW])


class _Nothing(dict[int, Report]):
    """What was told of each subscription: at first nothing."""

    def __missing__(self, subscription: int) -> Report:
        return Report(subscription=subscription, rate=0.0, in_flight=0)
