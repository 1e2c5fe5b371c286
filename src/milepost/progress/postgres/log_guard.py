"""Which log the progress in a database follows, whether that log is still what it was, and the way back to what
survived."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, NoReturn
from uuid import UUID

from milepost.dispatch import Exchange, ExchangeWrite
from milepost.errors import LogMismatch, Unavailable
from milepost.log.postgres.log import PostgresLog
from milepost.postgres.connections import Executor
from milepost.postgres.pool import Database
from milepost.postgres.statements import Statements
from milepost.progress.postgres.progress import PostgresProgress
from milepost.progress.protocol import (
    AnotherLife,
    ExchangeResult,
    LaneGrant,
    StaleLane,
    SubscriptionDefinition,
    SubscriptionRecord,
    WorkerLease,
)

LOG_CHECK_PAUSE_SECONDS = 1.0
"""Seconds until the log is looked at again while it is not available."""


@dataclass(frozen=True)
class RememberedLog:
    """What is remembered of a log."""

    log: UUID
    horizon: int
    position: int | None
    """Of the newest message up to the horizon."""
    id: UUID | None
    time: datetime | None
    life: UUID | None
    """Of the server that keeps progress, when this was read there."""


def remembered_messages(followed: Sequence[RememberedLog]) -> dict[str, Any]:
    """Return the messages that are remembered, as the log is asked about them."""
    known = [each for each in followed if each.position is not None]
    return {
        "positions": [each.position for each in known],
        "ids": [each.id for each in known],
        "times": [each.time for each in known],
    }


class LogGuard:
    """What progress in a database remembers of the log that it follows.

    A log that was restored from an older backup, or lost its newest messages in a failover, draws their positions
    again: cursors beyond them would pass the new messages over. Progress in the log's own database goes back
    together with the log. Elsewhere it remembers how far the log had come and its newest message, and no cursor is
    written beyond that: if the message is another one now, or the log is not as far, the log went back.
    """

    def __init__(self, database: Database, schema: str, log: PostgresLog) -> None:
        self._database = database
        self._statements = Statements(schema, "milepost.progress.postgres")
        self._log = log
        self._identity: UUID | None = None
        """Which log it is."""
        self._known: RememberedLog | None = None
        self._life: UUID | None = None
        """Of the log's server, when the log was looked at last."""
        self._has_begun = False
        self._lock = asyncio.Lock()

    async def begin(self) -> None:
        """Remembers the log if none is remembered yet; raises `LogMismatch` if it is not this one."""
        self._identity = await self._log.identity()
        await self._database.execute(self._statements.get("follow"), {"log": self._identity})
        self._has_begun = True
        await self.check()

    async def check(self) -> None:
        """Raises `LogMismatch` unless the log is what is remembered, as far as anything is."""
        life = self._log.horizon.life
        self._identity = await self._log.identity()
        followed = await self._followed()
        if self._has_begun and not followed:
            # A crash took back what was remembered first.
            await self._database.execute(self._statements.get("follow"), {"log": self._identity})
            followed = await self._followed()
        if followed:
            self._known = followed[0]
            if self._known.log != self._identity:
                raise LogMismatch(
                    f"schema {self._statements.schema!r} keeps the progress of another log than this one: give "
                    "the url of that log, or another database or schema for progress"
                )
            await self._check_history(followed)
        self._life = life

    async def _followed(self) -> list[RememberedLog]:
        rows = await self._database.execute(self._statements.get("followed"), {})
        return [RememberedLog(*row) for row in rows]

    async def refuse_another_log(self, executor: Executor) -> None:
        """Raises `LogMismatch` if a connection leads to another log than this one, as one to progress does.

        The schema of progress has the tables of a log too: what is appended there nobody would read.
        """
        rows = await executor.execute(self._log.statements.get("identity"), {})
        if self._identity is not None and UUID(str(rows[0][0])) != self._identity:
            raise LogMismatch(
                "connection: it is one to another database than the log's, and nobody would read what is appended "
                "there: append without it, after your transaction has committed"
            )

    async def _check_history(self, followed: Sequence[RememberedLog]) -> None:
        statement = self._log.statements.get("replaced")
        [[drawn, replaced]] = await self._log.database.execute(statement, remembered_messages(followed))
        if drawn < followed[0].horizon:
            raise self._went_back(f"it had come to position {followed[0].horizon:,} and is at {drawn:,}")
        # A message that is no longer there may have been removed for its age.
        if replaced is not None:
            raise self._went_back(f"the message at position {replaced:,} is another one now")

    def _went_back(self, evidence: str) -> LogMismatch:
        return LogMismatch(
            f"the log went back: {evidence}. Progress is ahead of it and would pass new messages over: restore a "
            "newer log, or the database of progress as it was at the time of this one, or take progress back to "
            "what survived: milepost subscriptions rewind"
        )

    async def cover(self, position: int, *, log_life: UUID | None, life: UUID | None = None) -> None:
        """Makes sure that what is remembered is not behind a position that is about to be written as passed.

        `log_life` and `life` are those of the log's server and of progress's own in which the position was
        reckoned; None: in any. Raises `AnotherLife` if another one has begun.
        """
        async with self._lock:
            if self._log.horizon.life is None:
                await self._log.horizon.sample()
            known = self._known
            # A crash of its own server takes back what is remembered, too.
            if self._log.horizon.life != self._life or (known and life and known.life != life):
                await self.check()
                known = self._known
            if log_life not in (None, self._life) or (known and life and known.life != life):
                raise AnotherLife("PostgreSQL restarted while progress was being written")
            if known is not None and position > known.horizon:
                await self._remember(known)

    async def _remember(self, known: RememberedLog) -> None:
        horizon, life = self._log.horizon.position, self._log.horizon.life
        if horizon <= known.horizon:
            return
        rows = await self._log.database.execute(self._log.statements.get("newest_up_to"), {"horizon": horizon})
        if not rows or rows[0][0] != life or life != self._life:
            raise AnotherLife("PostgreSQL restarted while progress was being written")
        newest = replace(known, horizon=horizon, position=rows[0][1], id=rows[0][2], time=rows[0][3])
        await self._database.execute(self._statements.get("follow_on"), vars(newest))
        self._known = newest

    async def watch(self) -> NoReturn:
        """Looks again whenever the log's server has another life; raises `LogMismatch`."""
        while True:
            news = self._log.feed.news
            if self._log.horizon.life != self._life:
                try:
                    await self.check()
                except Unavailable:
                    await asyncio.sleep(LOG_CHECK_PAUSE_SECONDS)
                    continue
            await news.wait()


