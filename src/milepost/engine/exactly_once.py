"""Handlers that write in the transaction of their progress: what they wrote and that they did commits together."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from milepost.dispatch import Exchange
from milepost.engine.calls import AnyDelivery, Calls, TakenBack, TimedOut
from milepost.engine.clock import Clock
from milepost.engine.grouping import Grouping
from milepost.engine.handler import is_unreadable
from milepost.engine.journal import Journal
from milepost.engine.outcomes import Failed, RetryLater
from milepost.engine.owned import Owned
from milepost.engine.rows import Rows
from milepost.engine.setbacks import MAX_LOST_CONNECTIONS, UNCOUNTED_SECONDS, Setbacks
from milepost.engine.slots import Slot
from milepost.engine.tracebacks import reason_of
from milepost.engine.transaction import CannotAppend, Transaction
from milepost.errors import MilepostError, Unavailable
from milepost.log.appender import Appender, several
from milepost.log.connections import executor_of
from milepost.log.database import Connection, Database, Deadline, driver
from milepost.log.message import Message
from milepost.progress.protocol import Exchanged, Progress, RolledBack, Stale

MESSAGES = 64
"""The most messages of a transaction, unless the handler takes several and says how many."""
SECONDS = 0.05
"""How long one goes on that appends: until it ends, nobody sees what others appended after it."""

ISOLATION = {
    "repeatable read": b"set transaction isolation level repeatable read; ",
    "serializable": b"set transaction isolation level serializable; ",
}
"""Before all else, and nothing for read committed, which connections have without a word."""
BOUND = b"set local idle_in_transaction_session_timeout = %d; "
"""Before the first statement: how long the server waits for the next statement, in milliseconds."""
LONGEST = 2**31 - 1
"""The longest that can be set."""
PLANS_OF_ROLE = (
    b"set local enable_seqscan to default; set local enable_bitmapscan to default; set local jit to default; "
)
"""A handler's statements are planned as its role says, and not as Milepost's own."""
IMMEDIATE = PLANS_OF_ROLE + b"set constraints all immediate"
TOGETHER = IMMEDIATE + b"; select pg_current_xact_id()::text"
"""Before a call for several messages: the name of the transaction that has to be the same after it."""
FIRST = IMMEDIATE + b"; savepoint milepost"
NEXT = b"release savepoint milepost; savepoint milepost"
LAST = b"release savepoint milepost"
UNDO = b"rollback to savepoint milepost"
"""Around each message: several commands in one journey to the server."""
UNDO_ALL = b"rollback"

AGAIN = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
"""What says that a transaction lost a race."""
NOBODYS = (*AGAIN, TakenBack, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)
"""What a call can end with that is no failure of its messages."""
NO_SAVEPOINT = (psycopg.errors.InvalidSavepointSpecification, psycopg.errors.NoActiveSqlTransaction)
"""What says that the transaction of a savepoint has ended, and perhaps another one has begun."""

Failures = dict[AnyDelivery, BaseException]


class Again(Exception):
    """The transaction was rolled back for certain, and no message is to blame: its messages run again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class ConnectionEnded(Unavailable):
    """The connection ended while a handler had it, or soon after; nothing of the progress was sent before."""

    def __init__(self, failures: Failures) -> None:
        error = next(iter(failures.values()))
        super().__init__(f"the connection ended while a handler had it: {reason_of(error)}")
        self.failures = failures
        """Whose call it was, and what came of it."""


