"""`client.sync`: the methods of a client for code that is not async."""

from collections.abc import Sequence
from typing import Any

from milepost.bridge import Bridge, Part, listing, waiting
from milepost.client.client import Client
from milepost.client.managed import ManagedSubscription
from milepost.dispatch import Route
from milepost.engine.consuming.blocking import SyncConsumer
from milepost.engine.consuming.created import IfExists


class SyncClient(Bridge[Client]):
    """The methods of a client, each of which waits for its result; from as many threads as you like.

    It opens by itself when first used and closes when the program ends, or by `with client.sync:`.
    """

    append = waiting(Client.append)
    append_many = waiting(Client.append_many)
    head = waiting(Client.head)
    last = waiting(Client.last)
    nodes = waiting(Client.nodes)
    pull = waiting(Client.pull)
    settle = waiting(Client.settle)
    subscriptions = waiting(Client.subscriptions)
    trace = waiting(Client.trace)
    read = listing(Client.read_pages)
    follow = listing(Client.follow_pages)

    def create_subscription(
        self, /, name: str, *, if_exists: IfExists = "update", **options: Any
    ) -> "SyncManagedSubscription":
        """Creates a durable subscription for consumers, or for pulling; see `Client.create_subscription`."""
        created = self._run(lambda: self._target.create_subscription(name, if_exists=if_exists, **options))
        return SyncManagedSubscription(self, created)

    def manage(self, address: str) -> "SyncManagedSubscription":
        """A subscription to look at and to operate: `group/name`, or the name alone for one of the own group."""
        return SyncManagedSubscription(self, self._target.manage(address))

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


class SyncManagedSubscription(Part[ManagedSubscription]):
    """The methods of a subscription to operate, each of which waits for its result."""

    info = waiting(ManagedSubscription.info)
    statistics = waiting(ManagedSubscription.statistics)
    progress = waiting(ManagedSubscription.progress)
    caught_up = waiting(ManagedSubscription.caught_up)
    deliveries = listing(ManagedSubscription.delivery_pages)
    count_deliveries = waiting(ManagedSubscription.count_deliveries)
    retry = waiting(ManagedSubscription.retry)
    skip = waiting(ManagedSubscription.skip)
    pause = waiting(ManagedSubscription.pause)
    resume = waiting(ManagedSubscription.resume)
    move = waiting(ManagedSubscription.move)
    plan_move = waiting(ManagedSubscription.plan_move)
    replay = waiting(ManagedSubscription.replay)
    plan_replay = waiting(ManagedSubscription.plan_replay)
    update = waiting(ManagedSubscription.update)
    delete = waiting(ManagedSubscription.delete)
