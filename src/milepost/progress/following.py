"""Which log the progress in a database follows, and whether that log is still what it was."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NoReturn
from uuid import UUID

from milepost.dispatch import Exchange, Write
from milepost.errors import LogMismatch, Unavailable
from milepost.log.connections import Executor
from milepost.log.database import Database
from milepost.log.log import Log
from milepost.log.statements import Statements
from milepost.progress.postgresql import PostgresProgress
from milepost.progress.protocol import Definition, Exchanged, Held, Opened, Sign, Stale
from milepost.progress.refusals import AnotherLife

PAUSE = 1.0
"""Seconds until the log is looked at again while it is not available."""


@dataclass(frozen=True)
class Followed:
    """What is remembered of a log."""

    log: UUID
    horizon: int
    position: int | None
    """Of the newest message up to the horizon."""
    id: UUID | None
    time: datetime | None
    life: UUID | None
    """Of the server that keeps progress, when this was read there."""


def messages_of(followed: Sequence[Followed]) -> dict[str, Any]:
    """Return the messages that are remembered, as the log is asked about them."""
    known = [each for each in followed if each.position is not None]
    return {
        "positions": [each.position for each in known],
        "ids": [each.id for each in known],
        "times": [each.time for each in known],
    }


class Following:
    """What progress in a database remembers of the log that it follows.

    A log that was restored from an older backup, or lost its newest messages in a failover, draws their positions
    again: cursors beyond them would pass the new messages over. Progress in the log's own database goes back
    together with the log. Elsewhere it remembers how far the log had come and its newest message, and no cursor is
    written beyond that: if the message is another one now, or the log is not as far, the log went back.
    """

    def __init__(self, database: Database, schema: str, log: Log) -> None:
        self._database = database
        self._statements = Statements(schema, "milepost.progress")
        self._log = log
        self._identity: UUID | None = None
        """Which log it is."""
        self._known: Followed | None = None
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

    async def _followed(self) -> list[Followed]:
        rows = await self._database.execute(self._statements.get("followed"), {})
        return [Followed(*row) for row in rows]

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

    async def _check_history(self, followed: Sequence[Followed]) -> None:
        statement = self._log.statements.get("replaced")
        [[drawn, replaced]] = await self._log.database.execute(statement, messages_of(followed))
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

    async def _remember(self, known: Followed) -> None:
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
                    await asyncio.sleep(PAUSE)
                    continue
            await news.wait()


class DistantProgress(PostgresProgress):
    """Progress in another database than the log's."""

    def __init__(self, database: Database, schema: str, following: Following) -> None:
        super().__init__(database, schema)
        self._following = following

    async def declare(self, definitions: Sequence[Definition], sign: Sign | None = None) -> list[Opened]:
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
    ) -> list[Held]:
        """Fences whoever had these lanes. In which life the log is this server cannot tell: each write asks."""
        return await super().take(subscription, lanes, number, acted, worker=worker)

    async def exchange(
        self, held: Held, exchange: Exchange[Any], *, stall_after: int, on_park: str, connection: Any = None
    ) -> Exchanged:
        """One transaction: what is to be written, then what is asked."""
        await self._cover(held, exchange.write)
        return await super().exchange(
            held, exchange, stall_after=stall_after, on_park=on_park, connection=connection
        )

    async def write(self, cursors: Sequence[tuple[Held, Write]]) -> list[Exchanged | None]:
        """Cursors and nothing else; None stands for a lane that has another owner."""
        covered = [await self._is_covered(held, write) for held, write in cursors]
        written = iter(await super().write([each for each, is_ in zip(cursors, covered, strict=True) if is_]))
        return [next(written) if is_ else None for is_ in covered]

    async def _is_covered(self, held: Held, write: Write) -> bool:
        try:
            await self._cover(held, write)
        except Stale:
            return False
        return True

    async def release(self, held: Held, exchange: Exchange[Any] | None) -> None:
        """The last write of an owner."""
        await self._cover(held, exchange.write if exchange is not None else None)
        await super().release(held, exchange)

    async def _cover(self, held: Held, write: Write | None) -> None:
        if write is None:
            return
        last = max([write.cursor.end, *(move.position for move in write.moves)])
        try:
            await self._following.cover(last, log_life=held.log_life, life=held.life)
        except (LogMismatch, AnotherLife) as error:
            # Of a log that is another the watch says so too, and ends the program.
            raise Stale(str(error)) from error
