"""`client.sync`: the methods of a client for code that is not async."""

from collections.abc import Sequence
from typing import Any

from milepost.client.client import Client
from milepost.client.subscriptions import ClientSubscription
from milepost.dispatch import Route
from milepost.engine.consumers.sync import SyncConsumer
from milepost.engine.declare.consumer_options import IfExists
from milepost.sync_bridge import BridgedPart, SyncBridge, blocking_method, blocking_page_method


class SyncClient(SyncBridge[Client]):
    """The methods of a client, each of which waits for its result; from as many threads as you like.

    It opens by itself when first used and closes when the program ends, or by `with client.sync:`.
    """

    append = blocking_method(Client.append)
    append_many = blocking_method(Client.append_many)
    head = blocking_method(Client.head)
    last = blocking_method(Client.last)
    nodes = blocking_method(Client.nodes)
    pull = blocking_method(Client.pull)
    settle = blocking_method(Client.settle)
    subscriptions = blocking_method(Client.subscriptions)
    trace = blocking_method(Client.trace)
    read = blocking_page_method(Client.read_pages)
    follow = blocking_page_method(Client.follow_pages)

    def create_subscription(
        self, /, name: str, *, if_exists: IfExists = "update", **options: Any
    ) -> "SyncClientSubscription":
        """Creates a durable subscription for consumers, or for pulling; see `Client.create_subscription`."""
        created = self._run(lambda: self._target.create_subscription(name, if_exists=if_exists, **options))
        return SyncClientSubscription(self, created)

    def manage(self, address: str) -> "SyncClientSubscription":
        """A subscription to look at and to operate: `group/name`, or the name alone for one of the own group."""
        return SyncClientSubscription(self, self._target.manage(address))

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
        """A consumer of a subscription that was created; see `Client.consumer`.

        `with client.sync.consumer("shipping") as consumer: for delivery in consumer: with delivery as message: …`
        """
        # It has the methods of the library's, which is what the blocking form is written for.
        consumer: Any = self._target.consumer(
            subscription,
            where=where,
            priority=priority,
            capacity=capacity,
            capacity_bytes=capacity_bytes,
            routes=routes,
        )
        return SyncConsumer(consumer, self._here)

    def __repr__(self) -> str:
        return f"{self._target!r}.sync"


class SyncClientSubscription(BridgedPart[ClientSubscription]):
    """The methods of a subscription to operate, each of which waits for its result."""

    info = blocking_method(ClientSubscription.info)
    statistics = blocking_method(ClientSubscription.statistics)
    progress = blocking_method(ClientSubscription.progress)
    caught_up = blocking_method(ClientSubscription.caught_up)
    deliveries = blocking_page_method(ClientSubscription.delivery_pages)
    count_deliveries = blocking_method(ClientSubscription.count_deliveries)
    retry = blocking_method(ClientSubscription.retry)
    skip = blocking_method(ClientSubscription.skip)
    pause = blocking_method(ClientSubscription.pause)
    resume = blocking_method(ClientSubscription.resume)
    move = blocking_method(ClientSubscription.move)
    plan_move = blocking_method(ClientSubscription.plan_move)
    replay = blocking_method(ClientSubscription.replay)
    plan_replay = blocking_method(ClientSubscription.plan_replay)
    update = blocking_method(ClientSubscription.update)
    delete = blocking_method(ClientSubscription.delete)
