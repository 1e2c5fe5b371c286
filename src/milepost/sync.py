"""`mp.sync`: the methods of a `Milepost` for code that is not async.

The async methods are the source. With a blocking connection of the caller's they never suspend, so they are
stepped through in the caller's own thread. Everything else runs on the event loop that the `Milepost` is open
in, or on one in a thread of its own.
"""

import asyncio
import atexit
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from milepost.app import Milepost
from milepost.errors import MilepostError
from milepost.log.connections import executor_of
from milepost.log.message import Message

P = ParamSpec("P")
R = TypeVar("R")


def blocking(
    method: Callable[Concatenate[Milepost, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["SyncMilepost", P], R]:
    """The blocking form of a coroutine method."""

    @wraps(method)
    def call(self: "SyncMilepost", /, *args: P.args, **kwargs: P.kwargs) -> R:
        coroutine = method(self._milepost, *args, **kwargs)
        return self._run(coroutine, kwargs.get("connection"))

    return call


def blocking_pages(
    method: Callable[Concatenate[Milepost, P], AsyncIterator[list[Message[Any]]]],
) -> Callable[Concatenate["SyncMilepost", P], Iterator[Message[Any]]]:
    """The blocking form of a method that gives pages: one change of threads a page."""

    @wraps(method)
    def call(self: "SyncMilepost", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Message[Any]]:
        return self._messages(method(self._milepost, *args, **kwargs), kwargs.get("connection"))

    return call


class SyncMilepost:
    """The methods of a `Milepost`, each of which waits for its result.

    It opens by itself when first used, or by `with mp.sync:`, which also closes it.
    """

    def __init__(self, milepost: Milepost) -> None:
        self._milepost = milepost
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None

    append = blocking(Milepost.append)
    append_many = blocking(Milepost.append_many)
    head = blocking(Milepost.head)
    last = blocking(Milepost.last)
    read = blocking_pages(Milepost.read_pages)
    follow = blocking_pages(Milepost.follow_pages)

    def __enter__(self) -> Self:
        self._loop()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections that were opened here."""
        with self._lock:
            if self._thread is not None:
                self._thread.run(self._milepost.__aexit__(None, None, None))
                self._thread.stop()
                self._thread = None

    def _run(self, coroutine: Coroutine[Any, Any, R], connection: object | None) -> R:
        if connection is not None:
            _refuse_async(coroutine, connection)
            return _step_through(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop(coroutine)).result()

    def _messages(
        self, pages: AsyncIterator[list[Message[Any]]], connection: object | None
    ) -> Iterator[Message[Any]]:
        try:
            while (page := self._run(_next_page(pages), connection)) is not None:
                yield from page
        finally:
            self._run(_close(pages), connection)

    def _loop(self, unstarted: Coroutine[Any, Any, Any] | None = None) -> asyncio.AbstractEventLoop:
        loop = self._milepost._loop
        if loop is not None and self._thread is None:
            if loop is _running_loop():
                if unstarted is not None:
                    unstarted.close()
                raise MilepostError("mp.sync would block this event loop: await the method of mp itself")
            return loop
        with self._lock:
            if self._thread is None:
                thread = _LoopThread()
                thread.run(self._milepost.__aenter__())
                self._thread = thread
                atexit.register(self.close)
            return self._thread.loop


class _LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="milepost-sync", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _refuse_async(coroutine: Coroutine[Any, Any, Any], connection: object) -> None:
    if not executor_of(connection).blocking:
        coroutine.close()
        raise TypeError("connection: it is an async one; await the method of mp itself instead of mp.sync")


def _step_through(coroutine: Coroutine[Any, Any, R]) -> R:
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: R = finished.value
        return result
    coroutine.close()
    raise MilepostError("a call on a blocking connection tried to wait for something else")


async def _next_page(pages: AsyncIterator[list[Message[Any]]]) -> list[Message[Any]] | None:
    return await anext(pages, None)


async def _close(pages: Any) -> None:
    await pages.aclose()
