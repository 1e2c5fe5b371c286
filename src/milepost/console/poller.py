"""Poll snapshots once for all open pages, and rarely while no page is open."""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from math import inf
from time import monotonic

from milepost.concurrency import cancel_and_wait
from milepost.console.charts import RecentHistory
from milepost.console.snapshot import OverviewSnapshot
from milepost.errors import Unavailable


@dataclass(frozen=True)
class PollPace:
    """The pace of polling."""

    seconds: float
    """Seconds between two polls."""
    share: float
    """A slow poll is made less often: so many times as long as it took lies between two."""
    slowest: float
    """Seconds between two polls at the most."""

    def after(self, took: float) -> float:
        """Return the seconds until the next poll, if one took `took` seconds."""
        return min(self.slowest, max(self.seconds, self.share * took))


WATCHED_PACE = PollPace(2.0, 75, 30.0)
"""The pace while a page is open."""
IDLE_PACE = PollPace(10.0, 200, 120.0)
"""The pace while no page is open, so that charts have a past when one is."""
POLL_TIMEOUT_SECONDS = 20.0
"""Seconds after which a poll is given up: the database does not answer."""
SLOW_POLLS_BEFORE_BACKOFF = 3
"""Slow polls in a row before they are made less often."""
LINGER_SECONDS = 60.0
"""Seconds of the usual pace after the last page was closed: a page that is reloaded keeps its charts."""


class OverviewPoller:
    """Polls snapshots, and keeps the newest one and the history of the last minutes."""

    def __init__(self, take_snapshot: Callable[[int], Awaitable[OverviewSnapshot]]) -> None:
        self.history = RecentHistory()
        self._take_snapshot = take_snapshot
        self._newest: OverviewSnapshot | None = None
        self._failure: Exception | None = None
        self._failed_at = -inf
        self._poll_seconds = deque([0.0] * SLOW_POLLS_BEFORE_BACKOFF, maxlen=SLOW_POLLS_BEFORE_BACKOFF)
        """Seconds that the last polls took."""
        self._poll_lock = asyncio.Lock()
        self._changed = asyncio.Condition()
        # Not from 1 on: a page that another server drew must not be taken for one of this one's.
        self._first_number = secrets.randbelow(2**40) + 1
        self._watchers = 0
        self._unwatched_since = -inf
        self._is_running = False
        self._watcher_came = asyncio.Event()
        """Set when a page is opened while none was open."""
        self._task: asyncio.Task[None] | None = None

    @property
    def failure(self) -> Exception | None:
        """The error of the last poll; None if it succeeded."""
        return self._failure

    @property
    def newest(self) -> OverviewSnapshot | None:
        """The snapshot of the last poll; None if there was none yet, or it failed."""
        return self._newest if self._failure is None else None

    async def refresh_if_old(self) -> None:
        """Poll unless that was done lately, for pages that are not live; raise `Unavailable` like `check`."""
        with suppress(Exception):
            await self.now()
        self.check()

    def check(self) -> None:
        """Raise `Unavailable` if the last poll found the database away: it is polled every few seconds."""
        is_polling = self._task is not None and not self._task.done()
        if is_polling and isinstance(self._failure, Unavailable):
            raise self._failure

    async def now(self) -> OverviewSnapshot:
        """Return a snapshot that is at most one pace old; raise the error of a poll that failed."""
        asked = monotonic()
        async with self._poll_lock:
            # A request that waited for a poll that failed need not wait for another.
            if self._failure is not None and self._failed_at > asked:
                raise self._failure
            newest = self._newest
            if newest is None or monotonic() - newest.taken > WATCHED_PACE.after(self._usual_poll_seconds):
                return await self._poll()
            return newest

    async def refresh(self) -> OverviewSnapshot:
        """Poll now and return the snapshot, after a change."""
        async with self._poll_lock:
            return await self._poll()

    async def after(self, number: int, known: Exception | None = None) -> OverviewSnapshot:
        """Return the next snapshot above a number; raise the error of a failed poll, unless it is `known`."""
        async with self._changed:
            while True:
                if self._failure is not None and self._failure is not known:
                    raise self._failure
                if self._failure is None and self._newest is not None and self._newest.number > number:
                    return self._newest
                await self._changed.wait()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Poll at the pace of an open page within the block."""
        self._watchers += 1
        self._watcher_came.set()
        self._start()
        try:
            yield
        finally:
            self._watchers -= 1
            self._unwatched_since = monotonic()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Poll within the block also while no page is open, though seldom."""
        self._is_running = True
        self._start()
        try:
            yield
        finally:
            self._is_running = False
            await self.stop()

    async def stop(self) -> None:
        """Stop polling."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    @property
    def _is_watched(self) -> bool:
        return self._watchers > 0 or monotonic() - self._unwatched_since < LINGER_SECONDS

    @property
    def _number(self) -> int:
        return self._first_number if self._newest is None else self._newest.number

    async def _poll(self) -> OverviewSnapshot:
        began = monotonic()
        try:
            async with asyncio.timeout(POLL_TIMEOUT_SECONDS):
                snapshot = await self._take_snapshot(self._number + 1)
        except TimeoutError:
            failure = Unavailable(f"PostgreSQL: no answer within {POLL_TIMEOUT_SECONDS:g} s")
            await self._publish(self._newest, failure)
            raise failure from None
        except Exception as error:
            await self._publish(self._newest, error)
            raise
        self._poll_seconds.append(monotonic() - began)
        self.history.add(snapshot)
        await self._publish(snapshot, None)
        return snapshot

    async def _run(self) -> None:
        while self._is_running or self._is_watched:
            self._watcher_came.clear()
            # The pages that wait get the error; an unexpected one is logged where a page meets it.
            with suppress(Exception):
                async with self._poll_lock:
                    await self._poll()
            await self._pause()

    @property
    def _usual_poll_seconds(self) -> float:
        """Seconds that a poll usually takes. One that is slow by chance, as the first, does not count."""
        return min(self._poll_seconds)

    async def _pause(self) -> None:
        """Wait until it is time for the next poll."""
        if self._is_watched or self._failure is not None:
            await asyncio.sleep(WATCHED_PACE.after(self._usual_poll_seconds))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(IDLE_PACE.after(self._usual_poll_seconds)):
                await self._watcher_came.wait()

    async def _publish(self, snapshot: OverviewSnapshot | None, failure: Exception | None) -> None:
        async with self._changed:
            self._newest, self._failure = snapshot, failure
            self._failed_at = monotonic() if failure is not None else -inf
            self._changed.notify_all()
