"""`mp.sync`: the methods of a `Milepost` for code that is not async.

The async methods are the source. With a blocking connection of the caller's they never suspend, so they are
stepped through in the caller's own thread. Everything else runs on the event loop that the `Milepost` is open
in, or on one in a thread of its own.
"""

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing, contextmanager, suppress
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from milepost.app import Milepost
from milepost.engine.info import SubscriptionInfo
from milepost.engine.kept import Kept
from milepost.engine.managed import ManagedSubscription
from milepost.engine.pulling.pulled import Pulled
from milepost.errors import MilepostError
from milepost.log.connections import Stepped
from milepost.log.database import end
from milepost.log.message import Message
from milepost.log.reader import Page

P = ParamSpec("P")
R = TypeVar("R")

Pages = AsyncGenerator[Page, None]

_CLOSED = "mp.sync, or the event loop it uses, was closed meanwhile: call it again"


def blocking(
    method: Callable[Concatenate[Milepost, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["SyncMilepost", P], R]:
    """The blocking form of a coroutine method."""

    @wraps(method)
    def call(self: "SyncMilepost", /, *args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs.get("connection") is None:
            return self._run(lambda: method(self._milepost, *args, **kwargs))
        kwargs["connection"] = Stepped(kwargs["connection"])
        return _step_through(method(self._milepost, *args, **kwargs))

    return call


def blocking_pages(
    method: Callable[Concatenate[Milepost, P], Pages],
) -> Callable[Concatenate["SyncMilepost", P], Iterator[Message[Any]]]:
    """The blocking form of a method that gives pages: one change of threads a page."""

    @wraps(method)
    def call(self: "SyncMilepost", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Message[Any]]:
        if kwargs.get("connection") is None:
            return self._items(method(self._milepost, *args, **kwargs))
        kwargs["connection"] = Stepped(kwargs["connection"])
        return _stepped_messages(method(self._milepost, *args, **kwargs))

    return call


def blocking_block(
    method: Callable[Concatenate[Milepost, P], AbstractAsyncContextManager[None]],
) -> Callable[Concatenate["SyncMilepost", P], AbstractContextManager[None]]:
    """The blocking form of a method that gives an async block: what it does meanwhile is done on the loop.

    An error that ends it early is raised at the end of the block.
    """

    @wraps(method)
    def call(self: "SyncMilepost", /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[None]:
        return self._block(lambda: method(self._milepost, *args, **kwargs))

    return call


def blocking_managed(
    method: Callable[Concatenate[ManagedSubscription, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["SyncManagedSubscription", P], R]:
    """The blocking form of a coroutine method of a subscription to operate."""

    @wraps(method)
    def call(self: "SyncManagedSubscription", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._sync._run(lambda: method(self._managed, *args, **kwargs))

    return call


def blocking_delivery_pages(
    method: Callable[Concatenate[ManagedSubscription, P], AsyncGenerator[list[R], None]],
) -> Callable[Concatenate["SyncManagedSubscription", P], Iterator[R]]:
    """The blocking form of a method of such a subscription that gives pages."""

    @wraps(method)
    def call(self: "SyncManagedSubscription", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return self._sync._items(method(self._managed, *args, **kwargs))

    return call


class SyncMilepost:
    """The methods of a `Milepost`, each of which waits for its result; from as many threads as you like.

    It opens by itself when first used and closes when the program ends, or by `with mp.sync:`.
    """

    def __init__(self, milepost: Milepost) -> None:
        self._milepost = milepost
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None
        self._closing: set[asyncio.Task[None]] = set()
        _all.add(self)

    append = blocking(Milepost.append)
    append_many = blocking(Milepost.append_many)
    create_subscription = blocking(Milepost.create_subscription)
    head = blocking(Milepost.head)
    last = blocking(Milepost.last)
    run_until_idle = blocking(Milepost.run_until_idle)
    settle = blocking(Milepost.settle)
    subscriptions = blocking(Milepost.subscriptions)
    trace = blocking(Milepost.trace)
    running = blocking_block(Milepost.running)

    def pull(
        self,
        subscription: str,
        *,
        limit: int = 100,
        wait: float = 0,
        timeout: float | None = None,
        connection: object | None = None,
    ) -> Pulled:
        """Claims deliveries of a subscription with `tracking="all"`; see `Milepost.pull`."""
        milepost = self._milepost
        if connection is None:
            return self._run(lambda: milepost.pull(subscription, limit=limit, wait=wait, timeout=timeout))
        executor = Stepped(connection)
        claims = _step_through(milepost._claim(subscription, executor, limit=limit, wait=wait, timeout=timeout))
        if milepost._kept is Kept.WITH_THE_LOG:
            return _step_through(milepost._puller.brought(claims, executor))
        return self._run(lambda: milepost._puller.brought(claims, executor))

    def manage(self, address: str) -> "SyncManagedSubscription":
        """A subscription to look at and to operate: `group/name`, or the name alone for one of the own group."""
        return SyncManagedSubscription(self, self._milepost.manage(address))

    def run(self, *, grace: float = 25) -> None:
        """Works for the program's subscriptions until SIGINT or SIGTERM, in the main thread."""
        asyncio.run(self._milepost.run(grace=grace))

    read = blocking_pages(Milepost.read_pages)
    follow = blocking_pages(Milepost.follow_pages)

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
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            atexit.unregister(self.close)
            try:
                thread.run(self._end())
            finally:
                thread.stop()

    async def _end(self) -> None:
        # Pages that were abandoned end before the log they come from.
        if abandoned := self._closing & asyncio.all_tasks():
            await asyncio.wait(abandoned)
        await self._milepost.__aexit__(None, None, None)

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
            return self._items_from(_Steps(pages, self._closing), loop)

    def _items_from(self, steps: "_Steps[R]", loop: asyncio.AbstractEventLoop) -> Iterator[R]:
        try:
            while (page := self._next_page(steps, loop)) is not None:
                yield from page
        finally:
            # It may be the garbage collector, in any thread, that ends this: it must not wait. A closed loop
            # has ended the pages itself.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(steps.abandon)

    def _next_page(self, steps: "_Steps[R]", loop: asyncio.AbstractEventLoop) -> list[R] | None:
        _refuse_own_loop(loop)
        with self._lock:
            if loop.is_closed():
                raise MilepostError(_CLOSED)
            future = _submit(steps.next(), loop)
        return _result(future)

    @contextmanager
    def _open_loop(self) -> Iterator[asyncio.AbstractEventLoop]:
        """The event loop to run on, which `close` leaves alone inside of this."""
        _refuse_own_loop(self._milepost._loop)
        with self._lock:
            loop = self._milepost._loop
            if loop is None:
                self._thread = _LoopThread.opening(self._milepost)
                loop = self._thread.loop
                atexit.register(self.close)
            yield loop

    def _forget(self) -> None:
        """In a forked process: the thread stayed in the parent, and so do its connections."""
        _parents.append((self._thread, self._milepost._log, self._milepost._services))
        atexit.unregister(self.close)
        self._lock, self._thread = threading.Lock(), None
        self._milepost._log = self._milepost._services = self._milepost._loop = None
        self._milepost._entered = 0


class SyncManagedSubscription:
    """The methods of a `ManagedSubscription`, each of which waits for its result."""

    def __init__(self, sync: SyncMilepost, managed: ManagedSubscription) -> None:
        self._sync = sync
        self._managed = managed

    def info(self) -> SubscriptionInfo:
        """How it stands now; raises `UnknownSubscription` if there is none."""
        return self._sync._run(self._managed.info)

    pause = blocking_managed(ManagedSubscription.pause)
    resume = blocking_managed(ManagedSubscription.resume)
    move = blocking_managed(ManagedSubscription.move)
    plan_move = blocking_managed(ManagedSubscription.plan_move)
    replay = blocking_managed(ManagedSubscription.replay)
    plan_replay = blocking_managed(ManagedSubscription.plan_replay)
    update = blocking_managed(ManagedSubscription.update)
    delete = blocking_managed(ManagedSubscription.delete)
    progress = blocking_managed(ManagedSubscription.progress)
    caught_up = blocking_managed(ManagedSubscription.caught_up)
    count_deliveries = blocking_managed(ManagedSubscription.count_deliveries)
    retry = blocking_managed(ManagedSubscription.retry)
    skip = blocking_managed(ManagedSubscription.skip)
    deliveries = blocking_delivery_pages(ManagedSubscription.delivery_pages)


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
        wait([self._entered, holding], return_when=FIRST_COMPLETED)
        if not self._entered.done():
            _result(holding)

    def leave(self) -> None:
        """Ends the block; to be called on its loop."""
        self._leave.set()


class _LoopThread:
    """An event loop in a thread of its own."""

    @classmethod
    def opening(cls, milepost: Milepost) -> Self:
        """One in which a `Milepost` is open."""
        thread = cls()
        try:
            thread.run(milepost.__aenter__())
        except BaseException:
            thread.stop()
            raise
        return thread

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_Threads())
        self._thread = threading.Thread(target=self._live, name="milepost-sync", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """The coroutine's result."""
        return _result(_submit(coroutine, self.loop))

    def stop(self) -> None:
        """Ends the loop and all that still runs on it."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

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
    await asyncio.gather(*(end(task) for task in others))


class _Threads(ThreadPoolExecutor):
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


class _Steps(Generic[R]):
    """Pages that one thread asks for and another thread's loop fetches."""

    def __init__(self, pages: AsyncGenerator[list[R], None], closing: "set[asyncio.Task[None]]") -> None:
        self._pages = self._to_the_end(pages)
        self._ended = False
        self._step: asyncio.Task[Any] | None = None
        self._closing = closing

    async def next(self) -> list[R] | None:
        """The next page; None after the last."""
        self._step = asyncio.current_task()
        page = await _next_page(self._pages)
        if page is None and not self._ended:
            raise MilepostError(_CLOSED)
        return page

    def abandon(self) -> None:
        """Nobody wants more: ends the step that may still run, for ever maybe, and then the pages."""
        task = asyncio.create_task(self._close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self) -> None:
        if self._step is not None:
            await end(self._step)
        await self._pages.aclose()

    async def _to_the_end(self, pages: AsyncGenerator[list[R], None]) -> AsyncGenerator[list[R], None]:
        # An event loop that ends closes generators, which then look as if they had come to their end.
        async with aclosing(pages):
            async for page in pages:
                yield page
        self._ended = True


async def _next_page(pages: AsyncGenerator[list[R], None]) -> list[R] | None:
    return await anext(pages, None)


def _submit(coroutine: Coroutine[Any, Any, R], loop: asyncio.AbstractEventLoop) -> Future[R]:
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise MilepostError(_CLOSED) from None


def _result(future: Future[R]) -> R:
    try:
        return future.result()
    except CancelledError:
        raise MilepostError(_CLOSED) from None


def _refuse_own_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop:
        raise MilepostError("mp.sync would block this event loop for ever: await the method of mp itself")


def _step_through(coroutine: Coroutine[Any, Any, R]) -> R:
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: R = finished.value
        return result
    coroutine.close()
    raise MilepostError("a call on a blocking connection tried to wait for something else")


def _stepped_messages(pages: Pages) -> Iterator[Message[Any]]:
    try:
        while (page := _step_through(_next_page(pages))) is not None:
            yield from page
    finally:
        _step_through(pages.aclose())


_all: "weakref.WeakSet[SyncMilepost]" = weakref.WeakSet()
_parents: list[object] = []
"""What a forked process inherited. Kept, because to end it here would end it in the parent."""


def _forget_all() -> None:
    for sync in list(_all):
        sync._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
