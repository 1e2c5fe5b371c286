"""A slot's turn with a subscription: messages one after the other, as long as none of them takes time."""

import asyncio
from contextvars import copy_context
from time import monotonic
from typing import TYPE_CHECKING

from milepost.engine.calls import AnyDelivery, Calls, HandlerCancelled, TimedOut, Unhandled
from milepost.engine.chunk import Chunk, Item
from milepost.engine.context_variables import other_steps
from milepost.engine.handler import Handler
from milepost.engine.outcomes import ENDS_PROGRAM
from milepost.engine.owned import Owned
from milepost.engine.settling import Settling
from milepost.engine.slots import Slot
from milepost.threads import Threads

if TYPE_CHECKING:
    from milepost.engine.runner import Runner

SLICE = 0.002
"""Seconds after which others have their turn."""
PATIENCE = 0.005
"""Seconds after which what waits behind a plain handler goes to other threads."""
LARGEST = 64
"""The most messages that go to a thread together."""


class Turn:
    """Calls handlers that take one message.

    A coroutine that never waits costs a call and no more: what ends in one step of the loop is settled together
    at its end, and what waits does so in this slot, while others go on with the rest.
    """

    alone = False

    def __init__(self, runner: "Runner", settling: Settling, calls: Calls, threads: Threads) -> None:
        self._runner = runner
        self._settling = settling
        self._calls = calls
        self._threads = threads
        self._size = 1

    async def run(self, slot: Slot) -> None:
        """Works off what is claimed."""
        runner, calls, timeout = self._runner, self._calls, self._runner.timeout
        settling = self._settling
        times, handled = (None, None) if settling.telling is None else settling.telling.noted
        claimed, handler_of, begin = runner.claimed, calls.handler_of, calls.begin
        # The clock is read once a message: when one has ended the next begins.
        begun = now = monotonic()
        over = begun + SLICE
        was_cancelled = slot.task.cancelling if slot.task is not None else int
        runner.busy.add(slot)
        try:
            while now < over and not runner.suspects:
                if not claimed:
                    if not runner.claim():
                        break
                    now = monotonic()
                    continue
                owned, delivery = claimed.popleft()
                if runner.may_lack_keys and runner.refuse_without_key(owned, delivery):
                    now = monotonic()
                    continue
                handler = handler_of(delivery.message.type)
                if handler is None:
                    settling.failed(owned, [delivery], Unhandled(delivery.message.type))
                    now = monotonic()
                    continue
                if not handler.is_async:
                    await self._in_thread(handler, owned, delivery, slot)
                    now = monotonic()
                    continue
                owned.running += 1
                delivery.begun = now
                slot.deadline = now + timeout
                try:
                    variables = copy_context()
                    suspended = variables.run(begin, handler, delivery)
                    if suspended is not None:
                        await other_steps(variables, *suspended)
                except asyncio.CancelledError as error:
                    if slot.expired():
                        now = self._failed(owned, delivery, TimedOut(timeout, error.__traceback__), now)
                    elif slot.is_taken_back():
                        owned.ended()
                        now = monotonic()
                    elif slot.is_ending():
                        owned.lane.give_back([delivery])
                        owned.ended()
                        raise
                    else:
                        now = self._failed(owned, delivery, HandlerCancelled(error), now)
                except GeneratorExit:
                    raise
                except ENDS_PROGRAM as error:
                    raise self._runner.ends_program(owned, [delivery], error, monotonic() - now) from None
                except BaseException as error:
                    now = self._failed(owned, delivery, error, now)
                else:
                    ended = monotonic()
                    if not owned.done:
                        settling.settles_soon(owned)
                    owned.done.append(delivery)
                    if times is not None:
                        times.append(ended - now)
                        if handled is not None:
                            handled.append(delivery)
                    now = ended
                finally:
                    slot.deadline = None
                    owned.running -= 1
                    if slot.late_since is not None or slot.taken_back or was_cancelled():
                        await slot.end()
        finally:
            # A slot calls one after the other: what its turn takes is what they take together.
            settling.handling_seconds += monotonic() - begun
            runner.busy.discard(slot)
            runner.turn_ended()

    def _failed(self, owned: Owned, delivery: AnyDelivery, error: BaseException, begun: float) -> float:
        """A call has raised; the time when that is settled."""
        self._settling.failed(owned, [delivery], error, monotonic() - begun)
        return monotonic()

    # In a thread

    async def _in_thread(self, handler: Handler, owned: Owned, delivery: AnyDelivery, slot: Slot) -> None:
        """A few messages through a thread. A thread cannot be stopped: a key stays held until it returns."""
        chunk = Chunk(self._items(handler, owned, delivery), slot, self._runner.timeout)
        begun = monotonic()
        future = self._threads.run(chunk.run)
        while not future.done():
            try:
                await asyncio.wait([future], timeout=PATIENCE if chunk.waits else None)
            except asyncio.CancelledError:
                if slot.is_taken_back():
                    self._leave(chunk)
                    continue
                if slot.expired():
                    if (late := chunk.current) is not None:
                        late.timed_out = TimedOut(self._runner.timeout, chunk.where())
                elif slot.is_ending():
                    self._give_back(chunk)
                    raise
            if not future.done():
                self._go_on_without(chunk)
        self._settle(chunk)
        if chunk.ending is not None:
            self._give_back(chunk)
            raise chunk.ending
        self._learn(monotonic() - begun)

    def _items(self, handler: Handler, owned: Owned, delivery: AnyDelivery) -> list[Item]:
        """Claimed messages for plain handlers, the given one first."""
        items: list[Item] = []
        claimed = self._runner.claimed
        found: Handler | None = handler
        while found is not None and not found.is_async:
            self._add(items, found, owned, delivery)
            if len(items) >= self._size or not claimed or self._runner.may_lack_keys:
                break
            owned, delivery = claimed[0]
            found = self._calls.handler_of(delivery.message.type)
            if found is not None and not found.is_async:
                claimed.popleft()
        return items

    def _add(self, items: list[Item], handler: Handler, owned: Owned, delivery: AnyDelivery) -> None:
        variables = copy_context()
        call = handler.call
        try:
            arguments = variables.run(self._calls.arguments, handler, delivery)
        except Exception as error:
            self._settling.failed(owned, [delivery], error)
            return
        except BaseException as error:
            # Raised in its turn, as if the handler did: here it would end the task, and with it the event loop.
            call, arguments = _raise, (error,)
        owned.running += 1
        delivery.begun = monotonic()
        items.append(Item(owned, delivery, call, arguments, variables))

    def _leave(self, chunk: Chunk) -> None:
        """Others get its messages: those that have not begun do not begin any more."""
        for item in chunk.taken_back():
            item.owned.running -= 1
            item.owned.ended()

    def _settle(self, chunk: Chunk) -> None:
        telling = self._settling.telling
        for item in chunk.ended():
            item.owned.running -= 1
            if item.owned.taken_back and not item.delivery.is_in_force:
                continue
            if item.timed_out is not None:
                self._settling.failed(item.owned, [item.delivery], item.timed_out, item.seconds)
            elif isinstance(item.error, ENDS_PROGRAM):
                chunk.ending = self._runner.ends_program(item.owned, [item.delivery], item.error, item.seconds)
            elif item.error is None:
                self._settling.done(item.owned, item.delivery)
                if telling is not None:
                    telling.note(item.delivery, item.seconds)
            else:
                error = item.error
                if isinstance(error, asyncio.CancelledError):
                    error = HandlerCancelled(error)
                self._settling.failed(item.owned, [item.delivery], error, item.seconds)

    def _go_on_without(self, chunk: Chunk) -> None:
        """One of them takes its time: the others need not wait for it."""
        self._settle(chunk)
        for item in chunk.taken_back():
            item.owned.running -= 1
            if item.owned.hands_out:
                self._runner.claimed.appendleft((item.owned, item.delivery))
            else:
                item.owned.lane.give_back([item.delivery])
                item.owned.ended()
        self._runner.more()
        self._size = 1

    def _give_back(self, chunk: Chunk) -> None:
        """The process ends before they do."""
        self._settle(chunk)
        left = [*chunk.taken_back(), *([chunk.current] if chunk.current else [])]
        for item in left:
            item.owned.running -= 1
            if item.timed_out is not None:
                self._settling.failed(item.owned, [item.delivery], item.timed_out)
            else:
                item.owned.lane.give_back([item.delivery])
                item.owned.ended()

    def _learn(self, seconds: float) -> None:
        """How many go together the next time: as many as end soon, and one alone where time-outs are short."""
        if seconds > SLICE or self._runner.timeout < 10 * PATIENCE:
            self._size = max(1, self._size // 2)
        else:
            self._size = min(LARGEST, self._size * 2)


def _raise(error: BaseException) -> None:
    raise error