class GuardedProgress(PostgresProgress):
    """Progress in another database than the log's."""

    def __init__(self, database: Database, schema: str, following: LogGuard) -> None:
        super().__init__(database, schema)
        self._following = following

    async def declare(
        self, definitions: Sequence[SubscriptionDefinition], sign: WorkerLease | None = None
    ) -> list[SubscriptionRecord]:
        """Creates what is new, and tells what is there."""
        for definition in definitions:
            await self._following.cover(definition.start.end, log_life=definition.log_life)
        return await super().declare(definitions, sign)

    async def take(
        self,
        subscription: int,
        lanes: Collection[int],
        number: int | None = None,
        acted: int | None = None,
        *,
        worker: str | None = None,
        log_life: UUID | None = None,
    ) -> list[LaneGrant]:
        """Fences whoever had these lanes. In which life the log is this server cannot tell: each write asks."""
        return await super().take(subscription, lanes, number, acted, worker=worker)

    async def exchange(
        self, held: LaneGrant, exchange: Exchange[Any], *, stall_after: int, on_park: str, connection: Any = None
    ) -> ExchangeResult:
        """One transaction: what is to be written, then what is asked."""
        await self._cover(held, exchange.write)
        return await super().exchange(
            held, exchange, stall_after=stall_after, on_park=on_park, connection=connection
        )

    async def write(self, cursors: Sequence[tuple[LaneGrant, ExchangeWrite]]) -> list[ExchangeResult | None]:
        """Cursors and nothing else; None stands for a lane that has another owner."""
        covered = [await self._is_covered(held, write) for held, write in cursors]
        written = iter(await super().write([each for each, is_ in zip(cursors, covered, strict=True) if is_]))
        return [next(written) if is_ else None for is_ in covered]

    async def _is_covered(self, held: LaneGrant, write: ExchangeWrite) -> bool:
        try:
            await self._cover(held, write)
        except StaleLane:
            return False
        return True

    async def release(self, held: LaneGrant, exchange: Exchange[Any] | None) -> None:
        """The last write of an owner."""
        await self._cover(held, exchange.write if exchange is not None else None)
        await super().release(held, exchange)

    async def _cover(self, held: LaneGrant, write: ExchangeWrite | None) -> None:
        if write is None:
            return
        last = max([write.cursor.end, *(move.position for move in write.moves)])
        try:
            await self._following.cover(last, log_life=held.log_life, life=held.life)
        except (LogMismatch, AnotherLife) as error:
            # Of a log that is another the watch says so too, and ends the program.
            raise StaleLane(str(error)) from error


