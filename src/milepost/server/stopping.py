"""The end of the server: what waits is told, so that nothing has to be cut off."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from milepost.log.database import end
from milepost.server.problems import GOING_AWAY, Refused

T = TypeVar("T")


class Stopping:
    """Whether the server is being stopped."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()

    def begin(self) -> None:
        """From now on nothing new is waited for."""
        self._begun.set()

    @property
    def begun(self) -> bool:
        """Whether it is."""
        return self._begun.is_set()

    async def wait(self) -> None:
        """Returns when it is."""
        await self._begun.wait()

    async def unless_begun(self, waiting: Coroutine[Any, Any, T]) -> T:
        """What comes of something that may take long; `GOING_AWAY` if the server is stopped before."""
        work, stop = asyncio.create_task(waiting), asyncio.create_task(self._begun.wait())
        try:
            await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
        finally:
            await end(stop)
            await end(work)
        raise Refused(GOING_AWAY, "The server is being stopped: ask again, another may answer")
