"""Blocking calls of what lives on an event loop: that of whoever opened it, or one in a thread of its own."""

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from milepost.concurrency import cancel_and_wait
from milepost.engine.declare.outcomes import EndsProgram, carry_program_end
from milepost.errors import MilepostError

P = ParamSpec("P")
R = TypeVar("R")

SIGNAL_CHECK_SECONDS = 0.1
"""Pause between two checks of a blocked main thread for signals that another thread received."""

INTERRUPTED_SECONDS = 5.0
"""Time limit of calls that were interrupted, when what they use is closed."""

CLOSED_TEXT = "sync, or the event loop it uses, was closed meanwhile: call it again"


class LoopBound(Protocol):
    """What is open on one event loop at a time."""

    _loop: asyncio.AbstractEventLoop | None

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...

    def forget(self) -> object:
        """In a forked process: what is open stayed in the parent; gives what must not be ended here."""
        ...


T = TypeVar("T")
O = TypeVar("O", bound=LoopBound)  # noqa: E741 - what opens


class BlockingMethods(Generic[T]):
    """Something whose coroutines are waited for."""

    _target: T

    def _run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        raise NotImplementedError

    def _items(self, pages: AsyncGenerator[list[R], None]) -> Iterator[R]:
        raise NotImplementedError


def blocking_method(
    method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[BlockingMethods[T], P], R]:
    """The blocking form of a coroutine method."""

    @wraps(method)
    def call(self: BlockingMethods[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(lambda: method(self._target, *args, **kwargs))

    return call


def blocking_page_method(
    method: Callable[Concatenate[T, P], AsyncGenerator[list[R], None]],
) -> Callable[Concatenate[BlockingMethods[T], P], Iterator[R]]:
    """The blocking form of a method that gives pages: one change of threads a page."""

    @wraps(method)
    def call(self: BlockingMethods[T], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return self._items(method(self._target, *args, **kwargs))

    return call


class SyncBridge(BlockingMethods[O]):
    """Calls from as many threads as you like. It opens by itself, and closes when the program ends."""

    def __init__(self, target: O) -> None:
        self._target = target
        self._lock = threading.RLock()
        self._thread: _LoopThread | None = None
        self._closing: set[asyncio.Task[None]] = set()
        _open_bridges.add(self)

    def __enter__(self) -> Self:
        with self._open_loop():
            return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections that were opened here; what other threads still wait for fails.

        The next call opens again. A `Milepost` that is open in an event loop is left alone.
        """
        if self._thread is not None:
            _refuse_own_loop(self._thread.loop)
        with _locked(self._lock):
            thread, self._thread = self._thread, None
            if thread is None:
                return
            atexit.unregister(self.close)
            try:
                thread.run(self._end())
            finally:
                thread.stop()

    async def _end(self) -> None:
        # What was interrupted may have something to take back, for which it needs what ends here.
        if interrupted := {task for task in asyncio.all_tasks() if task.cancelling()}:
            await asyncio.wait(interrupted, timeout=INTERRUPTED_SECONDS)
        # Pages that were abandoned end before the log they come from.
        if abandoned := self._closing & asyncio.all_tasks():
            await asyncio.wait(abandoned)
        await self._target.__aexit__(None, None, None)

    def _run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        with self._open_loop() as loop:
            future = _submit(call(), loop)
        try:
            return _result(future)
        except BaseException:
            # The waiting itself may have been interrupted, by Ctrl-C.
            future.cancel()
            raise

    @contextmanager
    def _block(self, block: Callable[[], AbstractAsyncContextManager[None]]) -> Iterator[None]:
        held = _HeldBlock(block)
        with self._open_loop() as loop:
            future = _submit(held.hold(), loop)
        try:
            held.wait_for_entry(future)
        except BaseException:
            future.cancel()
            raise
        try:
            yield
        finally:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(held.leave)
            _result(future)

    def _items(self, pages: AsyncGenerator[list[R], None]) -> Iterator[R]:
        """What is in the pages, one by one."""
        with self._open_loop() as loop:
            return self._items_from(_PageSteps(pages, self._closing), loop)

    def _items_from(self, steps: "_PageSteps[R]", loop: asyncio.AbstractEventLoop) -> Iterator[R]:
        try:
            while (page := self._next_page(steps, loop)) is not None:
                yield from page
        finally:
            # It may be the garbage collector, in any thread, that ends this: it must not wait. A closed loop
            # has ended the pages itself.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(steps.abandon)

    def _next_page(self, steps: "_PageSteps[R]", loop: asyncio.AbstractEventLoop) -> list[R] | None:
        _refuse_own_loop(loop)
        with _locked(self._lock):
            if loop.is_closed():
                raise MilepostError(CLOSED_TEXT)
            future = _submit(steps.next(), loop)
        return _result(future)

    @contextmanager
    def _open_loop(self) -> Iterator[asyncio.AbstractEventLoop]:
        """The event loop to run on, which `close` leaves alone inside of this."""
        _refuse_own_loop(self._target._loop)
        with _locked(self._lock):
            loop = self._target._loop
            if loop is None:
                self._thread = _LoopThread.opening(self._target)
                loop = self._thread.loop
                atexit.register(self.close)
            yield loop

    def _here(self) -> "LoopCaller":
        with self._open_loop() as loop:
            return LoopCaller(loop, self._lock)

    def _forget(self) -> None:
        """In a forked process: the thread stayed in the parent, and so do its connections."""
        _inherited.append((self._thread, self._target.forget()))
        atexit.unregister(self.close)
        self._lock, self._thread = threading.RLock(), None


class BridgedPart(BlockingMethods[T]):
    """What something gives, on the same loop."""

    def __init__(self, whole: SyncBridge[Any], target: T) -> None:
        self._whole = whole
        self._target = target

    def _run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        return self._whole._run(call)

    def _items(self, pages: AsyncGenerator[list[R], None]) -> Iterator[R]:
        return self._whole._items(pages)


class _HeldBlock:
    """An async block that one task is in, from its beginning to its end, while a thread does something else."""

    def __init__(self, block: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self._block = block
        self._entered: Future[None] = Future()
        self._leave = asyncio.Event()

    async def hold(self) -> None:
        async with self._block():
            self._entered.set_result(None)
            await self._leave.wait()

    def wait_for_entry(self, holding: Future[None]) -> None:
        """Waits until the block has begun; raises what kept it from that."""
        _wait_for_any([self._entered, holding])
        if not self._entered.done():
            _result(holding)

    def leave(self) -> None:
        """Ends the block; to be called on its loop."""
        self._leave.set()


class LoopCaller:
    """Runs coroutines on one loop, which something else lives on too."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lock: threading.RLock) -> None:
        self._loop = loop
        self._lock = lock
        """Whoever has it knows that the loop goes on."""
        self._process = os.getpid()

    def __call__(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """The coroutine's result. After the end of the loop nothing is waited for: all has ended with it."""
        try:
            self._refuse_elsewhere()
        except MilepostError:
            coroutine.close()
            raise
        with _locked(self._lock):
            if self._loop.is_closed():
                return step_through(coroutine)
            future = _submit(coroutine, self._loop)
        try:
            return _result(future)
        except BaseException:
            # The waiting itself may have been interrupted, by Ctrl-C.
            future.cancel()
            raise

    def _refuse_elsewhere(self) -> None:
        _refuse_own_loop(self._loop)
        if os.getpid() != self._process:
            raise MilepostError("a consumer stays in the process that it was opened in: open one here")


class _LoopThread:
    """An event loop in a thread of its own."""

    @classmethod
    def opening(cls, target: LoopBound) -> Self:
        """One in which something is open."""
        thread = cls()
        try:
            thread.run(target.__aenter__())
        except BaseException:
            thread.stop()
            raise
        return thread

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_ThreadPerCall())
        self._thread = threading.Thread(target=self._live, name="milepost-sync", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """The coroutine's result."""
        return _result(_submit(coroutine, self.loop))

    def stop(self) -> None:
        """Ends the loop and all that still runs on it."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        pause = _signal_check_seconds()
        while self._thread.is_alive():
            self._thread.join(pause)

    def _live(self) -> None:
        loop = self.loop
        loop.run_forever()
        # As asyncio.run() does, but for waiting for the executor: that takes a new thread, which a program that is
        # ending cannot have.
        while asyncio.all_tasks(loop):
            loop.run_until_complete(_end_others())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*(cancel_and_wait(task) for task in others))


class _ThreadPerCall(ThreadPoolExecutor):
    """A thread for each call, such as for looking up a host's address.

    The usual executor refuses calls once the main thread has ended, while other threads may work on for long.
    """

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        future: Future[R] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        threading.Thread(target=run, name="milepost-sync-call", daemon=True).start()
        return future


class _PageSteps(Generic[R]):
    """Pages that one thread asks for and another thread's loop fetches."""

    def __init__(self, pages: AsyncGenerator[list[R], None], closing: "set[asyncio.Task[None]]") -> None:
        self._pages = self._to_the_end(pages)
        self._ended = False
        self._step: asyncio.Task[Any] | None = None
        self._closing = closing

    async def next(self) -> list[R] | None:
        """The next page; None after the last."""
        self._step = asyncio.current_task()
        page = await next_page(self._pages)
        if page is None and not self._ended:
            raise MilepostError(CLOSED_TEXT)
        return page

    def abandon(self) -> None:
        """Nobody wants more: ends the step that may still run, for ever maybe, and then the pages."""
        task = asyncio.create_task(self._close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self) -> None:
        if self._step is not None:
            await cancel_and_wait(self._step)
        await self._pages.aclose()

    async def _to_the_end(self, pages: AsyncGenerator[list[R], None]) -> AsyncGenerator[list[R], None]:
        # An event loop that ends closes generators, which then look as if they had come to their end.
        async with aclosing(pages):
            async for page in pages:
                yield page
        self._ended = True


async def next_page(pages: AsyncGenerator[list[R], None]) -> list[R] | None:
    return await anext(pages, None)


def _submit(coroutine: Coroutine[Any, Any, R], loop: asyncio.AbstractEventLoop) -> Future[R]:
    carrying = carry_program_end(coroutine)
    try:
        return asyncio.run_coroutine_threadsafe(carrying, loop)
    except RuntimeError:
        carrying.close()
        coroutine.close()
        raise MilepostError(CLOSED_TEXT) from None


def _result(future: Future[R]) -> R:
    try:
        if threading.current_thread() is threading.main_thread():
            _wait_for_any([future])
        return future.result()
    except CancelledError:
        raise MilepostError(CLOSED_TEXT) from None
    except EndsProgram as ending:
        raise ending.error from None


def _signal_check_seconds() -> float | None:
    """Return how long the current thread may wait before it looks for signals; None: as long as it takes.

    Handlers of signals run in the main thread alone. While it is blocked it notices a signal only if the system
    gave it to this thread, and the system may give it to any.
    """
    return SIGNAL_CHECK_SECONDS if threading.current_thread() is threading.main_thread() else None


def _wait_for_any(futures: list[Future[Any]]) -> None:
    """Wait until one is done. In the main thread, handlers of signals run meanwhile."""
    pause = _signal_check_seconds()
    while not wait(futures, pause, return_when=FIRST_COMPLETED).done:
        pass


@contextmanager
def _locked(lock: threading.RLock) -> Iterator[None]:
    """Hold a lock. In the main thread, handlers of signals run while it waits for the lock."""
    pause = _signal_check_seconds() or -1
    try:
        while not lock.acquire(timeout=pause):
            pass
        yield
    finally:
        # A signal's handler may have raised before the thread had the lock, or just after: only the lock knows.
        with suppress(RuntimeError):
            lock.release()


def _refuse_own_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop:
        raise MilepostError("sync would block this event loop for ever: await the async method itself")


def step_through(coroutine: Coroutine[Any, Any, R]) -> R:
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: R = finished.value
        return result
    coroutine.close()
    raise MilepostError("a call on a blocking connection tried to wait for something else")


_open_bridges: "weakref.WeakSet[SyncBridge[Any]]" = weakref.WeakSet()
_inherited: list[object] = []
"""What a forked process inherited. Kept, because to end it here would end it in the parent."""


def _forget_all() -> None:
    for sync in list(_open_bridges):
        sync._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
