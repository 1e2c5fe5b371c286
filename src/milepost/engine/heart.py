"""The heartbeat of a worker, in a thread of its own: no handler can starve it."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from milepost.errors import Unavailable

logger = logging.getLogger("milepost.engine")

Beat = Callable[[], Awaitable[bool]]


class Heart:
    """Beats every so many seconds until it is stopped, on a connection and an event loop of its own."""

    def __init__(self, beating: Callable[[], AbstractAsyncContextManager[Beat]], seconds: float) -> None:
        self._beating = beating
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="milepost-heart", daemon=True)

    def start(self) -> None:
        """Begins to beat."""
        self._thread.start()

    async def stop(self) -> None:
        """Ends it, and waits for it."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        asyncio.run(self._beat())

    async def _beat(self) -> None:
        while not self._stop.is_set():
            try:
                async with self._beating() as beat:
                    while not await asyncio.to_thread(self._stop.wait, self._seconds):
                        await beat()
            except Unavailable as error:
                logger.warning("the heartbeat waits: %s", error)
                await asyncio.to_thread(self._stop.wait, min(1.0, self._seconds))
