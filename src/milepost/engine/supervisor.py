"""Keeps workers inside another program going: a handler that hangs ends one, and the next one takes over."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from milepost.engine.outcomes import EndsProgram
from milepost.engine.slots import Stuck
from milepost.engine.worker import Worker
from milepost.errors import MilepostError

logger = logging.getLogger("milepost.engine")

MAX_RESTARTS = 3
"""How many workers follow the first one. Each that ends leaves a thread behind, which may hang for ever."""
RETRY_SECONDS = 1.0
"""Pause before a worker is started again that could not start, since the database was not there."""


class Supervisor:
    """Runs one worker after the other, in a task of its own: the program around it goes on when one ends."""

    def __init__(self, make_worker: Callable[[], Worker]) -> None:
        self._make_worker = make_worker
        self._worker: Worker | None = None
        self._started = asyncio.Event()
        self._stop = asyncio.Event()
        self._restarts = 0
        self._failure: str | None = None
        self.is_over = False
        """Whether its block has ended."""

    def failure(self) -> str | None:
        """Return why nothing is handled here any more; None if all is well. Any thread may ask."""
        worker = self._worker
        if self._failure is None and worker is not None and worker.is_blocked():
            return "a handler blocks the event loop, or ignores that its time is up"
        return self._failure

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work from the beginning of the block to its end. An error that a new worker would not mend ends it."""
        try:
            async with asyncio.TaskGroup() as group:
                supervising = group.create_task(self._supervise())
                await self._started.wait()
                try:
                    yield
                finally:
                    self._stop.set()
                    # Leaving the group after an error of the block would cancel it while it gives lanes back.
                    await asyncio.wait([supervising])
        except BaseExceptionGroup as errors:
            error = only_error(errors)
            raise error from error.__cause__
        finally:
            self.is_over = True

    async def _supervise(self) -> None:
        try:
            while self._restarts <= MAX_RESTARTS:
                if await self._ends_well():
                    return
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._failure = f"the workers of this process ended with an error: {error!r}"
            raise
        self._failure = f"handlers have hung {self._restarts} times: workers do not start again in this process"
        logger.critical("%s; Milepost.health() fails from now on, until the process is replaced", self._failure)
        await self._stop.wait()

    async def _ends_well(self) -> bool:
        """Run one worker. Return False if another one is to follow."""
        try:
            self._worker = self._make_worker()
            async with self._worker.running():
                self._started.set()
                await self._stop.wait()
        except (BaseExceptionGroup, MilepostError) as raised:
            if self._stop.is_set() or not await self._may_follow(only_error(raised)):
                raise
            return self._stop.is_set()
        return True

    async def _may_follow(self, error: BaseException) -> bool:
        """Return whether a new worker may do better, when it is time for that."""
        if isinstance(error, Stuck):
            self._restarts += 1
            if self._restarts <= MAX_RESTARTS:
                logger.critical(
                    "%s: it is left to itself, and the workers of this process start again, %d of %d times",
                    error,
                    self._restarts,
                    MAX_RESTARTS,
                )
            return True
        if not self._restarts or not isinstance(error, MilepostError) or not error.transient:
            return False
        logger.warning("the workers of this process cannot start again yet: %s", error)
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_SECONDS):
                await self._stop.wait()
        return True


def only_error(error: BaseException) -> BaseException:
    """Return the error that a group has alone, or what was given. What ends the program comes first."""
    while isinstance(error, BaseExceptionGroup):
        ending = error.subgroup(EndsProgram)
        if ending is None and len(error.exceptions) > 1:
            return error
        error = (ending or error).exceptions[0]
    return error.error if isinstance(error, EndsProgram) else error
