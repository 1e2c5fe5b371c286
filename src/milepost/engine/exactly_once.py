"""Handlers that write in the transaction of their progress: what they wrote and that they did commits together."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from milepost.dispatch import Exchange
from milepost.engine.calls import AnyDelivery, Calls
from milepost.engine.clock import Clock
from milepost.engine.owned import Owned
from milepost.engine.rows import Rows
from milepost.engine.slots import Slot
from milepost.engine.transaction import Transaction
from milepost.errors import WrongVersion
from milepost.log.appender import Appender
from milepost.log.connections import executor_of
from milepost.log.database import Connection, Database, driver
from milepost.log.message import Message
from milepost.progress.protocol import Exchanged, Progress

MESSAGES = 64
"""The most messages of a transaction."""
SECONDS = 0.05
"""How long one goes on that appends: until it ends, nobody sees what others appended after it."""

AGAIN = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
"""What says that a transaction lost a race."""

Failures = dict[AnyDelivery, Exception]


class Again(Exception):
    """The transaction was rolled back for certain, and no message is to blame: its messages run again."""


class Appends:
    """Messages that a transaction appends at its end, since an open append holds back all readers."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self._kept: list[tuple[str, Sequence[Any], int]] = []

    async def __call__(self, stream: str, messages: Any, *, expected: int) -> None:
        several = messages if isinstance(messages, list | tuple) else [messages]
        self._kept.append((stream, several, expected))

    def __len__(self) -> int:
        return len(self._kept)

    def cut(self, length: int) -> None:
        """Forgets what a message asked for that failed."""
        del self._kept[length:]

    async def send(self, connection: Connection) -> None:
        """Appends all of it."""
        for stream, messages, expected in self._kept:
            await self._appender.append(executor_of(connection), stream, messages, expected=expected, wake=True)


class ExactlyOnce:
    """Runs messages of a lane in one transaction, a savepoint around each."""

    def __init__(
        self,
        calls: Calls,
        database: Database,
        progress: Progress,
        rows: Rows,
        appender: Appender,
        clock: Clock,
        *,
        batch: bool,
        stall_after: int,
        on_park: str,
    ) -> None:
        self._calls = calls
        self._database = database
        self._progress = progress
        self._rows = rows
        self._appender = appender
        self._clock = clock
        self._batch = batch
        self._stall_after = stall_after
        self._on_park = on_park

    async def run(self, owned: Owned, deliveries: Sequence[AnyDelivery], slot: Slot) -> Failures:
        """Calls the handlers and commits what succeeded; what failed is left to the caller, with its errors.

        Raises `Again` where nothing was committed, `Stale` or `Unavailable` where the lane is lost.
        """
        try:
            return await self._run(owned, list(deliveries), slot)
        except WrongVersion as error:
            owned.lane.abandon()
            if len(deliveries) == 1:
                return {deliveries[0]: error}
            return await self._one_by_one(owned, deliveries, slot)
        except Again:
            owned.lane.abandon()
            raise

    async def _one_by_one(self, owned: Owned, deliveries: Sequence[AnyDelivery], slot: Slot) -> Failures:
        failures: Failures = {}
        for delivery in deliveries:
            failures |= await self.run(owned, [delivery], slot)
        return failures

    async def _run(self, owned: Owned, deliveries: list[AnyDelivery], slot: Slot) -> Failures:
        async with self._database.connection() as connection, _transaction(connection):
            await connection.execute("set constraints all immediate")
            appends = Appends(self._appender)
            done, failures = await self._handle(connection, appends, deliveries, slot)
            await appends.send(connection)
            exchange = owned.lane.exchange(self._clock.now(), commits=done)
            exchanged = await self._exchange(owned, exchange, connection)
        if exchanged is not None:
            owned.held = exchanged.held
            self._clock.set(exchanged.now)
            owned.lane.exchanged(await self._rows.answer(exchanged.answer))
        rest = [delivery for delivery in deliveries if delivery not in failures and delivery not in done]
        owned.lane.give_back(rest)
        return failures

    async def _handle(
        self, connection: Connection, appends: Appends, deliveries: list[AnyDelivery], slot: Slot
    ) -> tuple[list[AnyDelivery], Failures]:
        parts = [deliveries] if self._batch else [[delivery] for delivery in deliveries]
        done: list[AnyDelivery] = []
        failures: Failures = {}
        begun = time.monotonic()
        for part in parts:
            kept = len(appends)
            try:
                async with connection.transaction():
                    await self._call(part, slot, Transaction(connection, appends))
            except AGAIN:
                raise
            except Exception as error:
                if connection.broken:
                    raise
                appends.cut(kept)
                failures |= dict.fromkeys(part, error)
            else:
                done += part
            if len(appends) and time.monotonic() - begun > SECONDS:
                break
        return done, failures

    async def _call(self, part: list[AnyDelivery], slot: Slot, transaction: Transaction) -> None:
        if self._batch:
            await self._calls.several(part, slot, transaction)
        else:
            await self._calls.one(part[0], slot, transaction)

    async def _exchange(
        self, owned: Owned, exchange: Exchange[Message[Any]] | None, connection: Connection
    ) -> Exchanged | None:
        if exchange is None:
            return None
        return await self._progress.exchange(
            owned.held,
            exchange,
            stall_after=self._stall_after,
            on_park=self._on_park,
            connection=connection,
        )


@asynccontextmanager
async def _transaction(connection: Connection) -> AsyncIterator[None]:
    """A transaction; who loses a race with another one is told so."""
    with driver():
        try:
            async with connection.transaction():
                yield
        except AGAIN as error:
            raise Again(str(error)) from error
