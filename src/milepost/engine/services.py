"""Who keeps progress and leases: what a `Milepost` was given, made ready."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

from milepost.engine.cursors import Cursors
from milepost.engine.kept import Kept
from milepost.errors import MilepostError, NoDatabase, SchemaMismatch
from milepost.log import schema
from milepost.log.database import Database
from milepost.log.log import Log
from milepost.log.schema import Migrate
from milepost.log.statements import Statements
from milepost.log.wakeups import ACT, ASK, Wakeups
from milepost.progress.following import DistantProgress, Following
from milepost.progress.leases import PostgresLeases
from milepost.progress.memory_leases import MemoryLeases
from milepost.progress.postgresql import PostgresProgress
from milepost.progress.protocol import Home, Leases, Progress


@dataclass(frozen=True, kw_only=True)
class Services:
    """Progress and leases, open."""

    kept: Kept
    progress: Progress
    leases: Leases
    home: Home
    """Where leases are that are kept in PostgreSQL: where progress is, and else with the log."""
    following: Following | None
    """What progress remembers of the log; None: Milepost cannot tell."""
    wakeups: Wakeups
    """Tells when a person has done something to a subscription."""
    database: Database | None
    """Where the transactions of handlers are; None: nowhere."""
    own: tuple[Database, ...] = ()
    """What was opened for this."""

    @cached_property
    def cursors(self) -> Cursors:
        """Writes the cursors of all subscriptions."""
        return Cursors(self.progress)

    async def close(self) -> None:
        """Ends all connections but the log's."""
        for database in self.own:
            await database.close()

    def answers_within(self, lease: float) -> None:
        """Ends statements on the path of messages before a lease does."""
        for database in (self.database, *self.own):
            if database is not None:
                database.answers_within(lease)

    async def begin(self) -> None:
        """A program begins to work: the log has to be the one that progress follows."""
        await self.progress.open()
        if self.following is not None:
            await self.following.begin()

    async def cover(self, position: int, log_life: UUID | None) -> None:
        """Makes sure that progress which is kept elsewhere remembers the log up to where it is about to go."""
        if self.following is not None and self.kept is Kept.IN_ANOTHER_DATABASE:
            await self.following.cover(position, log_life=log_life)

    @asynccontextmanager
    async def told(self, acted: Callable[[], None], asked: Callable[[], None]) -> AsyncIterator[None]:
        """Within this block these are called whenever a person has done something to a subscription, or asks what
        workers do."""
        with self.wakeups.on(ACT, acted), self.wakeups.on(ASK, asked):
            if self.kept is not Kept.IN_ANOTHER_DATABASE:
                # The log's own listen while it is followed.
                yield
                return
            self.wakeups.start()
            try:
                yield
            finally:
                await self.wakeups.stop()

    @asynccontextmanager
    async def back(self, event: asyncio.Event) -> AsyncIterator[None]:
        """Within this block the event is set whenever progress can be reached again."""
        if self.database is None:
            yield
            return
        with self.database.outage.waking(event):
            yield

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run for as long as a program works."""
        if self.following is None or self.kept is Kept.WITH_THE_LOG:
            return []
        return [self.following.watch()]

    @property
    def transactions(self) -> Database:
        """Where the transactions of handlers are."""
        if self.database is None:
            raise MilepostError(f"progress is kept {self.kept.value}: there is no transaction that it could share")
        return self.database


def with_log(log: Log, url: str, leases: Leases | None) -> Services:
    """Progress is in the database of the log."""
    name = log.statements.schema
    return Services(
        kept=Kept.WITH_THE_LOG,
        progress=PostgresProgress(log.database, name),
        leases=leases or PostgresLeases(),
        home=Home(url, name),
        following=Following(log.database, name, log),
        wakeups=log.wakeups,
        database=log.database,
    )


def outside(log: Log, url: str, progress: Progress, leases: Leases | None) -> Services:
    """Progress is kept by an object of the program's own."""
    return Services(
        kept=Kept.OUTSIDE,
        progress=progress,
        # Subscriptions have the numbers that this object gave them: rows in PostgreSQL may say others by the same.
        leases=leases or MemoryLeases(),
        home=Home(url, log.statements.schema),
        following=None,
        wakeups=log.wakeups,
        database=None,
    )


async def in_another_database(
    log: Log, url: str, leases: Leases | None, *, migrate: Migrate, pool_size: int
) -> Services:
    """Progress is in a second database; its schema is brought up to date, and the log has to be the right one."""
    name = log.statements.schema
    try:
        database = Database(url, pool_size=pool_size)
    except NoDatabase as error:
        raise NoDatabase(f"progress: {error}") from None
    # Of its own: it is asked for while all others may be in transactions of handlers.
    remembered = Database(url, pool_size=1)
    following = Following(remembered, name, log)
    services = Services(
        kept=Kept.IN_ANOTHER_DATABASE,
        progress=DistantProgress(database, name, following),
        leases=leases or PostgresLeases(),
        home=Home(url, name),
        following=following,
        wakeups=Wakeups(database, Statements(name)),
        database=database,
        own=(database, remembered),
    )
    try:
        for each in services.own:
            await each.open()
        await _prepare(database, name, migrate)
        if migrate != "off":
            await following.check()
    except BaseException:
        await services.close()
        raise
    return services


async def _prepare(database: Database, name: str, migrate: Migrate) -> None:
    async with database.connection() as connection:
        try:
            await schema.prepare(connection, name, migrate)
        except SchemaMismatch as error:
            raise SchemaMismatch(f"the database of progress: {error}, with its --url") from error