class Refused(Exception):
    """The server or the log refused the transaction at its end: it was rolled back for certain."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class TransactionEnded(MilepostError):
    """A handler ended the transaction that it was given."""

    def __init__(self) -> None:
        super().__init__("the handler ended the transaction that its progress is part of")


class Appends:
    """Messages that a transaction appends at its end, since an open append holds back all readers."""

    def __init__(self, appender: Appender | None) -> None:
        self._appender = appender
        self._kept: list[Mapping[str, Any]] = []
        self._refused: CannotAppend | None = None

    async def __call__(self, stream: str, messages: Any, *, expected: int) -> None:
        if self._appender is None:
            self._refused = CannotAppend()
            raise self._refused
        # Encoded now, so that what cannot be appended is the handler's own error.
        self._kept.append(self._appender.prepared(stream, several(messages), expected=expected, wake=True))

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

    async def send(self, connection: Connection) -> None:
        """Appends all of it."""
        if self._appender is None:
            return
        for prepared in self._kept:
            await self._appender.send(executor_of(connection), prepared)


class ExactlyOnce:
    """Runs messages of a lane in one transaction: all in one call, or a savepoint around each."""

    def __init__(
        self,
        calls: Calls,
        database: Database,
        progress: Progress,
        rows: Rows,
        appender: Appender | None,
        clock: Clock,
        journal: Journal,
        *,
        batch: int | None,
        isolation: str,
        timeout: float,
        lease: float,
        stall_after: int,
        on_park: str,
        committed: Callable[[Sequence[AnyDelivery], float], None],
    ) -> None:
        self._calls = calls
        self._database = database
        self._progress = progress
        self._rows = rows
        self._appender = appender
        self._clock = clock
        self._journal = journal
        self._batch = batch is not None
        self._grouping = Grouping(batch or MESSAGES)
        self._setbacks = Setbacks(random.random)
        self._bound = ISOLATION.get(isolation, b"") + _bound(timeout, lease)
        self._has_old_snapshot = isolation in ISOLATION
        """Whether an exchange in its transactions may not see what has happened since they began."""
        self._call_seconds = timeout + database.statement_seconds
        """How long a call and the statements around it may take: after its time-out the server may not answer."""
        self._stall_after = stall_after
        self._on_park = on_park
        self._committed = committed

    async def run(self, owned: Owned, deliveries: Sequence[AnyDelivery], slot: Slot) -> Failures:
        """Calls the handlers and commits what succeeded; what failed is left to the caller, with its errors.

        Raises `Again` where nothing was committed, `Stale` or `Unavailable` where the lane is lost.
        """
        try:
            failures = await self._run(owned, list(deliveries), slot)
        except Refused as refused:
            owned.lane.abandon()
            if len(deliveries) == 1 or (self._batch and isinstance(refused.error, TransactionEnded)):
                return dict.fromkeys(deliveries, refused.error)
            return await self._one_by_one(owned, deliveries, slot)
        except Again as again:
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

    async def _lost_race(self, again: Again, delivery: AnyDelivery) -> Failures:
        """Run a message again after a pause, or put it off, and it is no attempt; after minutes of that it is."""
        position = delivery.message.position
        pause = self._setbacks.lost_race(position, time.monotonic())
        if pause is None:
            text = "position %d lost races for more than %g s, and each is a failed attempt now: %s"
            self._journal.warning(text, position, UNCOUNTED_SECONDS, again, position=position)
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
            self._journal.warning(text, position, MAX_LOST_CONNECTIONS, ended, position=position)
            return ended.failures
        await asyncio.sleep(pause)
        raise ended

    @property
    def together(self) -> int:
        """How many messages a transaction takes, at most."""
        return self._grouping.size

    async def _one_by_one(self, owned: Owned, deliveries: Sequence[AnyDelivery], slot: Slot) -> Failures:
        failures: Failures = {}
        for number, delivery in enumerate(deliveries, start=1):
            failures |= await self.run(owned, [delivery], slot)
            if isinstance(failures.get(delivery), SystemExit):
                owned.lane.give_back(deliveries[number:])
                break
        return failures

    async def _run(self, owned: Owned, deliveries: list[AnyDelivery], slot: Slot) -> Failures:
        begun = time.monotonic()
        async with self._database.connection() as connection:
            with Deadline(connection, self._database.statement_seconds) as deadline:
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
        owned: Owned,
        deliveries: list[AnyDelivery],
        slot: Slot,
        connection: Connection,
        deadline: Deadline,
    ) -> tuple[list[AnyDelivery], Failures, Exchange[Message[Any]] | None, Exchanged | None]:
        """Handle messages in one transaction with their progress; return what was done and what failed."""
        done: list[AnyDelivery] = []
        failures: Failures = {}
        exchange: Exchange[Message[Any]] | None = None
        exchanged: Exchanged | None = None
        transaction: str | None = None
        async with _transaction(connection):
            appends = Appends(self._appender)
            if self._batch:
                transaction = await self._begin_together(connection)
                deadline.within(self._call_seconds)
                done, failures = await self._handle_together(connection, appends, deliveries, slot)
                deadline.within(self._database.statement_seconds)
                if failures and not owned.lost:
                    await _undo(connection, UNDO_ALL, failures)
                    raise psycopg.Rollback
            else:
                done, failures = await self._handle(owned, connection, deadline, appends, deliveries, slot)
            deadline.within(self._database.statement_seconds)
            await appends.send(connection)
            if owned.lost:
                raise Stale("the lane was lost while its messages were handled")
            exchange = owned.lane.exchange(self._clock.now(), commits=done)
            exchanged = await self._exchange(owned, exchange, connection)
            if transaction and exchanged is not None and exchanged.transaction != transaction:
                # It began another one, so that the connection looked as it should.
                raise TransactionEnded
        return done, failures, exchange, exchanged

    async def _begin_together(self, connection: Connection) -> str:
        """The name of the transaction."""
        cursor = await connection.execute(self._bound + TOGETHER, prepare=False)
        while cursor.nextset():
            pass
        [name] = await cursor.fetchone() or [""]
        return str(name)

    async def _handle_together(
        self, connection: Connection, appends: Appends, deliveries: list[AnyDelivery], slot: Slot
    ) -> tuple[list[AnyDelivery], Failures]:
        """One call for all. It needs no savepoint: what it wrote is all that there is to undo."""
        try:
            await self._call(deliveries, slot, Transaction(connection, appends))
            appends.check()
            await _check_open(connection)
        except NOBODYS:
            raise
        except BaseException as error:
            if race := lost_race_in(error):
                raise race from None
            return [], _blamed(deliveries, error)
        return deliveries, {}

    async def _call(self, deliveries: list[AnyDelivery], slot: Slot, transaction: Transaction) -> None:
        """Call the handler, once for all of them."""
        try:
            if self._batch:
                await self._calls.several(deliveries, slot, transaction)
            else:
                await self._calls.one(deliveries[0], slot, transaction)
        finally:
            transaction.end()

    async def _handle(
        self,
        owned: Owned,
        connection: Connection,
        deadline: Deadline,
        appends: Appends,
        deliveries: list[AnyDelivery],
        slot: Slot,
    ) -> tuple[list[AnyDelivery], Failures]:
        """A call for each, between savepoints."""
        done: list[AnyDelivery] = []
        failures: Failures = {}
        begun = time.monotonic()
        await _send(connection, self._bound + FIRST)
        for number, delivery in enumerate(deliveries, start=1):
            kept = len(appends)
            deadline.within(self._call_seconds)
            try:
                await self._call([delivery], slot, Transaction(connection, appends))
                deadline.within(self._database.statement_seconds)
                appends.check()
                # It fails if the handler hid an error that ended the transaction.
                await _send(connection, LAST if number == len(deliveries) else NEXT)
            except NOBODYS:
                raise
            except BaseException as error:
                if race := lost_race_in(error):
                    raise race from None
                deadline.within(self._database.statement_seconds)
                blamed = _blamed([delivery], error)
                await self._undo(connection, blamed, done)
                appends.cut(kept)
                failures |= blamed
            else:
                done.append(delivery)
            # What is done is committed, and the rest runs in the next transaction, or elsewhere.
            ends_program = any(isinstance(error, SystemExit) for error in failures.values())
            if ends_program or owned.closing or (len(appends) and time.monotonic() - begun > SECONDS):
                break
        return done, failures

    async def _undo(self, connection: Connection, blamed: Failures, done: list[AnyDelivery]) -> None:
        """Back to the savepoint, which goes with the transaction that it is in."""
        try:
            await _undo(connection, UNDO, blamed)
        except NO_SAVEPOINT as error:
            if done:
                [delivery] = blamed
                before = [each.message.position for each in done]
                self._journal.ended_transaction(delivery.message, delivery.attempt, before)
            raise TransactionEnded from error

    async def _exchange(
        self, owned: Owned, exchange: Exchange[Message[Any]] | None, connection: Connection
    ) -> Exchanged | None:
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


def lost_race_in(error: BaseException | None) -> Exception | None:
    """Return what says that the transaction lost a race, if that is the cause of what a handler raised instead."""
    while error is not None:
        if isinstance(error, AGAIN):
            return error
        if isinstance(error, BaseExceptionGroup):
            return next(filter(None, map(lost_race_in, error.exceptions)), None)
        error = error.__cause__
    return None


def _blamed(part: Sequence[AnyDelivery], error: BaseException) -> Failures:
    """Which messages of a call that was rolled back have failed; the others run again."""
    if isinstance(error, Failed):
        errors = error.errors
        named = {each: errors[at] for each in part if (at := each.message.position) in errors}
    else:
        named = {each: error for each in part if is_unreadable(error, each.message)}
    return named or dict.fromkeys(part, error)


async def _check_open(connection: Connection) -> None:
    """Raises what is wrong if the handler hid an error that ended the transaction, or ended it itself."""
    match connection.info.transaction_status:
        case TransactionStatus.INTRANS:
            return
        case TransactionStatus.IDLE:
            raise TransactionEnded
        case _:
            await _send(connection, b"select")


def _bound(timeout: float, lease: float) -> bytes:
    """Lets the server end the transaction of a process that stands still, with the locks of what it wrote.

    Not before a call has had its time, which it may spend without a statement. And before the time of the same
    call is up in a process that takes over, two thirds of a lease later at the earliest: that one waits for these
    locks, and must not fail for it.
    """
    return BOUND % min(round(1000 * (timeout + lease / 3)), LONGEST)


async def _undo(connection: Connection, command: bytes, failures: Failures) -> None:
    """Takes back what calls wrote that failed. Their connection may have ended, which shows here at the latest."""
    try:
        await _send(connection, command)
    except psycopg.Error as error:
        if connection.closed:
            raise ConnectionEnded(failures) from error
        raise


async def _send(connection: Connection, commands: bytes) -> None:
    # Several commands at once cannot be prepared.
    await connection.execute(commands, prepare=False)


@asynccontextmanager
async def _transaction(connection: Connection) -> AsyncIterator[None]:
    """A transaction. What rolls it back for certain becomes `Again` or `Refused`; after anything else the outcome
    is unknown."""
    try:
        with driver():
            try:
                async with connection.transaction():
                    yield
            except AGAIN as error:
                raise Again(error) from error
    except (Unavailable, Again):
        raise
    except (MilepostError, psycopg.DatabaseError) as error:
        raise Refused(error) from error