class SubscriptionBeyondLog(NamedTuple):
    """A subscription whose progress knows more of the log than there is."""

    id: int
    group: str
    name: str
    positions: int
    """How many positions it goes back, at most."""
    deliveries: int
    """How many of its deliveries are forgotten."""


@dataclass(frozen=True)
class RewindPlan:
    """What is to be done."""

    survived: int
    """The log is what progress knows of it up to this position, for certain."""
    log: UUID
    last: RememberedLog | None
    """The message at that position; None: nothing survived that is known."""
    subscriptions: Sequence[SubscriptionBeyondLog]


class ProgressRewinder:
    """Compares the log with what progress remembers of it."""

    def __init__(self, log: Executor, progress: Executor, schema: str) -> None:
        self._log = log
        self._progress = progress
        self._log_statements = Statements(schema, "milepost.log.postgres")
        self._statements = Statements(schema, "milepost.progress.postgres")

    async def plan(self) -> RewindPlan | None:
        """Return what is to be done; None if the log is as it was. Raises `LogMismatch` for another log."""
        identity = (await self._log.execute(self._log_statements.get("identity"), {}))[0][0]
        rows = await self._progress.execute(self._statements.get("followed"), {})
        followed = [RememberedLog(*row) for row in rows]
        if any(each.log != identity for each in followed):
            raise LogMismatch("progress is that of another log: give the --url of that one")
        if not followed or await self._is_intact(followed):
            return None
        survived = await self._survived(followed)
        last = next((each for each in followed if each.position == survived), None)
        found = await self._progress.execute(self._statements.get("beyond"), {"survived": survived})
        return RewindPlan(survived, identity, last, [SubscriptionBeyondLog(*row) for row in found])

    async def _is_intact(self, followed: Sequence[RememberedLog]) -> bool:
        [[drawn, replaced]] = await self._log.execute(
            self._log_statements.get("replaced"), remembered_messages(followed)
        )
        return bool(drawn >= followed[0].horizon and replaced is None)

    async def _survived(self, followed: Sequence[RememberedLog]) -> int:
        """Return the position of the newest message that is remembered and there, before any that was replaced."""
        [[_, replaced]] = await self._log.execute(
            self._log_statements.get("replaced"), remembered_messages(followed)
        )
        below = [each for each in followed if replaced is None or (each.position or 0) < replaced]
        [[survived]] = await self._log.execute(
            self._log_statements.get("newest_survivor"), remembered_messages(below)
        )
        return int(survived or 0)

    async def run(self, rewind: RewindPlan) -> None:
        """Take everything back, in one transaction."""
        last = rewind.last
        parameters = {
            "survived": rewind.survived,
            "log": rewind.log,
            "id": None if last is None else last.id,
            "time": None if last is None else last.time,
        }
        await self._progress.execute(self._statements.get("rewind"), parameters)


@asynccontextmanager
async def open_rewinder(log_url: str, progress_url: str, schema: str) -> AsyncIterator[ProgressRewinder]:
    """Compare a log with the progress in another database, on connections that are closed after the block."""
    log, progress = Database(log_url, pool_size=1), Database(progress_url, pool_size=1)
    await log.open()
    try:
        await progress.open()
        try:
            yield ProgressRewinder(log.within(None), progress.within(None), schema)
        finally:
            await progress.close()
    finally:
        await log.close()
