"""Invoke handlers: on the event loop, or in a thread."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import Any

from milepost.concurrency import DaemonThreads
from milepost.engine.context_variables import ENDED, Suspended, first_step, other_steps
from milepost.engine.declare.context import Context, Transaction
from milepost.engine.declare.handler import AnyDelivery, Handler
from milepost.engine.declare.outcomes import Park
from milepost.engine.declare.subscription import Subscription
from milepost.engine.handlers.slots import Slot
from milepost.engine.tracebacks import stack_of
from milepost.errors import Picklable
from milepost.log.message import Message


class TimedOut(Picklable):
    """A call took longer than the subscription's time-out. Its traceback says where the handler was just then."""

    def __init__(self, seconds: float, where: TracebackType | None = None) -> None:
        super().__init__(f"timed out after {seconds:g} s")
        self.__traceback__ = where


class HandlerCancelled(Picklable):
    """Something that a handler waited for was cancelled, and not by Milepost. `__cause__` says what, and why."""

    def __init__(self, error: asyncio.CancelledError) -> None:
        said = f": {error}" if str(error) else ""
        super().__init__(f"something that the handler waited for was cancelled{said}")
        self.__cause__ = error


class Unhandled(Park):
    """A message was set aside before, and since then its handler was removed: a person has to decide."""

    def __init__(self, type: str) -> None:
        super().__init__(f"no handler takes messages of type {type!r} any more")


class TakenBack(Exception):
    """An operator had everything given back that was out."""

    def __init__(self) -> None:
        super().__init__("an operator took back what was out")


class Abandoned(asyncio.CancelledError):
    """The process ends while a call runs whose time was up."""

    def __init__(self, timed_out: TimedOut) -> None:
        super().__init__()
        self.timed_out = timed_out


class HandlerInvoker:
    """Calls the handlers of one subscription: on the loop, or in a thread."""

    def __init__(self, subscription: Subscription, threads: DaemonThreads) -> None:
        self._name = subscription.name
        self._group = subscription.group
        self.handler_of = subscription.handler_of
        self._timeout = subscription.declaration.timeout
        self._threads = threads
        self.is_replay: Callable[[Message[Any]], bool] = _is_no_replay
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

    def begin(self, handler: Handler, delivery: AnyDelivery) -> Suspended | None:
        """Call an `async def` handler of one message up to where it waits: `first_step`, in one function."""
        message = delivery.message
        context = self._context(message, delivery.attempt) if handler.takes_context else None
        steps = handler.call(*handler.prepare(message, context, None)).__await__()
        waits_for = next(steps, ENDED)
        return None if waits_for is ENDED else (steps, waits_for)

    def arguments(self, handler: Handler, delivery: AnyDelivery) -> tuple[Any, ...]:
        """What a plain handler of one message is called with."""
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
        variables = copy_context()
        arguments = variables.run(handler.prepare, subject, context, transaction)
        slot.begin(self._timeout)
        try:
            if handler.is_async:
                suspended = variables.run(first_step, handler.call, arguments)
                if suspended is not None:
                    await other_steps(variables, *suspended)
            else:
                await self._in_thread(partial(variables.run, handler.call, *arguments), slot)
        except asyncio.CancelledError as error:
            if slot.expired():
                raise TimedOut(self._timeout, error.__traceback__) from None
            if slot.is_taken_back():
                raise TakenBack from None
            if slot.is_ending():
                raise
            raise HandlerCancelled(error) from error
        finally:
            await slot.end()

    async def _in_thread(self, call: Callable[[], Any], slot: Slot) -> None:
        """A thread cannot be stopped: when its time is up its key stays held until it returns."""
        running = ThreadCall(call)
        future = self._threads.run(running.run)
        late: TimedOut | None = None
        taken_back = False
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                if slot.is_taken_back():
                    taken_back = True
                    continue
                if slot.expired():
                    late = TimedOut(self._timeout, running.where())
                elif slot.is_ending():
                    raise Abandoned(late) if late else asyncio.CancelledError from None
        error = future.result()
        if taken_back:
            raise TakenBack
        if late:
            raise late
        if isinstance(error, GeneratorExit):
            # In a coroutine it would say that this is closed.
            raise RuntimeError("GeneratorExit") from error  # noqa: TRY004 - a failure, whatever it was
        if error is not None:
            raise error


class ThreadCall:
    """A call in a thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._thread: int | None = None

    def run(self) -> BaseException | None:
        """Call it; return what it raises. A future does not take everything, and a task would end the loop."""
        self._thread = get_ident()
        try:
            self._call()
        except BaseException as error:
            return error
        return None

    def where(self) -> TracebackType | None:
        """Return where it is just now."""
        return None if self._thread is None else stack_of(self._thread, ThreadCall.run.__code__)


def _is_no_replay(message: Message[Any]) -> bool:
    return False
