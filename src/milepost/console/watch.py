"""Looks at everything now and then, once for all who watch, and seldom while nobody does."""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from math import inf
from time import monotonic

from milepost.console.history import History
from milepost.console.snapshot import Snapshot
from milepost.errors import Unavailable
from milepost.log.database import end


@dataclass(frozen=True)
class Pace:
    """How often it is looked."""

    seconds: float
    """Between two looks."""
    share: float
    """A look that takes long is made less often: so many times as long lies between two."""
    slowest: float
    """Seconds between two looks at the most."""

    def after(self, took: float) -> float:
        """Seconds until the next look, if one took so many."""
        return min(self.slowest, max(self.seconds, self.share * took))


WATCHED = Pace(2.0, 75, 30.0)
"""While somebody watches."""
ALONE = Pace(10.0, 200, 120.0)
"""While nobody does: so that the charts of whoever comes have a past."""
PATIENCE = 20.0
"""Seconds after which a look is given up: the database does not answer."""
FEW = 3
"""Looks in a row that take long before they are made less often."""
LINGER = 60.0
"""Seconds for which it goes on as if watched when nobody is: whoever reloads a page keeps its charts."""


class Watch:
    """Keeps the newest snapshot and the last minutes."""

    def __init__(self, look: Callable[[int], Awaitable[Snapshot]]) -> None:
        self.history = History()
        self._look = look
        self._newest: Snapshot | None = None
        self._failure: Exception | None = None
        self._failed_at = -inf
        self._took = deque([0.0] * FEW, maxlen=FEW)
        """Seconds that the last looks took."""
        self._looking = asyncio.Lock()
        self._changed = asyncio.Condition()
        # Not from 1 on: a page that another server drew must not be taken for one of this one's.
        self._first = secrets.randbelow(2**40) + 1
        self._watchers = 0
        self._left = -inf
        self._is_running = False
        self._watched = asyncio.Event()
        """Set when somebody comes while nobody was there."""
        self._task: asyncio.Task[None] | None = None

    @property
    def failure(self) -> Exception | None:
        """What keeps anybody from looking, if something did the last time."""
        return self._failure

    @property
    def newest(self) -> Snapshot | None:
        """How everything stood when it was looked last; None: nobody has yet, or nobody can."""
        return self._newest if self._failure is None else None

    async def look_if_old(self) -> None:
        """Look unless that was done lately, for pages that do not follow; raises `Unavailable` like `check`."""
        with suppress(Exception):
            await self.now()
        self.check()

    def check(self) -> None:
        """Raises `Unavailable` if the database is known to be away: it is looked for every few seconds."""
        is_looking = self._task is not None and not self._task.done()
        if is_looking and isinstance(self._failure, Unavailable):
            raise self._failure

    async def now(self) -> Snapshot:
        """How everything stands, as of a moment ago; raises what keeps anybody from looking."""
        asked = monotonic()
        async with self._looking:
            # Whoever waited for a look that failed need not wait for another.
            if self._failure is not None and self._failed_at > asked:
                raise self._failure
            newest = self._newest
            if newest is None or monotonic() - newest.taken > WATCHED.after(self._usual):
                return await self._take()
            return newest

    async def look_again(self) -> Snapshot:
        """How everything stands after something was done."""
        async with self._looking:
            return await self._take()

    async def after(self, number: int, known: Exception | None = None) -> Snapshot:
        """The next snapshot with a higher number; raises what keeps anybody from looking, unless it is `known`."""
        async with self._changed:
            while True:
                if self._failure is not None and self._failure is not known:
                    raise self._failure
                if self._failure is None and self._newest is not None and self._newest.number > number:
                    return self._newest
                await self._changed.wait()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within this block there are new snapshots."""
        self._watchers += 1
        self._watched.set()
        self._begin()
        try:
            yield
        finally:
            self._watchers -= 1
            self._left = monotonic()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Within this block it is looked also when nobody watches, though seldom."""
        self._is_running = True
        self._begin()
        try:
            yield
        finally:
            self._is_running = False
            await self.stop()

    async def stop(self) -> None:
        """Looks no more."""
        if self._task is not None:
            await end(self._task)

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._go_on())

    @property
    def _is_watched(self) -> bool:
        return self._watchers > 0 or monotonic() - self._left < LINGER

    @property
    def _number(self) -> int:
        return self._first if self._newest is None else self._newest.number

    async def _take(self) -> Snapshot:
        began = monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                snapshot = await self._look(self._number + 1)
        except TimeoutError:
            failure = Unavailable(f"PostgreSQL: no answer within {PATIENCE:g} s")
            await self._tell(self._newest, failure)
            raise failure from None
        except Exception as error:
            await self._tell(self._newest, error)
            raise
        self._took.append(monotonic() - began)
        self.history.add(snapshot)
        await self._tell(snapshot, None)
        return snapshot

    async def _go_on(self) -> None:
        while self._is_running or self._is_watched:
            self._watched.clear()
            # Those who wait are told; a fault that nobody foresaw is logged where a page meets it.
            with suppress(Exception):
                async with self._looking:
                    await self._take()
            await self._rest()

    @property
    def _usual(self) -> float:
        """Seconds that a look takes. One that took long by chance, as the first may, keeps nobody waiting."""
        return min(self._took)

    async def _rest(self) -> None:
        """Until it is time for the next look."""
        if self._is_watched or self._failure is not None:
            await asyncio.sleep(WATCHED.after(self._usual))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(ALONE.after(self._usual)):
                await self._watched.wait()

    async def _tell(self, snapshot: Snapshot | None, failure: Exception | None) -> None:
        async with self._changed:
            self._newest, self._failure = snapshot, failure
            self._failed_at = monotonic() if failure is not None else -inf
            self._changed.notify_all()
