"""Calls handlers."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from milepost.dispatch import Delivery
from milepost.engine.context import Context
from milepost.engine.handler import Handler
from milepost.engine.outcomes import Park
from milepost.engine.slots import Slot
from milepost.engine.subscription import Subscription
from milepost.engine.transaction import Transaction
from milepost.log.message import Message
from milepost.threads import Threads

AnyDelivery = Delivery[Message[Any]]


class TimedOut(Exception):
    """A call took longer than the subscription's time-out."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"timed out after {seconds:g} s")


class HandlerCancelled(Exception):
    """Something that a handler waited for was cancelled, and not by Milepost."""

    def __init__(self) -> None:
        super().__init__("something that the handler waited for was cancelled")


class Unhandled(Park):
    """A message was set aside before, and since then its handler was removed: a person has to decide."""

    def __init__(self, type: str) -> None:
        super().__init__(f"no handler takes messages of type {type!r} any more")


class Abandoned(asyncio.CancelledError):
    """The process ends while a call runs whose time was up."""


class Calls:
    """Calls the handlers of one subscription: on the loop, or in a thread."""

    def __init__(self, subscription: Subscription, threads: Threads) -> None:
        self._name = subscription.name
        self._group = subscription.group
        self.handler_of = subscription.handler_of
        self._timeout = subscription.declaration.timeout
        self._threads = threads
        self.is_replay: Callable[[Message[Any]], bool] = _never
        """Whether a message had been handled before and is repeated on purpose."""

    async def one(self, delivery: AnyDelivery, slot: Slot, transaction: Transaction | None = None) -> None:
        """Hands one message to its handler; raises what the handler raises."""
        message = delivery.message
        handler = self.handler_of(message.type)
        if handler is None:
            raise Unhandled(message.type)
        await self._call(handler, message, self._context(message, delivery.attempt), slot, transaction)

    async def several(
        self, deliveries: Sequence[AnyDelivery], slot: Slot, transaction: Transaction | None = None
    ) -> None:
        """Hands messages of one type of handler to it as a batch."""
        messages = [delivery.message for delivery in deliveries]
        handler = self.handler_of(messages[0].type)
        if handler is None:
            raise Unhandled(messages[0].type)
        context = self._context(messages[0], max(delivery.attempt for delivery in deliveries))
        await self._call(handler, messages, context, slot, transaction)

    def arguments(self, handler: Handler, delivery: AnyDelivery) -> tuple[Any, ...]:
        """What a handler of one message is called with."""
        message = delivery.message
        context = self._context(message, delivery.attempt) if handler.takes_context else None
        return handler.prepare(message, context, None)

    def _context(self, message: Message[Any], attempt: int) -> Context:
        return Context(
            subscription=self._name,
            group=self._group,
            position=message.position,
            stream=message.stream,
            attempt=attempt,
            replay=self.is_replay(message),
        )

    async def _call(
        self, handler: Handler, subject: Any, context: Context, slot: Slot, transaction: Transaction | None
    ) -> None:
        arguments = handler.prepare(subject, context, transaction)
        slot.begin(self._timeout)
        try:
            if handler.is_async:
                await handler.call(*arguments)
            else:
                await self._in_thread(handler, arguments, slot)
        except asyncio.CancelledError:
            if slot.expired():
                raise TimedOut(self._timeout) from None
            if slot.is_ending():
                raise
            raise HandlerCancelled from None
        finally:
            slot.end()

    async def _in_thread(self, handler: Handler, arguments: tuple[Any, ...], slot: Slot) -> None:
        """A thread cannot be stopped: when its time is up its key stays held until it returns."""
        future = self._threads.run(partial(copy_context().run, handler.call, *arguments))
        late = False
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                if not slot.expired():
                    raise Abandoned if late else asyncio.CancelledError from None
                late = True
        error = future.exception()
        if late:
            raise TimedOut(self._timeout)
        if error is not None:
            raise error


def _never(message: Message[Any]) -> bool:
    return False
