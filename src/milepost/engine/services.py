"""Open the log, progress and leases of a Milepost: the one place where their implementations are chosen."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

from milepost.engine.cursor_batcher import CursorBatcher
from milepost.engine.declare.context import ProgressLocation
from milepost.errors import MilepostError, NoDatabase, SchemaMismatch
from milepost.log.codec import Codec
from milepost.log.postgres.log import PostgresLog, PostgresTransactionLog, log_statements
from milepost.log.postgres.reader import Reader
from milepost.log.postgres.wakeups import NOTIFY_ACTION, NOTIFY_REPORT_WANTED, Wakeups
from milepost.names import MigrateMode
from milepost.postgres import schema
from milepost.postgres.connections import executor_in_loop
from milepost.postgres.pool import Database
from milepost.progress.leases import MemoryLeases
from milepost.progress.postgres.deliveries import PostgresDeliveries
from milepost.progress.postgres.leases import PostgresLeases, PostgresNodes
from milepost.progress.postgres.log_guard import GuardedProgress, LogGuard
from milepost.progress.postgres.operate import PostgresConsumerSubscriptions, PostgresControl
from milepost.progress.postgres.overview import PostgresOverview
from milepost.progress.postgres.progress import PostgresProgress
from milepost.progress.postgres.trace import PostgresTrace
from milepost.progress.protocol import LeaseHome, Leases, Progress


@dataclass(frozen=True, kw_only=True)
class Services:
    """Progress and leases, open."""

    progress_location: ProgressLocation
    progress: Progress
    leases: Leases
    home: LeaseHome
    """Where leases are that are kept in PostgreSQL: where progress is, and else with the log."""
    following: LogGuard | None
    """What progress remembers of the log; None: Milepost cannot tell."""
    wakeups: Wakeups
    """Tells when a person has done something to a subscription."""
    nodes: PostgresNodes
    """The servers: told and found where progress is, or with the log if that is outside of PostgreSQL."""
    database: Database | None
    """Where the transactions of handlers are; None: nowhere."""
    own: tuple[Database, ...] = ()
    """What was opened for this."""

    @cached_property
    def cursors(self) -> CursorBatcher:
        """Writes the cursors of all subscriptions."""
        return CursorBatcher(self.progress)

    async def close(self) -> None:
        """Ends all connections but the log's."""
        for database in self.own:
            await database.close()

    def limit_statement_time(self, lease: float) -> None:
        """Ends statements on the path of messages before a lease does."""
        for database in (self.database, *self.own):
            if database is not None:
                database.limit_statement_time(lease)

    async def begin(self) -> None:
        """A program begins to work: the log has to be the one that progress follows."""
        await self.progress.open()
        if self.following is not None:
            await self.following.begin()

    async def cover(self, position: int, log_life: UUID | None) -> None:
        """Makes sure that progress which is kept elsewhere remembers the log up to where it is about to go."""
        if self.following is not None and self.progress_location is ProgressLocation.IN_ANOTHER_DATABASE:
            await self.following.cover(position, log_life=log_life)

    async def check_connection(self, connection: object) -> None:
        """Raise `LogMismatch` if a caller's connection leads to another database than the log's."""
        if self.following is not None:
            await self.following.refuse_another_log(executor_in_loop(connection))

    @asynccontextmanager
    async def open_transactions(self, count: int, lease: float) -> AsyncIterator[Database]:
        """Open connections, within this block, for so many transactions of handlers at once."""
        transactions = Database(self.transactions.conninfo, pool_size=count, lease=lease)
        await transactions.open()
        try:
            yield transactions
        finally:
            await transactions.close()

    # What is stored of subscriptions

    def trace(self) -> PostgresTrace:
        """Return what tells where messages are."""
        return PostgresTrace(self.transactions, self.home.schema)

    def control(self) -> PostgresControl:
        """Return what pauses, moves and deletes subscriptions."""
        return PostgresControl(self.transactions, self.home.schema)

    def consumer_subscriptions(self) -> PostgresConsumerSubscriptions:
        """Return where subscriptions for consumers are kept."""
        return PostgresConsumerSubscriptions(self.transactions, self.home.schema)

    def deliveries(self, subscription: int) -> PostgresDeliveries:
        """Return the deliveries of one subscription."""
        return PostgresDeliveries(self.transactions, self.home.schema, subscription)

    @property
    def overview(self) -> PostgresOverview | None:
        """Subscriptions and workers as they are stored; None: progress is kept outside of PostgreSQL."""
        return None if self.database is None else PostgresOverview(self.database, self.home.schema)

    # Notifications

    @contextmanager
    def pull_wakeups(self, subscription: int, woken: Callable[[], None]) -> Iterator[None]:
        """Call `woken`, within this block, whenever there may be something to pull from a subscription."""
        with self.wakeups.on(NOTIFY_ACTION, woken), self.wakeups.on(f"pull {subscription}", woken):
            yield

    @property
    def is_listening(self) -> bool:
        """True if notifications arrive now."""
        return self.wakeups.listening

    def start_listening(self) -> None:
        """Listen where progress is; where that is with the log, the log listens while it is followed."""
        if self.progress_location is ProgressLocation.IN_ANOTHER_DATABASE:
            self.wakeups.start()

    async def stop_listening(self) -> None:
        """Listen no longer."""
        if self.progress_location is ProgressLocation.IN_ANOTHER_DATABASE:
            await self.wakeups.stop()

    @asynccontextmanager
    async def told(self, acted: Callable[[], None], asked: Callable[[], None]) -> AsyncIterator[None]:
        """Within this block these are called whenever a person has done something to a subscription, or asks what
        workers do."""
        with self.wakeups.on(NOTIFY_ACTION, acted), self.wakeups.on(NOTIFY_REPORT_WANTED, asked):
            self.start_listening()
            try:
                yield
            finally:
                await self.stop_listening()

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
        if self.following is None or self.progress_location is ProgressLocation.WITH_THE_LOG:
            return []
        return [self.following.watch()]

    @property
    def transactions(self) -> Database:
        """Where the transactions of handlers are."""
        if self.database is None:
            raise MilepostError(
                f"progress is kept {self.progress_location.value}: there is no transaction that it could share"
            )
        return self.database


