"""Work on what somebody sent, in steps between which everybody else has a turn."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import TypeAlias

QUICK_BYTES = 64 * 2**10
"""What is larger than this waits until nothing else that is as large is worked on."""
STEP_SECONDS = 0.01
"""After how long others have a turn."""

Step: TypeAlias = Callable[[], Awaitable[None]]
"""To be awaited between two parts of the work."""


class Turns:
    """One large body after the other: side by side, they would make each turn as long as all of theirs."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def of(self, size: int) -> AsyncIterator[Step]:
        """Yield the step for work on so many bytes; first wait until other work on as much is done."""
        if size <= QUICK_BYTES:
            yield _step()
            return
        async with self.alone() as step:
            yield step

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Step]:
        """Yield the step for work that takes long; first wait until no other such work is under way."""
        async with self._lock:
            yield _step()


def _step() -> Step:
    since = monotonic()

    async def step() -> None:
        nonlocal since
        if monotonic() - since > STEP_SECONDS:
            await asyncio.sleep(0)
            since = monotonic()

    return step
