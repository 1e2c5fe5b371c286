"""Calls handlers."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from milepost.dispatch import Delivery
from milepost.engine.context import Context
from milepost.engine.handler import Handler
from milepost.engine.slots import Slot
from milepost.engine.subscription import Subscription
from milepost.engine.transaction import Transaction
from milepost.log.message import Message

AnyDelivery = Delivery[Message[Any]]


class TimedOut(Exception):
    """A call took longer than the subscription's time-out."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"timed out after {seconds:g} s")


class Calls:
    """Calls the handlers of one subscription: on the loop, or in a thread."""

    def __init__(self, subscription: Subscription, threads: ThreadPoolExecutor) -> None:
        self._name = subscription.name
        self._handler_of = subscription.handler_of
        self._timeout = subscription.declaration.timeout
        self._threads = threads

    async def one(self, delivery: AnyDelivery, slot: Slot, transaction: Transaction | None = None) -> None:
        """Hands one message to its handler; raises what the handler raises."""
        message = delivery.message
        handler = self._handler_of(message.type)
        if handler is None:
            return
        context = Context(subscription=self._name, position=message.position, attempt=delivery.attempt)
        await self._call(handler, handler.prepare(message, context, transaction), slot)

    async def several(
        self, deliveries: Sequence[AnyDelivery], slot: Slot, transaction: Transaction | None = None
    ) -> None:
        """Hands messages of one type of handler to it as a batch."""
        first = deliveries[0]
        handler = self._handler_of(first.message.type)
        if handler is None:
            return
        attempt = max(delivery.attempt for delivery in deliveries)
        context = Context(subscription=self._name, position=first.message.position, attempt=attempt)
        messages = [delivery.message for delivery in deliveries]
        await self._call(handler, handler.prepare(messages, context, transaction), slot)

    async def _call(self, handler: Handler, arguments: tuple[Any, ...], slot: Slot) -> None:
        if not handler.is_async:
            await self._in_thread(handler, arguments, slot)
            return
        try:
            await handler.call(*arguments)
        except asyncio.CancelledError:
            if not slot.expired():
                raise
            raise TimedOut(self._timeout) from None

    async def _in_thread(self, handler: Handler, arguments: tuple[Any, ...], slot: Slot) -> None:
        """A thread cannot be stopped: when its time is up its key stays held until it returns."""
        run = copy_context().run
        future = asyncio.get_running_loop().run_in_executor(self._threads, run, handler.call, *arguments)
        late = False
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                if not slot.expired():
                    raise
                late = True
        if late:
            future.exception()
            raise TimedOut(self._timeout)
        future.result()