def transaction_log(schema: str, codec: Codec) -> PostgresTransactionLog:
    """Return what can be done with a log on connections of callers, before it is open."""
    statements = log_statements(schema)
    return PostgresTransactionLog(statements, Reader(statements, codec))


async def open_log(url: str, schema: str, codec: Codec, *, migrate: MigrateMode, pool_size: int) -> PostgresLog:
    """Open the log in a schema of a database, and bring or check that schema."""
    statements = log_statements(schema)
    log = PostgresLog(Database(url, pool_size=pool_size), statements, Reader(statements, codec))
    await log.open(migrate)
    return log


def services_with_log(log: PostgresLog, url: str, leases: Leases | None) -> Services:
    """Progress is in the database of the log."""
    name = log.statements.schema
    return Services(
        progress_location=ProgressLocation.WITH_THE_LOG,
        progress=PostgresProgress(log.database, name),
        leases=leases or PostgresLeases(),
        home=LeaseHome(url, name),
        following=LogGuard(log.database, name, log),
        wakeups=log.wakeups,
        nodes=PostgresNodes(log.database, name),
        database=log.database,
    )


def services_outside_postgresql(log: PostgresLog, url: str, progress: Progress, leases: Leases | None) -> Services:
    """Progress is kept by an object of the program's own."""
    return Services(
        progress_location=ProgressLocation.OUTSIDE,
        progress=progress,
        # Subscriptions have the numbers that this object gave them: rows in PostgreSQL may say others by the same.
        leases=leases or MemoryLeases(),
        home=LeaseHome(url, log.statements.schema),
        following=None,
        wakeups=log.wakeups,
        nodes=PostgresNodes(log.database, log.statements.schema),
        database=None,
    )


async def services_in_another_database(
    log: PostgresLog, url: str, leases: Leases | None, *, migrate: MigrateMode, pool_size: int
) -> Services:
    """Progress is in a second database; its schema is brought up to date, and the log has to be the right one."""
    name = log.statements.schema
    try:
        database = Database(url, pool_size=pool_size)
    except NoDatabase as error:
        raise NoDatabase(f"progress: {error}") from None
    # Of its own: it is asked for while all others may be in transactions of handlers.
    remembered = Database(url, pool_size=1)
    following = LogGuard(remembered, name, log)
    services = Services(
        progress_location=ProgressLocation.IN_ANOTHER_DATABASE,
        progress=GuardedProgress(database, name, following),
        leases=leases or PostgresLeases(),
        home=LeaseHome(url, name),
        following=following,
        wakeups=Wakeups(database, log_statements(name)),
        nodes=PostgresNodes(database, name),
        database=database,
        own=(database, remembered),
    )
    try:
        for each in services.own:
            await each.open()
        await _prepare_schema(database, name, migrate)
        if migrate != "off":
            await following.check()
    except BaseException:
        await services.close()
        raise
    return services


async def _prepare_schema(database: Database, name: str, migrate: MigrateMode) -> None:
    async with database.connection() as connection:
        try:
            await schema.prepare(connection, name, migrate)
        except SchemaMismatch as error:
            raise SchemaMismatch(f"the database of progress: {error}, with its --url") from error
