"""Run the subscriptions of a program: until a signal, until idle, or supervised inside another program."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, get_args

from milepost.engine.checks import checked, one_of, optional, seconds
from milepost.engine.declare.handler import AnyDelivery
from milepost.engine.declare.outcomes import EndsProgram
from milepost.engine.handlers.host import OnFailure
from milepost.engine.handlers.settler import RunTally
from milepost.engine.handlers.slots import Stuck
from milepost.engine.handlers.worker import Worker
from milepost.engine.observe.listeners import Listeners
from milepost.engine.runtime import Runtime
from milepost.errors import MilepostError
from milepost.log.append import Appender

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


ErrorsOption = Literal["raise", "park"]


class Program:
    """What a Milepost runs: its subscriptions, on its log."""

    def __init__(self, runtime: Runtime, appender: Appender, *, concurrency: int, listeners: Listeners) -> None:
        self._runtime = runtime
        self._subscriptions = runtime.subscriptions
        self._appender = appender
        self._concurrency = concurrency
        self._listeners = listeners

    def supervisor(self, only: str | Collection[str] | None, grace: float) -> Supervisor:
        """Return what works inside another program, which goes on when a handler hangs."""
        return Supervisor(self._workers(only=only, grace=grace))

    @asynccontextmanager
    async def running(
        self,
        *,
        only: str | Collection[str] | None = None,
        grace: float,
        exits: bool = False,
        on_failure: OnFailure | None = None,
    ) -> AsyncIterator[Worker]:
        """Work from the beginning of the block to its end. A handler that hangs ends it: `Stuck`.

        With `exits` the process ends when a handler blocks its event loop for good.
        """
        worker = self._workers(only=only, grace=grace, exits=exits, on_failure=on_failure)()
        try:
            async with worker.running():
                yield worker
        except BaseExceptionGroup as errors:
            error = only_error(errors)
            raise error from error.__cause__

    def _workers(
        self,
        *,
        only: str | Collection[str] | None,
        grace: float,
        exits: bool = False,
        on_failure: OnFailure | None = None,
    ) -> Callable[[], Worker]:
        """Return a function that makes a worker of the chosen subscriptions; refuse what cannot run."""
        checked("grace", seconds(), grace)
        names = checked("only", optional(_checked_names), only)
        self._subscriptions.check()
        chosen = list(self._subscriptions) if names is None else [self._subscriptions[name] for name in names]
        if not chosen:
            raise MilepostError("there are no subscriptions: declare one with @mp.subscription(…)")
        return lambda: Worker(
            self._runtime,
            self._appender,
            subscriptions=chosen,
            concurrency=self._concurrency,
            grace=grace,
            exits=exits,
            on_failure=on_failure,
            audience=self._listeners.audience(),
        )

    async def run_until_idle(
        self, errors: ErrorsOption, only: str | Collection[str] | None = None
    ) -> dict[str, RunTally]:
        """Works until nothing is left that can run; raises a handler's error, or parks its message."""
        checked("errors", one_of(*get_args(ErrorsOption)), errors)
        raised: list[BaseException] = []
        over = asyncio.Event()

        def on_failure(delivery: AnyDelivery, error: BaseException) -> bool:
            if errors == "raise":
                raised.append(error)
                over.set()
            return errors == "park"

        async with self.running(only=only, grace=5, on_failure=on_failure) as worker:
            await _wait_for_first(worker.idle(), over.wait())
            report = {name: runner.report() for name, runner in worker.runners.items()}
        if raised:
            raise raised[0]
        return report

    async def run(self, grace: float, *, insist: bool = True) -> None:
        """Works until SIGINT or SIGTERM; the first lets what runs end, the second ends the process.

        Without `insist` the second says nothing new: where somebody watches over this process, and kills it when
        that is meant, the same request may come from several sides.
        """
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def on_signal(number: signal.Signals) -> None:
            if stop.is_set() and insist:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)
        try:
            async with self.running(grace=grace, exits=True):
                await stop.wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def _checked_names(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Collection) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError("the name of a subscription or several are wanted (leave it out to run all)")
    return list(dict.fromkeys(names))


async def _wait_for_first(*works: Coroutine[Any, Any, Any]) -> None:
    """Waits for the first of these, and raises what it raises."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
