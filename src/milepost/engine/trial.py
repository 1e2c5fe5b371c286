"""Tries a handler on real messages: its transaction is rolled back, and progress stays as it is."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from milepost.dispatch.delivery import Entry
from milepost.engine.calls import AnyDelivery, Calls
from milepost.engine.deliveries import Deliveries
from milepost.engine.handler import Handler, Undecodable
from milepost.engine.kept import Kept
from milepost.engine.order import Unordered
from milepost.engine.outcomes import Failed, Park, RetryLater, Skip
from milepost.engine.place import Place
from milepost.engine.prospect import Prospect, prospects
from milepost.engine.rehearsal import Asked, Rehearsal, Written
from milepost.engine.slots import Slot
from milepost.engine.subscription import Subscription
from milepost.engine.trace.selecting import selecting
from milepost.engine.transaction import Transaction
from milepost.errors import MilepostError, UnknownSubscription
from milepost.log.appender import Appender
from milepost.log.codec import NewerVersion
from milepost.log.message import Message
from milepost.progress.deliveries import Choice, StoredDelivery
from milepost.threads import Threads

AnyMessage = Message[Any]

LOOK = 0.02
"""Seconds between two looks at whether a call has taken too long."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What is tried on what."""

    subscription: Subscription
    handler: Handler
    messages: Sequence[AnyMessage]
    """One, or several for a handler that takes a batch."""
    stored: Mapping[int, StoredDelivery]
    """The messages' deliveries, by position, as far as there are any."""
    unreached: Mapping[int, str]
    """Which messages would not reach the handler, by position, and why."""

    def attempt(self, position: int) -> int:
        """Which attempt this would be, from 1."""
        return self.stored[position].attempts + 1 if position in self.stored else 1


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What came of it."""

    seconds: float
    returned: bool
    """Whether the handler did; its transaction may have failed all the same."""
    error: BaseException | None
    """What the handler raised, or what its transaction would have failed with."""
    prospects: Mapping[int, Prospect]
    """What would have become of each message, by position."""
    writes: Sequence[Written] | None = None
    """What was written in the transaction, also by a handler that failed in the end; None: nobody knows."""
    appends: Sequence[Asked] = ()
    """What would have been appended."""
    committed: bool = False
    """Whether the handler ended its transaction by itself, so that nothing was left to roll back."""

    @property
    def is_done(self) -> bool:
        """Whether nothing more would come of any message."""
        return all(prospect.state in ("done", "skipped") for prospect in self.prospects.values())

    @property
    def has_failed(self) -> bool:
        """Whether the error is one, and not a handler's way to say what is to become of its message."""
        return self.error is not None and not isinstance(
            self.error, Skip | Park | RetryLater | Failed | Undecodable | NewerVersion
        )


