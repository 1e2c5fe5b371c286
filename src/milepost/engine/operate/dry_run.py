"""Run a handler on real messages without consequences: its transaction is rolled back, progress stays as it is."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

import msgspec

from milepost.concurrency import DaemonThreads
from milepost.dispatch import Retry
from milepost.dispatch.delivery import LaneEntry
from milepost.engine.declare.context import CannotAppend, ProgressLocation, Transaction
from milepost.engine.declare.handler import AnyDelivery, AnyMessage, Handler, Undecodable, is_unreadable
from milepost.engine.declare.order import NoKey
from milepost.engine.declare.outcomes import VERSION_RETRY_SECONDS, Failed, Park, RetryLater, Skip
from milepost.engine.declare.stored_definition import stored_selection
from milepost.engine.declare.subscription import Subscription
from milepost.engine.handlers.invoker import HandlerInvoker
from milepost.engine.handlers.slots import Slot
from milepost.engine.operate.deliveries import SubscriptionDeliveries
from milepost.engine.runtime import Runtime
from milepost.engine.tracebacks import reason_of
from milepost.errors import MilepostError, UnknownSubscription
from milepost.log.append import Appender, as_message_list
from milepost.log.codec import NewerVersion
from milepost.log.protocol import PreparedAppend, TransactionLog
from milepost.progress.deliveries import DeliveryChoice, StoredDelivery
from milepost.progress.postgres.transaction import (
    CHECK_AT_ONCE,
    CONNECTION_ERRORS,
    DRIVER_ERRORS,
    FIRST_SAVEPOINT,
    ISOLATION_STATEMENTS,
    NO_SAVEPOINT_ERRORS,
    RELEASE_SAVEPOINT,
    ROLLBACK_TO_SAVEPOINT,
    HandlerConnection,
    HandlerDatabase,
    lost_race_in,
    rows_written,
)


class PredictedOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of a message."""

    state: Literal["done", "skipped", "retrying", "parked", "again"]
    """`again`: it runs again at once, and nothing is counted."""
    reason: str = ""
    after: float | None = None
    """Of a retrying one: seconds until it is tried again."""
    counts: bool = True
    """Of a retrying one: whether this was an attempt."""


PREDICTED_DONE = PredictedOutcome(state="done")
PREDICTED_AGAIN = PredictedOutcome(state="again")


def predict_outcomes(
    error: BaseException | None, deliveries: Sequence[AnyDelivery], retry: Retry, *, transaction: bool
) -> dict[int, PredictedOutcome]:
    """By position, for the messages of one call. With a transaction a failed one takes the others back with it."""
    others = PREDICTED_AGAIN if transaction else PREDICTED_DONE
    named: dict[int, BaseException] = {}
    if isinstance(error, Failed):
        named = error.errors
    elif error is not None and len(deliveries) > 1:
        named = {each.message.position: error for each in deliveries if is_unreadable(error, each.message)}
        others = PREDICTED_AGAIN if named else others
    if not any(delivery.message.position in named for delivery in deliveries):
        return {each.message.position: _predict(error, each, retry, transaction) for each in deliveries}
    return {
        each.message.position: _predict(named[each.message.position], each, retry, transaction)
        if each.message.position in named
        else others
        for each in deliveries
    }


def _predict(
    error: BaseException | None, delivery: AnyDelivery, retry: Retry, transaction: bool
) -> PredictedOutcome:
    match error:
        case None:
            return PREDICTED_DONE
        case Skip():
            return PredictedOutcome(state="skipped", reason=error.reason)
        case Park() | Undecodable():
            return PredictedOutcome(state="parked", reason=error.reason)
        case RetryLater():
            return PredictedOutcome(state="retrying", reason=error.reason, after=error.seconds, counts=error.count)
        case NewerVersion() if error.is_of(delivery.message):
            return PredictedOutcome(state="retrying", reason=str(error), after=VERSION_RETRY_SECONDS, counts=False)
        case CannotAppend():
            return PredictedOutcome(state="parked", reason=reason_of(error))
        case _ if transaction and lost_race_in(error):
            return PredictedOutcome(state="again", reason=reason_of(error))
        case _:
            return _predict_failure(error, delivery.attempt, retry)


def _predict_failure(error: BaseException, attempt: int, retry: Retry) -> PredictedOutcome:
    wait = retry.policy_for(type(error)).wait(attempt, lambda: 0.5)
    if wait is None:
        return PredictedOutcome(state="parked", reason=reason_of(error))
    return PredictedOutcome(state="retrying", reason=reason_of(error), after=wait)


