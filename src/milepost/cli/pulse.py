"""How a program is, said once a second from its own event loop: a loop that is blocked says nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from milepost.app import Milepost
from milepost.cli.metrics import Measured
from milepost.cli.reports import Report
from milepost.contrib.outlook import outlook_of
from milepost.engine.figures import Counting
from milepost.errors import Unavailable
from milepost.events import Started, Stopped
from milepost.log.database import end

BEAT = 1.0
"""Seconds between two reports."""
REACH_EVERY = 5.0
"""Seconds between two looks whether the database is there."""
REACHED_WITHIN = 15.0
"""Seconds after which a database that was not reached is an obstacle."""


class Pulse:
    """Follows a program from before it opens to its end, and tells how it is."""

    def __init__(self, mp: Milepost, tell: Callable[[Report | Measured], None]) -> None:
        self._mp = mp
        self._tell = tell
        self._counting = Counting(mp.on_event)
        self._working: set[str] = set()
        self._reached = monotonic()
        self._error: Unavailable | None = None
        mp.on_event(self._hear)

    def _hear(self, event: Started | Stopped) -> None:
        if not self._declares(event):
            return
        # Of each subscription, after all of them were declared; one that was deleted stops alone.
        if isinstance(event, Started):
            self._working.add(event.subscription)
        else:
            self._working.discard(event.subscription)

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Tells from the beginning of the block to its end, in which the program opens."""
        async with _running(self._beat()), self._mp, _running(self._reach()):
            yield

    async def _beat(self) -> None:
        while True:
            self._tell(Report(self._obstacle()))
            for (group, _), figures in self._counting.figures():
                # Another group's name beside its own would be too much for a pipe to take at once.
                if group == self._mp.settings["group"].value:
                    self._tell(figures)
            await asyncio.sleep(BEAT)

    def _declares(self, event: Started | Stopped) -> bool:
        """Whether it is of one with handlers: that consumers are here does not mean that those are called."""
        if event.group != self._mp.settings["group"].value:
            return False
        return any(event.subscription == declared.name for declared in self._mp.declared())

    def _obstacle(self) -> str | None:
        if not self._working:
            return "does not work on its subscriptions: it is starting or stopping"
        silent = monotonic() - self._reached
        if silent > REACHED_WITHIN:
            why = f": {self._error}" if self._error else ""
            return f"has not reached the database for {silent:.0f} s{why}"
        return None

    async def _reach(self) -> None:
        while True:
            try:
                await self._mp.log.horizon.sample()
                self._reached, self._error = monotonic(), None
                await self._measure()
            except Unavailable as error:
                self._error = error
            await asyncio.sleep(REACH_EVERY)

    async def _measure(self) -> None:
        """Tells how things stand. If whoever keeps progress does not answer, that is no obstacle."""
        outlook = await outlook_of(self._mp)
        if outlook is not None:
            self._tell(outlook.log)
            for subscription in outlook.subscriptions:
                self._tell(subscription)


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await end(task)
