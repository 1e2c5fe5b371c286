"""Handlers that write in the transaction of their progress: what they wrote and that they did commits together."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from milepost.dispatch import Exchange
from milepost.engine.clock import Clock
from milepost.engine.declare.context import CannotAppend, Transaction
from milepost.engine.declare.handler import AnyDelivery, is_unreadable
from milepost.engine.declare.outcomes import Failed, RetryLater
from milepost.engine.handlers.invoker import HandlerInvoker, TakenBack, TimedOut
from milepost.engine.handlers.slots import Slot
from milepost.engine.handlers.transient_failures import (
    MAX_LOST_CONNECTIONS,
    UNCOUNTED_SECONDS,
    AdaptiveBatchSize,
    TransientFailures,
)
from milepost.engine.lanes.held_lane import HeldLane
from milepost.engine.lanes.message_loader import MessageLoader
from milepost.engine.subscription_logger import SubscriptionLogger
from milepost.engine.tracebacks import reason_of
from milepost.errors import Unavailable
from milepost.log.append import Appender, as_message_list
from milepost.log.message import Message
from milepost.log.protocol import PreparedAppend, TransactionLog
from milepost.progress.postgres.transaction import (
    DRIVER_ERRORS,
    FIRST_SAVEPOINT,
    ISOLATION_STATEMENTS,
    LOST_RACE_ERRORS,
    NEXT_SAVEPOINT,
    NO_SAVEPOINT_ERRORS,
    RELEASE_SAVEPOINT,
    ROLLBACK,
    ROLLBACK_SIGNAL,
    ROLLBACK_TO_SAVEPOINT,
    HandlerConnection,
    HandlerDatabase,
    HandlerDeadline,
    RunAgain,
    TransactionEnded,
    TransactionRefused,
    begin_batch,
    check_open,
    idle_timeout_statement,
    lost_race_in,
    send_commands,
    transaction_on,
)
from milepost.progress.protocol import ExchangeResult, Progress, RolledBack, StaleLane

MAX_TRANSACTION_MESSAGES = 64
"""The most messages of a transaction, unless the handler takes several and says how many."""
MAX_APPENDING_SECONDS = 0.05
"""How long one goes on that appends: until it ends, nobody sees what others appended after it."""

BLAMELESS_ERRORS = (*LOST_RACE_ERRORS, TakenBack, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)
"""What a call can end with that is no failure of its messages."""
Failures = dict[AnyDelivery, BaseException]


class ConnectionEnded(Unavailable):
    """The connection ended while a handler had it, or soon after; nothing of the progress was sent before."""

    def __init__(self, failures: Failures) -> None:
        error = next(iter(failures.values()))
        super().__init__(f"the connection ended while a handler had it: {reason_of(error)}")
        self.failures = failures
        """Whose call it was, and what came of it."""


class PendingAppends:
    """Messages that a transaction appends at its end, since an open append holds back all readers."""

    def __init__(self, log: TransactionLog, appender: Appender | None) -> None:
        self._log = log
        self._appender = appender
        self._kept: list[PreparedAppend] = []
        self._refused: CannotAppend | None = None

    async def __call__(self, stream: str, messages: Any, *, expected: int) -> None:
        if self._appender is None:
            self._refused = CannotAppend()
            raise self._refused
        # Encoded now, so that what cannot be appended is the handler's own error.
        self._kept.append(self._appender.prepared(stream, as_message_list(messages), expected=expected))

    def __len__(self) -> int:
        return len(self._kept)

    def check(self) -> None:
        """Raises a refusal that the handler hid: what it asked for would be missing."""
        if self._refused is not None:
            raise self._refused

    def cut(self, length: int) -> None:
        """Forgets what a message asked for that failed."""
        del self._kept[length:]
        self._refused = None

    async def send(self, connection: HandlerConnection) -> None:
        """Appends all of it."""
        for prepared in self._kept:
            await self._log.append([prepared], connection=connection)


class ExactlyOnce:
    """Runs messages of a lane in one transaction: all in one call, or a savepoint around each."""

    def __init__(
        self,
        invoker: HandlerInvoker,
        database: HandlerDatabase,
        progress: Progress,
        rows: MessageLoader,
        log: TransactionLog,
        appender: Appender | None,
        clock: Clock,
        logger: SubscriptionLogger,
        *,
        batch: int | None,
        isolation: str,
        timeout: float,
        lease: float,
        stall_after: int,
        on_park: str,
        committed: Callable[[Sequence[AnyDelivery], float], None],
    ) -> None:
        self._invoker = invoker
        self._database = database
        self._progress = progress
        self._rows = rows
        self._log = log
        self._appender = appender
        self._clock = clock
        self._logger = logger
        self._batch = batch is not None
        self._grouping = AdaptiveBatchSize(batch or MAX_TRANSACTION_MESSAGES)
        self._setbacks = TransientFailures(random.random)
        self._bound = ISOLATION_STATEMENTS.get(isolation, b"") + idle_timeout_statement(timeout, lease)
        self._has_old_snapshot = isolation in ISOLATION_STATEMENTS
        """Whether an exchange in its transactions may not see what has happened since they began."""
        self._call_seconds = timeout + database.statement_seconds
        """How long a call and the statements around it may take: after its time-out the server may not answer."""
        self._stall_after = stall_after
        self._on_park = on_park
        self._committed = committed

    async def run(self, owned: HeldLane, deliveries: Sequence[AnyDelivery], slot: Slot) -> Failures:
        """Calls the handlers and commits what succeeded; what failed is left to the caller, with its errors.

        Raises `RunAgain` where nothing was committed, `StaleLane` or `Unavailable` where the lane is lost.
        """
        try:
            failures = await self._run(owned, list(deliveries), slot)
        except TransactionRefused as refused:
            owned.lane.abandon()
            if len(deliveries) == 1 or (self._batch and isinstance(refused.error, TransactionEnded)):
                return dict.fromkeys(deliveries, refused.error)
            return await self._one_by_one(owned, deliveries, slot)
        except RunAgain as again:
            owned.lane.abandon()
            self._grouping.lost(time.monotonic())
            if len(deliveries) > 1:
                raise
            return await self._lost_race(again, deliveries[0])
        except ConnectionEnded as ended:
            if owned.lost:
                raise
            failures = await self._lost_connection(ended)
            owned.lane.give_back([delivery for delivery in deliveries if delivery not in failures])
            return failures
        if self._setbacks:
            self._setbacks.forget([delivery.message.position for delivery in deliveries])
        return failures

    async def _lost_race(self, again: RunAgain, delivery: AnyDelivery) -> Failures:
        """Run a message again after a pause, or put it off, and it is no attempt; after minutes of that it is."""
        position = delivery.message.position
        pause = self._setbacks.lost_race(position, time.monotonic())
        if pause is None:
            text = "position %d lost races for more than %g s, and each is a failed attempt now: %s"
            self._logger.warning(text, position, UNCOUNTED_SECONDS, again, position=position)
            return {delivery: again.error}
        if pause.in_place:
            await asyncio.sleep(pause.seconds)
            raise again
        return {delivery: RetryLater(pause.seconds, count=False, reason=reason_of(again.error))}

    async def _lost_connection(self, ended: ConnectionEnded) -> Failures:
        """Raise it again after a pause, and it is no attempt; one that comes again and again is."""
        delivery, failure = next(iter(ended.failures.items()))
        if isinstance(failure, TimedOut):
            # It is one in any case: of a call that takes too long the server ends the transaction.
            return ended.failures
        position = delivery.message.position
        pause = self._setbacks.lost_connection(position)
        if pause is None:
            text = "position %d ran for nothing more than %d times in a row, which is a failed attempt: %s"
            self._logger.warning(text, position, MAX_LOST_CONNECTIONS, ended, position=position)
            return ended.failures
        await asyncio.sleep(pause)
        raise ended

    @property
    def together(self) -> int:
        """How many messages a transaction takes, at most."""
        return self._grouping.size

    async def _one_by_one(self, owned: HeldLane, deliveries: Sequence[AnyDelivery], slot: Slot) -> Failures:
        failures: Failures = {}
        for number, delivery in enumerate(deliveries, start=1):
            failures |= await self.run(owned, [delivery], slot)
            if isinstance(failures.get(delivery), SystemExit):
                owned.lane.give_back(deliveries[number:])
                break
        return failures

    async def _run(self, owned: HeldLane, deliveries: list[AnyDelivery], slot: Slot) -> Failures:
        begun = time.monotonic()
        async with self._database.connection() as connection:
            with HandlerDeadline(connection, self._database.statement_seconds) as deadline:
                done, failures, exchange, exchanged = await self._commit(
                    owned, deliveries, slot, connection, deadline
                )
        # It is committed: whatever goes wrong from here on, nothing of it may run again by itself.
        ended_at = time.monotonic()
        self._committed(done, ended_at - begun)
        self._grouping.committed(ended_at)
        if exchanged is not None:
            self._clock.set(exchanged.now)
            answer = await self._rows.answer(exchanged.answer, log_life=owned.held.log_life)
            # Not before the lane knows what was written: whoever is cancelled in between may write no more.
            owned.held = exchanged.held
            if not owned.lost:
                owned.lane.exchanged(answer)
                if self._has_old_snapshot and exchange is not None and exchange.ask is not None:
                    # A person may have changed rows after the snapshot, and before they were asked for.
                    owned.lane.poke()
        if len(done) + len(failures) < len(deliveries):
            ended = {*done, *failures}
            owned.lane.give_back([delivery for delivery in deliveries if delivery not in ended])
        return failures

    async def _commit(
        self,
        owned: HeldLane,
        deliveries: list[AnyDelivery],
        slot: Slot,
        connection: HandlerConnection,
        deadline: HandlerDeadline,
    ) -> tuple[list[AnyDelivery], Failures, Exchange[Message[Any]] | None, ExchangeResult | None]:
        """Handle messages in one transaction with their progress; return what was done and what failed."""
        done: list[AnyDelivery] = []
        failures: Failures = {}
        exchange: Exchange[Message[Any]] | None = None
        exchanged: ExchangeResult | None = None
        transaction: str | None = None
        async with transaction_on(connection):
            appends = PendingAppends(self._log, self._appender)
            if self._batch:
                transaction = await begin_batch(connection, self._bound)
                deadline.within(self._call_seconds)
                done, failures = await self._handle_together(connection, appends, deliveries, slot)
                deadline.within(self._database.statement_seconds)
                if failures and not owned.lost:
                    await _undo(connection, ROLLBACK, failures)
                    raise ROLLBACK_SIGNAL
            else:
                done, failures = await self._handle(owned, connection, deadline, appends, deliveries, slot)
            deadline.within(self._database.statement_seconds)
            await appends.send(connection)
            if owned.lost:
                raise StaleLane("the lane was lost while its messages were handled")
            exchange = owned.lane.exchange(self._clock.now(), commits=done)
            exchanged = await self._exchange(owned, exchange, connection)
            if transaction and exchanged is not None and exchanged.transaction != transaction:
                # It began another one, so that the connection looked as it should.
                raise TransactionEnded
        return done, failures, exchange, exchanged

    async def _handle_together(
        self, connection: HandlerConnection, appends: PendingAppends, deliveries: list[AnyDelivery], slot: Slot
    ) -> tuple[list[AnyDelivery], Failures]:
        """One call for all. It needs no savepoint: what it wrote is all that there is to undo."""
        try:
            await self._call(deliveries, slot, Transaction(connection, appends))
            appends.check()
            await check_open(connection)
        except BLAMELESS_ERRORS:
            raise
        except BaseException as error:
            if race := lost_race_in(error):
                raise race from None
            return [], _failures_of(deliveries, error)
        return deliveries, {}

    async def _call(self, deliveries: list[AnyDelivery], slot: Slot, transaction: Transaction) -> None:
        """Call the handler, once for all of them."""
        try:
            if self._batch:
                await self._invoker.several(deliveries, slot, transaction)
            else:
                await self._invoker.one(deliveries[0], slot, transaction)
        finally:
            transaction.end()

    async def _handle(
        self,
        owned: HeldLane,
        connection: HandlerConnection,
        deadline: HandlerDeadline,
        appends: PendingAppends,
        deliveries: list[AnyDelivery],
        slot: Slot,
    ) -> tuple[list[AnyDelivery], Failures]:
        """A call for each, between savepoints."""
        done: list[AnyDelivery] = []
        failures: Failures = {}
        begun = time.monotonic()
        await send_commands(connection, self._bound + FIRST_SAVEPOINT)
        for number, delivery in enumerate(deliveries, start=1):
            kept = len(appends)
            deadline.within(self._call_seconds)
            try:
                await self._call([delivery], slot, Transaction(connection, appends))
                deadline.within(self._database.statement_seconds)
                appends.check()
                # It fails if the handler hid an error that ended the transaction.
                await send_commands(connection, RELEASE_SAVEPOINT if number == len(deliveries) else NEXT_SAVEPOINT)
            except BLAMELESS_ERRORS:
                raise
            except BaseException as error:
                if race := lost_race_in(error):
                    raise race from None
                deadline.within(self._database.statement_seconds)
                blamed = _failures_of([delivery], error)
                await self._undo(connection, blamed, done)
                appends.cut(kept)
                failures |= blamed
            else:
                done.append(delivery)
            # What is done is committed, and the rest runs in the next transaction, or elsewhere.
            ends_program = any(isinstance(error, SystemExit) for error in failures.values())
            if (
                ends_program
                or owned.closing
                or (len(appends) and time.monotonic() - begun > MAX_APPENDING_SECONDS)
            ):
                break
        return done, failures

    async def _undo(self, connection: HandlerConnection, blamed: Failures, done: list[AnyDelivery]) -> None:
        """Back to the savepoint, which goes with the transaction that it is in."""
        try:
            await _undo(connection, ROLLBACK_TO_SAVEPOINT, blamed)
        except NO_SAVEPOINT_ERRORS as error:
            if done:
                [delivery] = blamed
                before = [each.message.position for each in done]
                self._logger.ended_transaction(delivery.message, delivery.attempt, before)
            raise TransactionEnded from error

    async def _exchange(
        self, owned: HeldLane, exchange: Exchange[Message[Any]] | None, connection: HandlerConnection
    ) -> ExchangeResult | None:
        if exchange is None:
            return None
        try:
            return await self._progress.exchange(
                owned.held,
                exchange,
                stall_after=self._stall_after,
                on_park=self._on_park,
                connection=connection,
            )
        except RolledBack as error:
            raise lost_race_in(error) or error from None


def _failures_of(part: Sequence[AnyDelivery], error: BaseException) -> Failures:
    """Which messages of a call that was rolled back have failed; the others run again."""
    if isinstance(error, Failed):
        errors = error.errors
        named = {each: errors[at] for each in part if (at := each.message.position) in errors}
    else:
        named = {each: error for each in part if is_unreadable(error, each.message)}
    return named or dict.fromkeys(part, error)


async def _undo(connection: HandlerConnection, command: bytes, failures: Failures) -> None:
    """Take back what calls wrote that failed. Their connection may have ended, which shows here at the latest."""
    try:
        await send_commands(connection, command)
    except DRIVER_ERRORS as error:
        if connection.closed:
            raise ConnectionEnded(failures) from error
        raise
