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
from milepost.dispatch import Route
from milepost.engine.consumers.sync import SyncConsumer
from milepost.engine.declare.consumer_options import IfExists
from milepost.engine.operate.info import SubscriptionInfo
from milepost.engine.operate.manage import ManagedSubscription
from milepost.engine.pull.claims import PulledDeliveries
from milepost.log.message import Message
from milepost.log.query import Page
from milepost.postgres.connections import SteppedExecutor
from milepost.sync_bridge import (
    BridgedPart,
    SyncBridge,
    blocking_method,
    blocking_page_method,
    next_page,
    step_through,
)

P = ParamSpec("P")
R = TypeVar("R")

Pages = AsyncGenerator[Page, None]


def blocking_with_connection(
    method: Callable[Concatenate[Milepost, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["SyncMilepost", P], R]:
    """The blocking form of a coroutine method."""

    @wraps(method)
    def call(self: "SyncMilepost", /, *args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs.get("connection") is None:
            return self._run(lambda: method(self._milepost, *args, **kwargs))
        kwargs["connection"] = SteppedExecutor(kwargs["connection"])
        return step_through(method(self._milepost, *args, **kwargs))

    return call


def blocking_pages_with_connection(
    method: Callable[Concatenate[Milepost, P], Pages],
) -> Callable[Concatenate["SyncMilepost", P], Iterator[Message[Any]]]:
    """The blocking form of a method that gives pages: one change of threads a page."""

    @wraps(method)
    def call(self: "SyncMilepost", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Message[Any]]:
        if kwargs.get("connection") is None:
            return self._items(method(self._milepost, *args, **kwargs))
        kwargs["connection"] = SteppedExecutor(kwargs["connection"])
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


class SyncMilepost(SyncBridge[Milepost]):
    """The methods of a `Milepost`, each of which waits for its result; from as many threads as you like.

    It opens by itself when first used and closes when the program ends, or by `with mp.sync:`.
    """

    @property
    def _milepost(self) -> Milepost:
        return self._target

    append = blocking_with_connection(Milepost.append)
    append_many = blocking_with_connection(Milepost.append_many)
    create_declared = blocking_with_connection(Milepost.create_declared)
    head = blocking_with_connection(Milepost.head)
    last = blocking_with_connection(Milepost.last)
    nodes = blocking_with_connection(Milepost.nodes)
    run_until_idle = blocking_with_connection(Milepost.run_until_idle)
    settle = blocking_with_connection(Milepost.settle)
    subscriptions = blocking_with_connection(Milepost.subscriptions)
    trace = blocking_with_connection(Milepost.trace)
    running = blocking_block(Milepost.running)

    def pull(
        self,
        subscription: str,
        *,
        limit: int = 100,
        wait: float = 0,
        timeout: float | None = None,
        connection: object | None = None,
    ) -> PulledDeliveries:
        """Claims deliveries of a subscription with `tracking="all"`; see `Milepost.pull`."""
        milepost = self._milepost
        if connection is None:
            return self._run(lambda: milepost.pull(subscription, limit=limit, wait=wait, timeout=timeout))
        executor, puller = SteppedExecutor(connection), milepost.puller
        group, name = milepost.address(subscription)
        claimer = step_through(puller.claim(executor, group, name, limit=limit, wait=wait, timeout=timeout))
        if puller.reads_with_caller:
            return step_through(puller.deliveries_of(claimer, executor))
        return self._run(lambda: puller.deliveries_of(claimer, executor))

    def create_subscription(
        self, /, name: str, *, if_exists: IfExists = "update", **options: Any
    ) -> "SyncManagedSubscription":
        """Creates a durable subscription for consumers, or for pulling; see `Milepost.create_subscription`."""
        managed = self._run(lambda: self._milepost.create_subscription(name, if_exists=if_exists, **options))
        return SyncManagedSubscription(self, managed)

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

    read = blocking_pages_with_connection(Milepost.read_pages)
    follow = blocking_pages_with_connection(Milepost.follow_pages)


class SyncManagedSubscription(BridgedPart[ManagedSubscription]):
    """The methods of a `ManagedSubscription`, each of which waits for its result."""

    def info(self) -> SubscriptionInfo:
        """How it stands now; raises `UnknownSubscription` if there is none."""
        return self._run(self._target.info)

    pause = blocking_method(ManagedSubscription.pause)
    resume = blocking_method(ManagedSubscription.resume)
    move = blocking_method(ManagedSubscription.move)
    plan_move = blocking_method(ManagedSubscription.plan_move)
    replay = blocking_method(ManagedSubscription.replay)
    plan_replay = blocking_method(ManagedSubscription.plan_replay)
    update = blocking_method(ManagedSubscription.update)
    delete = blocking_method(ManagedSubscription.delete)
    progress = blocking_method(ManagedSubscription.progress)
    statistics = blocking_method(ManagedSubscription.statistics)
    caught_up = blocking_method(ManagedSubscription.caught_up)
    count_deliveries = blocking_method(ManagedSubscription.count_deliveries)
    retry = blocking_method(ManagedSubscription.retry)
    skip = blocking_method(ManagedSubscription.skip)
    deliveries = blocking_page_method(ManagedSubscription.delivery_pages)


def _stepped_messages(pages: Pages) -> Iterator[Message[Any]]:
    try:
        while (page := step_through(next_page(pages))) is not None:
            yield from page
    finally:
        step_through(pages.aclose())
