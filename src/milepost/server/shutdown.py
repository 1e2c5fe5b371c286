"""The shutdown of a server: end what waits with an answer, so that nothing has to be cut off."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from milepost.concurrency import cancel_and_wait
from milepost.server.http.asgi import Receive, wait_until_client_left
from milepost.server.problems import GOING_AWAY, RequestRefused

T = TypeVar("T")


class Shutdown:
    """Whether the server is being stopped."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()
        self.grace = 0.0
        """Seconds, once it is, for what is open to be settled."""

    def begin(self, grace: float = 0.0) -> None:
        """From now on nothing new is waited for, and what is open has so many seconds."""
        self.grace = grace
        self._begun.set()

    @property
    def has_begun(self) -> bool:
        """Whether it is."""
        return self._begun.is_set()

    async def wait(self) -> None:
        """Returns when it is."""
        await self._begun.wait()

    async def run_unless_stopping(
        self,
        work: Coroutine[Any, Any, T],
        *,
        receive: Receive | None = None,
        refusal: Coroutine[Any, Any, None] | None = None,
    ) -> T:
        """What comes of something that may take long; `GOING_AWAY` if the server is stopped before.

        With `receive` it also ends when whoever asked has gone: nobody would have what comes of it. With `refusal`
        it also ends when that raises.
        """
        working = asyncio.create_task(work)
        ends: list[asyncio.Task[Any]] = [asyncio.create_task(self._begun.wait())]
        if receive is not None:
            ends.append(asyncio.create_task(wait_until_client_left(receive)))
        if refusal is not None:
            ends.append(asyncio.create_task(refusal))
        try:
            await asyncio.wait([working, *ends], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            for task in ends:
                if task.done():
                    task.result()
        finally:
            for task in (*ends, working):
                await cancel_and_wait(task)
        raise RequestRefused(GOING_AWAY, "The server is being stopped: ask again, another may answer")
