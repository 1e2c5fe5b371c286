"""Messages for consumers, and consumers that note what they get."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from milepost import Milepost, NewMessage
from milepost.engine.consumers.consumer import Consumer
from milepost.engine.consumers.delivery import Delivery
from milepost.engine.consumers.dispatcher import ConsumerDispatcher
from patience import looked_at, within

PATIENCE = 30.0
"""Seconds after which a test gives up."""


async def orders(mp: Milepost, count: int, *, streams: int = 10, first: int = 0, **properties: Any) -> None:
    """So many orders, with a number each, in streams in turn."""
    for n in range(first, first + count):
        message = NewMessage("order.placed", {"n": n}, properties={"n": n, **properties})
        await mp.append(f"order-{n % streams}", message)


async def take(consumer: Consumer, count: int) -> list[Delivery]:
    """The next deliveries, so many."""
    deliveries: list[Delivery] = []
    async with within(PATIENCE, lambda: f"{deliveries}, wanted {count}"):
        while len(deliveries) < count:
            deliveries.append(await anext(consumer))
    return deliveries


async def ack(deliveries: list[Delivery]) -> list[int]:
    """They are done; their positions."""
    for delivery in deliveries:
        await delivery.ack()
    return [delivery.position for delivery in deliveries]


async def is_dry(consumer: Consumer) -> bool:
    """Whether nothing comes, though its process has read all there is and handed out what it can."""
    await has_looked(consumer)
    assert (came := consumer.at_hand(1)) == [], f"{came} came"
    return True


async def has_looked(consumer: Consumer) -> None:
    """Waits until a consumer's process has read what there is for it, and has handed out what it can."""
    dispatcher = consumer.dispatcher
    await until(lambda: _has_read(dispatcher))
    # A second time for what the first has brought.
    for _ in range(2):
        dispatcher.poke()
        await until(lambda: _has_written(dispatcher))
        dispatcher.delivery_loop.wake()
        # It goes round without a pause, up to where it waits again.
        await until(lambda: not dispatcher.delivery_loop._changed.is_set())


async def _has_read(dispatcher: ConsumerDispatcher) -> bool:
    head = (await dispatcher._runtime.log.current_horizon()).position
    owned = dispatcher.owned
    return owned is None or owned.lane.reach >= head or not owned.is_hungry


def _has_written(dispatcher: ConsumerDispatcher) -> bool:
    owned = dispatcher.owned
    return owned is None or not (owned.exchanging or owned.lane.urgent(dispatcher._clock.now()))


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Waits until something that happens elsewhere has happened."""
    async with within(PATIENCE, lambda: looked_at(condition)):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.005)


def pass_time(consumer: Consumer, seconds: float) -> None:
    """Moves the time by which a consumer's process takes back what is late, up to its next write."""
    dispatcher = consumer.dispatcher
    dispatcher._clock.set(dispatcher._clock.now() + seconds)
    dispatcher.delivery_loop.wake()


class Taker:
    """Takes and acks in a task of its own, and keeps what it saw."""

    def __init__(self, consumer: Consumer, handle: Callable[[Delivery], Awaitable[None]] | None = None) -> None:
        self.consumer = consumer
        self.seen: list[int] = []
        self.attempts: list[int] = []
        self._handle = handle
        self._grown = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for delivery in self.consumer:
            self.seen.append(delivery.position)
            self.attempts.append(delivery.attempt)
            self._grown.set()
            if self._handle is not None:
                await self._handle(delivery)
            else:
                await delivery.ack()

    async def until(self, count: int) -> list[int]:
        """What it saw, once that is so many."""
        async with within(PATIENCE, lambda: f"{self.seen}, wanted {count}"):
            while len(self.seen) < count:
                if self.task.done():
                    self.task.result()
                self._grown.clear()
                waiting = asyncio.create_task(self._grown.wait())
                await asyncio.wait([self.task, waiting], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
        return self.seen

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


@asynccontextmanager
async def taking(
    mp: Milepost, name: str, handle: Callable[[Delivery], Awaitable[None]] | None = None, **options: Any
) -> AsyncIterator[Taker]:
    """A consumer that acks, or does what `handle` says."""
    async with mp.consumer(name, **options) as consumer:
        taker = Taker(consumer, handle)
        try:
            yield taker
        finally:
            await taker.stop()
