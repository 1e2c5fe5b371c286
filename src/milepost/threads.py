"""Threads for what would block the event loop: plain handlers, large results."""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")

Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class ThreadsClosed(RuntimeError):
    """The threads have ended, or are about to: a job would wait for ever."""


class Threads:
    """So many threads at most, started as they are needed.

    They are daemons: one whose call never returns does not keep the process from ending.
    """

    def __init__(self, size: int, name: str = "handler") -> None:
        self._size = size
        self._name = name
        self._started = 0
        self._busy = 0
        self._closed = False
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()

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
                error = _ordinary(raised)
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


def _ordinary(error: BaseException) -> Exception:
    """The error, or, for one that would end more than its call or fits no future, one that tells it."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    told = RuntimeError(f"{type(error).__name__}: {error}")
    told.__cause__ = error
    return told