CHECK_CONSTRAINTS = CHECK_AT_ONCE
"""A handler may have put off constraints until the commit, which never comes here."""


class WrittenRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a table that were written."""

    table: str
    inserted: int
    updated: int
    deleted: int


class RequestedAppend(msgspec.Struct, frozen=True, kw_only=True):
    """An append that was asked for."""

    stream: str
    types: list[str]


class DryRunTransaction:
    """A transaction on a connection of its own. Appends are asked for in it and sent at its end."""

    def __init__(self, connection: HandlerConnection, log: TransactionLog, appender: Appender | None) -> None:
        self._connection = connection
        self._log = log
        self._appender = appender
        self._appends: list[PreparedAppend] = []
        self._refused: CannotAppend | None = None
        self.transaction = Transaction(connection, self._append)
        """What the handler gets."""
        self.committed = False
        """Whether the handler ended the transaction by itself, so that nothing is left to roll back."""
        self.writes: Sequence[WrittenRows] | None = None
        """What was written, also by a handler that failed in the end; None: nobody knows."""

    @classmethod
    @asynccontextmanager
    async def on(
        cls, database: HandlerDatabase, log: TransactionLog, appender: Appender | None, isolation: str
    ) -> "AsyncIterator[DryRunTransaction]":
        """Begins with the block, and rolls back at its end. Without an appender nothing can be appended."""
        async with await database.connect() as connection:
            try:
                async with connection.transaction(force_rollback=True):
                    await connection.execute(
                        ISOLATION_STATEMENTS.get(isolation, b"") + FIRST_SAVEPOINT, prepare=False
                    )
                    yield cls(connection, log, appender)
            except CONNECTION_ERRORS:
                # A connection that is lost has rolled back, too.
                if not connection.broken:
                    raise

    @property
    def appends(self) -> list[RequestedAppend]:
        """What was asked to be appended."""
        return [
            RequestedAppend(
                stream=asked.stream, types=[each["type"] for each in msgspec.json.decode(asked.messages)]
            )
            for asked in self._appends
        ]

    async def conclude(self, error: BaseException | None) -> BaseException | None:
        """The handler has returned, or raised this; returns what the transaction would have failed with."""
        self.transaction.end()
        if self._connection.broken:
            return error
        # Also where the handler hid it: a worker would see it.
        error = await self._left(self._refused if error is None else error)
        if self.committed:
            return error
        self.writes = await self._written()
        if error is not None:
            self._appends.clear()
            return error
        return await self._sent()

    async def _left(self, error: BaseException | None) -> BaseException | None:
        """Leaves the savepoint around the call, as a worker would; that shows what the handler did to it."""
        try:
            await self._connection.execute(
                RELEASE_SAVEPOINT if error is None else ROLLBACK_TO_SAVEPOINT, prepare=False
            )
        except NO_SAVEPOINT_ERRORS as missing:
            self.committed = True
            return error or missing
        except DRIVER_ERRORS as hidden:
            # The handler went on after an error that had ended the transaction.
            await self._connection.execute(ROLLBACK_TO_SAVEPOINT, prepare=False)
            return hidden
        return error

    async def _written(self) -> list[WrittenRows] | None:
        written = await rows_written(self._connection)
        return None if written is None else msgspec.json.decode(written, type=list[WrittenRows])

    async def _sent(self) -> BaseException | None:
        """Sends the appends at the end, since an open append holds back all readers."""
        try:
            for prepared in self._appends:
                await self._log.append([prepared], connection=self._connection)
            await self._connection.execute(CHECK_CONSTRAINTS)
        except (MilepostError, *DRIVER_ERRORS) as error:
            return error
        return None

    async def _append(self, stream: str, messages: Any, *, expected: int) -> None:
        if self._appender is None:
            self._refused = CannotAppend()
            raise self._refused
        self._appends.append(self._appender.prepared(stream, as_message_list(messages), expected=expected))


TIMEOUT_CHECK_SECONDS = 0.02
"""Seconds between two looks at whether a call has taken too long."""


@dataclass(frozen=True, kw_only=True)
class DryRunChoice:
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
class DryRunResult:
    """What came of it."""

    seconds: float
    returned: bool
    """Whether the handler did; its transaction may have failed all the same."""
    error: BaseException | None
    """What the handler raised, or what its transaction would have failed with."""
    prospects: Mapping[int, PredictedOutcome]
    """What would have become of each message, by position."""
    writes: Sequence[WrittenRows] | None = None
    """What was written in the transaction, also by a handler that failed in the end; None: nobody knows."""
    appends: Sequence[RequestedAppend] = ()
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


class DryRun:
    """Tries the handlers of a subscription."""

    def __init__(self, runtime: Runtime, appender: Appender, subscription: Subscription) -> None:
        self._runtime = runtime
        self._appender = appender if runtime.services.progress_location is ProgressLocation.WITH_THE_LOG else None
        self._subscription = subscription

    async def choose(self, positions: Sequence[int]) -> DryRunChoice:
        """The messages at these positions and their handler; raises `MilepostError` where that is not possible."""
        messages = await self._messages(sorted(set(positions)))
        why_not = {message.position: self._why_not(message) for message in messages}
        return DryRunChoice(
            subscription=self._subscription,
            handler=self._handler(messages),
            messages=messages,
            stored=await self._stored(messages),
            unreached={position: why for position, why in why_not.items() if why is not None},
        )

    async def _messages(self, positions: Sequence[int]) -> list[AnyMessage]:
        found = {each.position: each for each in await self._runtime.log.messages_at(positions)}
        for position in positions:
            if position not in found:
                head = (await self._runtime.log.current_horizon()).position
                raise MilepostError(f"there is no message at position {position}; the log ends at {head}")
        return [found[position] for position in positions]

    async def _stored(self, messages: Sequence[AnyMessage]) -> dict[int, StoredDelivery]:
        if self._runtime.services.database is None:
            return {}
        deliveries = SubscriptionDeliveries(self._runtime, self._subscription.group, self._subscription.name)
        found: dict[int, StoredDelivery] = {}
        # A subscription that has never run is not known.
        with suppress(UnknownSubscription):
            for message in messages:
                choice = DeliveryChoice(after=message.position - 1, up_to=message.position)
                async for page in deliveries.pages(choice, 1):
                    found |= {delivery.position: delivery for delivery in page}
        return found

    def _why_not(self, message: AnyMessage) -> str | None:
        """Why a message would not reach a handler; None: it would."""
        found = stored_selection(self._subscription.selects)
        verdict = None if found is None else found.verdict(message)
        if verdict is not None and verdict.state != "selected":
            return verdict.why
        try:
            self._subscription.declaration.ordered_by.key(message)
        except NoKey as error:
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

    async def run(self, chosen: DryRunChoice, *, timed: bool) -> DryRunResult:
        """Calls the handler. If `timed`, the subscription's time-out holds."""
        call = _DryRunCall(chosen)
        if not chosen.handler.takes_transaction:
            seconds, raised = await call.made(None, timed=timed)
            return DryRunResult(
                seconds=seconds, returned=raised is None, error=raised, prospects=call.prospects(raised)
            )
        isolation = chosen.subscription.declaration.isolation
        transactions, log = self._runtime.services.transactions, self._runtime.log
        async with DryRunTransaction.on(transactions, log, self._appender, isolation) as rehearsal:
            seconds, raised = await call.made(rehearsal.transaction, timed=timed)
            error = await rehearsal.conclude(raised)
        return DryRunResult(
            seconds=seconds,
            returned=raised is None,
            error=error,
            prospects=call.prospects(error),
            writes=rehearsal.writes,
            appends=rehearsal.appends,
            committed=rehearsal.committed,
        )


class _DryRunCall:
    """One call of a handler, as a worker makes it."""

    def __init__(self, chosen: DryRunChoice) -> None:
        self._retry = chosen.subscription.declaration.retry
        self._handler = chosen.handler
        self._deliveries = [_delivery(each, chosen.attempt(each.position)) for each in chosen.messages]
        self._threads = DaemonThreads(1)
        self._calls = HandlerInvoker(chosen.subscription, self._threads)
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

    def prospects(self, error: BaseException | None) -> dict[int, PredictedOutcome]:
        """What would become of its messages."""
        return predict_outcomes(error, self._deliveries, self._retry, transaction=self._handler.takes_transaction)


def _delivery(message: AnyMessage, attempt: int) -> AnyDelivery:
    entry = LaneEntry(position=message.position, message=message, key=None, size=message.size)
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
        await asyncio.sleep(TIMEOUT_CHECK_SECONDS)
        if slot.deadline is not None and monotonic() >= slot.deadline and slot.task is not None:
            slot.deadline, slot.timed_out = None, True
            slot.task.cancel()
