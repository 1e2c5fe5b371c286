"""Threads for what would block the event loop, and work that goes on when whoever waits for it is cancelled."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")

ThreadJob = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class ThreadsClosed(RuntimeError):
    """The threads have ended, or are about to: a job would wait for ever."""


class DaemonThreads:
    """So many threads at most, started as they are needed.

    They are daemons: one whose call never returns does not keep the process from ending.
    """

    def __init__(self, size: int, name: str = "handler") -> None:
        self._size = size
        self._name = name
        self._started = 0
        self._busy = 0
        self._closed = False
        self._jobs: SimpleQueue[ThreadJob | None] = SimpleQueue()

    def run(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """Calls a function in a thread; the future gets what it returns or raises. Raises `ThreadsClosed`."""
        if self._closed:
            raise ThreadsClosed(f"threads of {self._name} are closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._busy == self._started < self._size:
            name = f"milepost-{self._name}-{self._started + 1}"
            Thread(target=self._work, name=name, daemon=True).start()
            # Not before: of one that could not be started a job would wait for ever.
            self._started += 1
        self._busy += 1
        self._jobs.put((function, future))
        return future

    def close(self) -> None:
        """Threads that are idle end, the others when their calls return. Nothing more can be called."""
        self._closed = True
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            result: Any = None
            error: Exception | None = None
            try:
                result = function()
            except BaseException as raised:
                error = _as_ordinary_error(raised)
            loop = future.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._end, future, result, error)
            del job, function, future, result, error

    def _end(self, future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
        self._busy -= 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _as_ordinary_error(error: BaseException) -> Exception:
    """The error, or, for one that would end more than its call or fits no future, one that tells it."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    told = RuntimeError(f"{type(error).__name__}: {error}")
    told.__cause__ = error
    return told


_unawaited_tasks: set[asyncio.Task[None]] = set()
"""What nobody may wait for any more: the event loop itself keeps no task alive."""


async def run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Waits for the end of some work. A cancellation ends the waiting, not the work."""
    task = asyncio.create_task(work)
    _unawaited_tasks.add(task)
    task.add_done_callback(_unawaited_tasks.discard)
    await asyncio.shield(task)


async def run_to_end_if_it_waits(work: Coroutine[Any, Any, None]) -> None:
    """The same for work that seldom has to wait, and then for locks only: most of the time it needs no task."""
    try:
        waits_for = work.send(None)
    except StopIteration:
        return
    await run_to_end(_run_rest(work, waits_for))


async def _run_rest(work: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await _StartedCoroutine(work, waits_for)


class _StartedCoroutine:
    """What is left of a coroutine that has begun to wait for something."""

    def __init__(self, work: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        while True:
            try:
                try:
                    value = yield self._waits_for
                except BaseException as error:
                    self._waits_for = self._work.throw(error)
                else:
                    self._waits_for = self._work.send(value)
            except StopIteration:
                return


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancels a task until it ends: one cancellation may get lost in the driver."""
    if not task.cancelling():
        task.cancel()
    while not task.done():
        await asyncio.wait([task], timeout=1)
        task.cancel()
    if not task.cancelled():
        # Looked at, so that nobody is told of an error that nobody waits for any more.
        task.exception()


def in_event_loop() -> bool:
    """Return True if this thread runs an event loop now."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