class Trial:
    """Tries the handlers of a subscription."""

    def __init__(self, place: Place, appender: Appender, subscription: Subscription) -> None:
        self._place = place
        self._appender = appender if place.services.kept is Kept.WITH_THE_LOG else None
        self._subscription = subscription

    async def choose(self, positions: Sequence[int]) -> Chosen:
        """The messages at these positions and their handler; raises `MilepostError` where that is not possible."""
        messages = await self._messages(sorted(set(positions)))
        why_not = {message.position: self._why_not(message) for message in messages}
        return Chosen(
            subscription=self._subscription,
            handler=self._handler(messages),
            messages=messages,
            stored=await self._stored(messages),
            unreached={position: why for position, why in why_not.items() if why is not None},
        )

    async def _messages(self, positions: Sequence[int]) -> list[AnyMessage]:
        log = self._place.log
        found = {each.position: each for each in await self._place.reader.messages_at(log.database, positions)}
        for position in positions:
            if position not in found:
                raise MilepostError(
                    f"there is no message at position {position}; the log ends at {await log.horizon.look()}"
                )
        return [found[position] for position in positions]

    async def _stored(self, messages: Sequence[AnyMessage]) -> dict[int, StoredDelivery]:
        if self._place.services.database is None:
            return {}
        deliveries = Deliveries(self._place, self._subscription.group, self._subscription.name)
        found: dict[int, StoredDelivery] = {}
        # A subscription that has never run is not known.
        with suppress(UnknownSubscription):
            for message in messages:
                choice = Choice(after=message.position - 1, up_to=message.position)
                async for page in deliveries.pages(choice, 1):
                    found |= {delivery.position: delivery for delivery in page}
        return found

    def _why_not(self, message: AnyMessage) -> str | None:
        """Why a message would not reach a handler; None: it would."""
        found = selecting(self._subscription.selects)
        verdict = None if found is None else found.verdict(message)
        if verdict is not None and verdict.state != "selected":
            return verdict.why
        try:
            self._subscription.declaration.ordered_by.key(message)
        except Unordered as error:
            return f"it would be parked at once: {error.reason}"
        return None

    def _handler(self, messages: Sequence[AnyMessage]) -> Handler:
        """The one handler of these messages; where none takes their type, the only one there is."""
        name, handlers = self._subscription.name, self._subscription.handlers
        only = handlers[0] if len(handlers) == 1 else None
        found = {self._subscription.handler_of(message.type) or only for message in messages}
        if len(found) > 1:
            raise MilepostError(f"{name}: these messages are for different handlers: try them one by one")
        handler = found.pop()
        if handler is None:
            raise MilepostError(f"{name}: none of its {len(handlers)} handlers takes type {messages[0].type!r}")
        if len(messages) > 1 and not handler.batch:
            raise MilepostError(f"{name}: {handler.name} takes one message and no batch: give one position")
        return handler

    async def run(self, chosen: Chosen, *, timed: bool) -> Tried:
        """Calls the handler. If `timed`, the subscription's time-out holds."""
        call = _Call(chosen)
        if not chosen.handler.takes_transaction:
            seconds, raised = await call.made(None, timed=timed)
            return Tried(seconds=seconds, returned=raised is None, error=raised, prospects=call.prospects(raised))
        isolation = chosen.subscription.declaration.isolation
        async with Rehearsal.on(self._place.services.transactions, self._appender, isolation) as rehearsal:
            seconds, raised = await call.made(rehearsal.transaction, timed=timed)
            error = await rehearsal.conclude(raised)
        return Tried(
            seconds=seconds,
            returned=raised is None,
            error=error,
            prospects=call.prospects(error),
            writes=rehearsal.writes,
            appends=rehearsal.appends,
            committed=rehearsal.committed,
        )


class _Call:
    """One call of a handler, as a worker makes it."""

    def __init__(self, chosen: Chosen) -> None:
        self._retry = chosen.subscription.declaration.retry
        self._handler = chosen.handler
        self._deliveries = [_delivery(each, chosen.attempt(each.position)) for each in chosen.messages]
        self._threads = Threads(1)
        self._calls = Calls(chosen.subscription, self._threads)
        # It may be called for a message that it does not take.
        self._calls.handler_of = lambda type: chosen.handler  # noqa: A006 - its name

    async def made(self, transaction: Transaction | None, *, timed: bool) -> tuple[float, BaseException | None]:
        """How long it took, and what it raised."""
        begun = monotonic()
        async with _slot(timed) as slot:
            try:
                if self._handler.batch:
                    await self._calls.several(self._deliveries, slot, transaction)
                else:
                    await self._calls.one(self._deliveries[0], slot, transaction)
            except (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError):
                raise
            except BaseException as error:
                slot.forget_cancellations()
                return monotonic() - begun, error
            finally:
                self._threads.close()
            slot.forget_cancellations()
        return monotonic() - begun, None

    def prospects(self, error: BaseException | None) -> dict[int, Prospect]:
        """What would become of its messages."""
        return prospects(error, self._deliveries, self._retry, transaction=self._handler.takes_transaction)


def _delivery(message: AnyMessage, attempt: int) -> AnyDelivery:
    entry = Entry(position=message.position, message=message, key=None, size=message.size)
    return AnyDelivery(message=message, attempt=attempt, entry=entry)


class _OwnSlot(Slot):
    """A slot in the task of somebody else, who may cancel it at any time."""

    def is_ending(self) -> bool:
        return self.task is not None and self.task.cancelling() > 0


@asynccontextmanager
async def _slot(timed: bool) -> AsyncIterator[Slot]:
    """A slot that is this task's; if `timed`, a call in it ends when its time is up."""
    slot = _OwnSlot()
    slot.task = asyncio.current_task()
    if not timed:
        yield slot
        return
    watching = asyncio.create_task(_watch(slot))
    try:
        yield slot
    finally:
        watching.cancel()


async def _watch(slot: Slot) -> None:
    while True:
        await asyncio.sleep(LOOK)
        if slot.deadline is not None and monotonic() >= slot.deadline and slot.task is not None:
            slot.deadline, slot.timed_out = None, True
            slot.task.cancel()
