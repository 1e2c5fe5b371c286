"""Call handlers of one message one after the other, as long as none takes time; plain ones in a thread."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass
from threading import get_ident
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

from milepost.concurrency import DaemonThreads
from milepost.engine.context_variables import other_steps
from milepost.engine.declare.handler import AnyDelivery, Handler
from milepost.engine.declare.outcomes import ENDS_PROGRAM, EndsProgram
from milepost.engine.handlers.invoker import HandlerCancelled, HandlerInvoker, TimedOut, Unhandled
from milepost.engine.handlers.settler import CallSettler
from milepost.engine.handlers.slots import Slot
from milepost.engine.lanes.held_lane import HeldLane
from milepost.engine.tracebacks import stack_of

if TYPE_CHECKING:
    from milepost.engine.handlers.runner import Runner


@dataclass(slots=True, eq=False)
class ThreadBatchItem:
    """A message, and the call that is to be made for it."""

    owned: HeldLane
    delivery: AnyDelivery
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    context: Context
    error: BaseException | None = None
    timed_out: Exception | None = None
    """Set when its time is up, whatever becomes of the call."""
    seconds: float = 0.0
    """How long the call took."""


class ThreadBatch:
    """A few messages on their way through a thread.

    To change threads takes longer than most handlers that do little, so they change together. What waits behind
    one that turns out to be slow can be taken back at any time: both sides only pop from the ends of a deque.
    """

    def __init__(self, items: list[ThreadBatchItem], slot: Slot, timeout: float) -> None:
        self._waiting = deque(items)
        self._ended: deque[ThreadBatchItem] = deque()
        self._slot = slot
        self._timeout = timeout
        self._thread: int | None = None
        self.current: ThreadBatchItem | None = None
        self.ending: EndsProgram | None = None
        """What ends the program, if one of the calls raised that; those after it have not begun."""

    @property
    def waits(self) -> bool:
        """Whether some of them have not begun."""
        return bool(self._waiting)

    def run(self) -> None:
        """In the thread: calls the handlers."""
        self._thread = get_ident()
        while (item := _pop_or_none(self._waiting.popleft)) is not None:
            self.current = item
            self._slot.begin(self._timeout)
            begun = monotonic()
            try:
                item.context.run(item.call, *item.arguments)
            except BaseException as error:
                item.error = error
            item.seconds = monotonic() - begun
            self._slot.deadline = None
            self.current = None
            self._ended.append(item)
            if isinstance(item.error, ENDS_PROGRAM):
                break

    def where(self) -> TracebackType | None:
        """Return where the thread is just now."""
        return None if self._thread is None else stack_of(self._thread, ThreadBatch.run.__code__)

    def taken_back(self) -> Iterator[ThreadBatchItem]:
        """Those that have not begun, the last first; they do not begin any more."""
        while (item := _pop_or_none(self._waiting.pop)) is not None:
            yield item

    def ended(self) -> Iterator[ThreadBatchItem]:
        """Those that have ended."""
        while (item := _pop_or_none(self._ended.popleft)) is not None:
            yield item


def _pop_or_none(pop: Callable[[], ThreadBatchItem]) -> ThreadBatchItem | None:
    try:
        return pop()
    except IndexError:
        return None


LOOP_SLICE_SECONDS = 0.002
"""Seconds after which others have their turn."""
THREAD_BATCH_WAIT_SECONDS = 0.005
"""Seconds after which what waits behind a plain handler goes to other threads."""
MAX_THREAD_BATCH_MESSAGES = 64
"""The most messages that go to a thread together."""


class HandlerLoop:
    """Calls handlers that take one message.

    A coroutine that never waits costs a call and no more: what ends in one step of the loop is settled together
    at its end, and what waits does so in this slot, while others go on with the rest.
    """

    alone = False

    def __init__(
        self, runner: "Runner", settler: CallSettler, invoker: HandlerInvoker, threads: DaemonThreads
    ) -> None:
        self._runner = runner
        self._settler = settler
        self._invoker = invoker
        self._threads = threads
        self._size = 1

    async def run(self, slot: Slot) -> None:
        """Works off what is claimed."""
        runner, invoker, timeout = self._runner, self._invoker, self._runner.timeout
        settler = self._settler
        times, handled = (None, None) if settler.emitter is None else settler.emitter.noted
        claimed, handler_of, begin = runner.claimed, invoker.handler_of, invoker.begin
        # The clock is read once a message: when one has ended the next begins.
        begun = now = monotonic()
        over = begun + LOOP_SLICE_SECONDS
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
                    settler.failed(owned, [delivery], Unhandled(delivery.message.type))
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
                        settler.settle_at_step_end(owned)
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
            settler.handling_seconds += monotonic() - begun
            runner.busy.discard(slot)
            runner.turn_ended()

    def _failed(self, owned: HeldLane, delivery: AnyDelivery, error: BaseException, begun: float) -> float:
        """A call has raised; the time when that is settled."""
        self._settler.failed(owned, [delivery], error, monotonic() - begun)
        return monotonic()

    # In a thread

    async def _in_thread(self, handler: Handler, owned: HeldLane, delivery: AnyDelivery, slot: Slot) -> None:
        """A few messages through a thread. A thread cannot be stopped: a key stays held until it returns."""
        batch = ThreadBatch(self._items(handler, owned, delivery), slot, self._runner.timeout)
        begun = monotonic()
        future = self._threads.run(batch.run)
        while not future.done():
            try:
                await asyncio.wait([future], timeout=THREAD_BATCH_WAIT_SECONDS if batch.waits else None)
            except asyncio.CancelledError:
                if slot.is_taken_back():
                    self._leave(batch)
                    continue
                if slot.expired():
                    if (late := batch.current) is not None:
                        late.timed_out = TimedOut(self._runner.timeout, batch.where())
                elif slot.is_ending():
                    self._give_back(batch)
                    raise
            if not future.done():
                self._go_on_without(batch)
        self._settle(batch)
        if batch.ending is not None:
            self._give_back(batch)
            raise batch.ending
        self._learn(monotonic() - begun)

    def _items(self, handler: Handler, owned: HeldLane, delivery: AnyDelivery) -> list[ThreadBatchItem]:
        """Claimed messages for plain handlers, the given one first."""
        items: list[ThreadBatchItem] = []
        claimed = self._runner.claimed
        found: Handler | None = handler
        while found is not None and not found.is_async:
            self._add(items, found, owned, delivery)
            if len(items) >= self._size or not claimed or self._runner.may_lack_keys:
                break
            owned, delivery = claimed[0]
            found = self._invoker.handler_of(delivery.message.type)
            if found is not None and not found.is_async:
                claimed.popleft()
        return items

    def _add(self, items: list[ThreadBatchItem], handler: Handler, owned: HeldLane, delivery: AnyDelivery) -> None:
        variables = copy_context()
        call = handler.call
        try:
            arguments = variables.run(self._invoker.arguments, handler, delivery)
        except Exception as error:
            self._settler.failed(owned, [delivery], error)
            return
        except BaseException as error:
            # Raised in its turn, as if the handler did: here it would end the task, and with it the event loop.
            call, arguments = _raise, (error,)
        owned.running += 1
        delivery.begun = monotonic()
        items.append(ThreadBatchItem(owned, delivery, call, arguments, variables))

    def _leave(self, batch: ThreadBatch) -> None:
        """Others get its messages: those that have not begun do not begin any more."""
        for item in batch.taken_back():
            item.owned.running -= 1
            item.owned.ended()

    def _settle(self, batch: ThreadBatch) -> None:
        emitter = self._settler.emitter
        for item in batch.ended():
            item.owned.running -= 1
            if item.owned.taken_back and not item.delivery.is_in_force:
                continue
            if item.timed_out is not None:
                self._settler.failed(item.owned, [item.delivery], item.timed_out, item.seconds)
            elif isinstance(item.error, ENDS_PROGRAM):
                batch.ending = self._runner.ends_program(item.owned, [item.delivery], item.error, item.seconds)
            elif item.error is None:
                self._settler.done(item.owned, item.delivery)
                if emitter is not None:
                    emitter.note(item.delivery, item.seconds)
            else:
                error = item.error
                if isinstance(error, asyncio.CancelledError):
                    error = HandlerCancelled(error)
                self._settler.failed(item.owned, [item.delivery], error, item.seconds)

    def _go_on_without(self, batch: ThreadBatch) -> None:
        """One of them takes its time: the others need not wait for it."""
        self._settle(batch)
        for item in batch.taken_back():
            item.owned.running -= 1
            if item.owned.hands_out:
                self._runner.claimed.appendleft((item.owned, item.delivery))
            else:
                item.owned.lane.give_back([item.delivery])
                item.owned.ended()
        self._runner.on_change()
        self._size = 1

    def _give_back(self, batch: ThreadBatch) -> None:
        """The process ends before they do."""
        self._settle(batch)
        left = [*batch.taken_back(), *([batch.current] if batch.current else [])]
        for item in left:
            item.owned.running -= 1
            if item.timed_out is not None:
                self._settler.failed(item.owned, [item.delivery], item.timed_out)
            else:
                item.owned.lane.give_back([item.delivery])
                item.owned.ended()

    def _learn(self, seconds: float) -> None:
        """How many go together the next time: as many as end soon, and one alone where time-outs are short."""
        if seconds > LOOP_SLICE_SECONDS or self._runner.timeout < 10 * THREAD_BATCH_WAIT_SECONDS:
            self._size = max(1, self._size // 2)
        else:
            self._size = min(MAX_THREAD_BATCH_MESSAGES, self._size * 2)


def _raise(error: BaseException) -> None:
    raise error
