"""Report a program's health once a second from its own event loop: a blocked loop reports nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from milepost.app import Milepost
from milepost.cli.run.reports import ProcessMeasurement, ProcessReport
from milepost.concurrency import cancel_and_wait
from milepost.contrib.gauges import read_gauges
from milepost.engine.observe.counters import EventCounter
from milepost.engine.observe.events import Started, Stopped
from milepost.errors import Unavailable

REPORT_SECONDS = 1.0
"""Seconds between two reports."""
REACH_SECONDS = 5.0
"""Seconds between two probes of the database."""
MAX_UNREACHED_SECONDS = 15.0
"""Seconds after which a database that was not reached is an obstacle."""


class HealthReporter:
    """Reports the health and the metrics of a program, from before it opens to its end."""

    def __init__(self, mp: Milepost, send: Callable[[ProcessReport | ProcessMeasurement], None]) -> None:
        self._mp = mp
        self._send = send
        self._counter = EventCounter(mp.on_event)
        self._working: set[str] = set()
        self._reached_at = monotonic()
        self._error: Unavailable | None = None
        mp.on_event(self._note_event)

    def _note_event(self, event: Started | Stopped) -> None:
        if not self._declares(event):
            return
        # Of each subscription, after all of them were declared; one that was deleted stops alone.
        if isinstance(event, Started):
            self._working.add(event.subscription)
        else:
            self._working.discard(event.subscription)

    @asynccontextmanager
    async def reporting(self) -> AsyncIterator[None]:
        """Report from the start of the block to its end. The program is open within it."""
        async with _in_background(self._send_reports()), self._mp, _in_background(self._probe_database()):
            yield

    async def _send_reports(self) -> None:
        while True:
            self._send(ProcessReport(self._obstacle()))
            for (group, _), figures in self._counter.figures():
                # Another group's name beside its own would be too much for a pipe to take at once.
                if group == self._mp.settings["group"].value:
                    self._send(figures)
            await asyncio.sleep(REPORT_SECONDS)

    def _declares(self, event: Started | Stopped) -> bool:
        """Return True for a subscription with handlers: that consumers run does not mean that handlers do."""
        if event.group != self._mp.settings["group"].value:
            return False
        return any(event.subscription == declared.name for declared in self._mp.declared())

    def _obstacle(self) -> str | None:
        if not self._working:
            return "does not work on its subscriptions: it is starting or stopping"
        silent = monotonic() - self._reached_at
        if silent > MAX_UNREACHED_SECONDS:
            why = f": {self._error}" if self._error else ""
            return f"has not reached the database for {silent:.0f} s{why}"
        return None

    async def _probe_database(self) -> None:
        while True:
            try:
                await self._mp.log.current_horizon(wait_for_short_appends=False)
                self._reached_at, self._error = monotonic(), None
                await self._send_gauges()
            except Unavailable as error:
                self._error = error
            await asyncio.sleep(REACH_SECONDS)

    async def _send_gauges(self) -> None:
        """Send the gauges of the log and of subscriptions. A store of progress that is silent is no obstacle."""
        gauges = await read_gauges(self._mp)
        if gauges is not None:
            self._send(gauges.log)
            for subscription in gauges.subscriptions:
                self._send(subscription)


@asynccontextmanager
async def _in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await cancel_and_wait(task)
