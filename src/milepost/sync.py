"""`mp.sync`: the methods of a `Milepost` for code that is not async.

The async methods are the source. With a blocking connection of the caller's they never suspend, so they are
stepped through in the caller's own thread. Everything else runs on the event loop that the `Milepost` is open
in, or on one in a thread of its own.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from milepost.app import Milepost
from milepost.bridge import Bridge, Part, listing, next_page, step_through, waiting
from milepost.dispatch import Route
from milepost.engine.consuming.blocking import SyncConsumer
from milepost.engine.consuming.created import IfExists
from milepost.engine.info import SubscriptionInfo
from milepost.engine.kept import Kept
from milepost.engine.managed import ManagedSubscription
from milepost.engine.pulling.pulled import Pulled
from milepost.log.connections import Stepped
from milepost.log.message import Message
from milepost.log.reader import Page

P = ParamSpec("P")
R = TypeVar("R")

Pages = AsyncGenerator[Page, None]


def blocking(
    method: Callable[Concatenate[Milepost, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["SyncMilepost", P], R]:
    """The blocking form of a coroutine method."""

    @wraps(method)
    def call(self: "SyncMilepost", /, *args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs.get("connection") is None:
            return self._run(lambda: method(self._milepost, *args, **kwargs))
        kwargs["connection"] = Stepped(kwargs["connection"])
        return step_through(method(self._milepost, *args, **kwargs))

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


class SyncMilepost(Bridge[Milepost]):
    """The methods of a `Milepost`, each of which waits for its result; from as many threads as you like.

    It opens by itself when first used and closes when the program ends, or by `with mp.sync:`.
    """

    @property
    def _milepost(self) -> Milepost:
        return self._target

    append = blocking(Milepost.append)
    append_many = blocking(Milepost.append_many)
    create_declared = blocking(Milepost.create_declared)
    head = blocking(Milepost.head)
    last = blocking(Milepost.last)
    nodes = blocking(Milepost.nodes)
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
        claims = step_through(milepost._claim(subscription, executor, limit=limit, wait=wait, timeout=timeout))
        if milepost._kept is Kept.WITH_THE_LOG:
            return step_through(milepost._puller.brought(claims, executor))
        return self._run(lambda: milepost._puller.brought(claims, executor))

    def create_subscription(
        self, /, name: str, *, if_exists: IfExists = "update", **options: Any
    ) -> "SyncManagedSubscription":
        """Creates a durable subscription for consumers, or for pulling; see `Milepost.create_subscription`."""
        created = self._run(lambda: self._milepost.create_subscription(name, if_exists=if_exists, **options))
        return SyncManagedSubscription(self, created)

    def consumer(
        self,
        subscription: str,
        *,
        where: str | None = None,
        priority: int | None = None,
        capacity: int | None = None,
        capacity_bytes: int | None = None,
        routes: Sequence[Route] | None = None,
    ) -> SyncConsumer:
        """A consumer of a subscription that was created; see `Milepost.consumer`.

        `with mp.sync.consumer("shipping") as consumer: for delivery in consumer: with delivery as message: …`
        """
        consumer = self._milepost.consumer(
            subscription,
            where=where,
            priority=priority,
            capacity=capacity,
            capacity_bytes=capacity_bytes,
            routes=routes,
        )
        return SyncConsumer(consumer, self._here)

    def manage(self, address: str) -> "SyncManagedSubscription":
        """A subscription to look at and to operate: `group/name`, or the name alone for one of the own group."""
        return SyncManagedSubscription(self, self._milepost.manage(address))

    def health(self) -> None:
        """Raise `Unhealthy` if only a new process helps; see `Milepost.health`. It opens by itself, as all do."""
        with self._open_loop():
            self._milepost.health()

    def run(self, *, grace: float = 25) -> None:
        """Works for the program's subscriptions until SIGINT or SIGTERM, in the main thread."""
        asyncio.run(self._milepost.run(grace=grace))

    read = blocking_pages(Milepost.read_pages)
    follow = blocking_pages(Milepost.follow_pages)


class SyncManagedSubscription(Part[ManagedSubscription]):
    """The methods of a `ManagedSubscription`, each of which waits for its result."""

    def info(self) -> SubscriptionInfo:
        """How it stands now; raises `UnknownSubscription` if there is none."""
        return self._run(self._target.info)

    pause = waiting(ManagedSubscription.pause)
    resume = waiting(ManagedSubscription.resume)
    move = waiting(ManagedSubscription.move)
    plan_move = waiting(ManagedSubscription.plan_move)
    replay = waiting(ManagedSubscription.replay)
    plan_replay = waiting(ManagedSubscription.plan_replay)
    update = waiting(ManagedSubscription.update)
    delete = waiting(ManagedSubscription.delete)
    progress = waiting(ManagedSubscription.progress)
    statistics = waiting(ManagedSubscription.statistics)
    caught_up = waiting(ManagedSubscription.caught_up)
    count_deliveries = waiting(ManagedSubscription.count_deliveries)
    retry = waiting(ManagedSubscription.retry)
    skip = waiting(ManagedSubscription.skip)
    deliveries = listing(ManagedSubscription.delivery_pages)


def _stepped_messages(pages: Pages) -> Iterator[Message[Any]]:
    try:
        while (page := step_through(next_page(pages))) is not None:
            yield from page
    finally:
        step_through(pages.aclose())
