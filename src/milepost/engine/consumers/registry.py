"""The subscriptions that have consumers in this process."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from weakref import WeakValueDictionary

from milepost.dispatch import Route
from milepost.engine.clock import Clock
from milepost.engine.consumers.consumer import REASON_MILEPOST_CLOSED, Consumer
from milepost.engine.consumers.dispatcher import ConsumerDispatcher
from milepost.engine.consumers.host import ConsumerHost, ConsumerPeersByLease
from milepost.engine.declare.handler import AnyDelivery
from milepost.engine.observe.listeners import Listeners
from milepost.engine.runtime import Runtime, find_subscription
from milepost.errors import MilepostError

MAX_STORE_WAIT_SECONDS = 2.0
"""Seconds to wait at most until what a consumer settled is stored: a lane that is given back is written last."""

SubscriptionAddress = tuple[str, str]
"""Group and name."""


class ConsumerRegistry:
    """Finds the host of a subscription's consumers, or makes it; ends it when its last consumer has gone."""

    def __init__(self, runtime: Callable[[], Runtime], listeners: Listeners) -> None:
        self._runtime = runtime
        self._listeners = listeners
        self._hosts_by_address: dict[SubscriptionAddress, ConsumerHost] = {}
        self._locks: WeakValueDictionary[SubscriptionAddress, asyncio.Lock] = WeakValueDictionary()
        self._clock = Clock()
        self._peers_by_lease = ConsumerPeersByLease(self._clock)
        self._ending: dict[asyncio.Task[None], SubscriptionAddress] = {}

    def consumer(
        self,
        group: str,
        name: str,
        routes: Sequence[Route],
        *,
        called: str | None = None,
        on_lost: Callable[[Sequence[AnyDelivery], str], None] | None = None,
        on_recalled: Callable[[], None] | None = None,
    ) -> Consumer:
        """A consumer that comes when its block begins, and goes when that ends.

        `called` is a name for people. `on_lost` is told of deliveries that are no longer its own, and why.
        `on_recalled` is called when what it has handed on is wanted back, as far as nobody has begun with it.
        """

        async def on_enter(consumer: Consumer) -> ConsumerDispatcher:
            return await self._enter((group, name), consumer)

        async def on_left(consumer: Consumer) -> None:
            await self._left((group, name), consumer)

        return Consumer(on_enter, on_left, routes, name=called, on_lost=on_lost, on_recalled=on_recalled)

    def owns(self, group: str, name: str) -> bool:
        """Whether this process has the lane of a subscription."""
        host = self._hosts_by_address.get((group, name))
        return host is not None and bool(host.runner.lanes)

    async def _enter(self, address: SubscriptionAddress, consumer: Consumer) -> ConsumerDispatcher:
        async with self._lock(address):
            host = self._hosts_by_address.get(address)
            if host is None or host.is_over:
                await self._ended(address)
                host = await self._open(address)
                self._hosts_by_address[address] = host
                host.runner.join(consumer)
                try:
                    await host.start()
                except BaseException:
                    host.runner.leave(consumer)
                    self._end(address, host)
                    raise
            else:
                host.runner.join(consumer)
        return host.runner

    def _lock(self, address: SubscriptionAddress) -> asyncio.Lock:
        lock = self._locks.get(address)
        if lock is None:
            self._locks[address] = lock = asyncio.Lock()
        return lock

    async def _open(self, address: SubscriptionAddress) -> ConsumerHost:
        group, name = address
        runtime = self._runtime()
        record = await find_subscription(runtime, group, name)
        if record.in_code:
            raise MilepostError(
                f"{group}/{name} has handlers in a program, and takes no consumers: create another subscription"
            )
        if record.settings["tracking"] == "all":
            raise MilepostError(f'{group}/{name} is for pulling: take from it with mp.pull("{name}")')
        return ConsumerHost(
            group,
            name,
            record,
            runtime,
            clock=self._clock,
            peers_by_lease=self._peers_by_lease,
            audience=self._listeners.audience(),
        )

    async def _left(self, address: SubscriptionAddress, consumer: Consumer) -> None:
        """The last one ends it, so that another process can have the lane; others wait for what they settled."""
        async with self._lock(address):
            host = self._hosts_by_address.get(address)
            if host is None or host.runner is not consumer.dispatcher:
                return
            if not host.runner.consumers:
                del self._hosts_by_address[address]
                await asyncio.shield(self._end(address, host))
                return
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_STORE_WAIT_SECONDS):
                await host.runner.stored()

    def _end(self, address: SubscriptionAddress, host: ConsumerHost) -> asyncio.Task[None]:
        """Whoever waits for it may be cancelled: it comes to its end all the same."""
        task = asyncio.create_task(host.stop())
        self._ending[task] = address
        task.add_done_callback(self._ending.pop)
        return task

    async def _ended(self, address: SubscriptionAddress) -> None:
        """Waits for those before it: one that is still ending would let go of the lane of the next."""
        if (before := self._hosts_by_address.pop(address, None)) is not None:
            self._end(address, before)
        if ending := [task for task, at in self._ending.items() if at == address]:
            await asyncio.wait(ending)

    async def close(self) -> None:
        """All consumers end."""
        hosts, self._hosts_by_address = self._hosts_by_address, {}
        for address, each in hosts.items():
            each.runner.end(REASON_MILEPOST_CLOSED)
            self._end(address, each)
        if self._ending:
            await asyncio.wait(self._ending)
