"""Waiting without looking again and again: for messages, for what others leave, for what people do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress

from milepost.engine.kept import Kept
from milepost.engine.place import Place
from milepost.log.feed import Followed
from milepost.log.wakeups import ACT
from milepost.progress.pulling import PostgresPulling

LINGER = 10.0
"""Seconds for which notifications are listened to after the last one who waited, since that one may come again."""
POLL_WITHOUT_LISTENING = 0.25
"""Seconds between two looks where notifications do not arrive."""


class Watch:
    """Who waits in this process, of one open `Milepost`. It listens while somebody waits, and a little longer."""

    def __init__(self, place: Place, pulling: PostgresPulling) -> None:
        self._place = place
        self._pulling = pulling
        self._waiting = 0
        self._followed: Followed | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._left: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def of(self, subscription: int) -> AsyncIterator["Wait"]:
        """Within this block nothing that happens to a subscription is missed."""
        await self._join()
        try:
            with ExitStack() as stack:
                wait = Wait(self._place, self._pulling)
                stack.enter_context(self._place.log.feed.waking(wait.woken))
                for word in (ACT, f"pull {subscription}"):
                    stack.enter_context(self._place.services.wakeups.on(word, wait.woken.set))
                yield wait
        finally:
            self._leave()

    async def close(self) -> None:
        """Listens no longer."""
        if self._leaving is not None:
            self._leaving.cancel()
        await self._stop()
        if self._left is not None:
            await self._left

    async def _join(self) -> None:
        self._waiting += 1
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if self._followed is None:
            self._followed = self._place.log.feed.followed()
            await self._followed.__aenter__()
        if self._place.services.kept is Kept.IN_ANOTHER_DATABASE:
            # The log's own listen while it is followed.
            self._place.services.wakeups.start()

    def _leave(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._leaving = asyncio.get_running_loop().call_later(LINGER, self._linger_no_longer)

    def _linger_no_longer(self) -> None:
        self._left = asyncio.create_task(self._stop())

    async def _stop(self) -> None:
        followed, self._followed = self._followed, None
        if followed is None:
            return
        if self._place.services.kept is Kept.IN_ANOTHER_DATABASE:
            await self._place.services.wakeups.stop()
        await followed.__aexit__(None, None, None)


class Wait:
    """One who waits."""

    def __init__(self, place: Place, pulling: PostgresPulling) -> None:
        self._wakeups = place.services.wakeups
        self._database = place.services.transactions
        self._pulling = pulling
        self.woken = asyncio.Event()
        """Set when something happened."""

    async def prepare(self) -> None:
        """What happens from now on ends the next sleep: call it before the look that decides on sleeping."""
        self.woken.clear()
        await self._pulling.mark(self._database)

    async def sleep(self, seconds: float) -> None:
        """Until something happens, or for so long."""
        if not self._wakeups.listening:
            seconds = min(seconds, POLL_WITHOUT_LISTENING)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.woken.wait()
