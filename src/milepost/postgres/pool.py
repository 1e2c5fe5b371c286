"""Milepost's own connections: a pool for calls, single ones for what lives long, and the outages that all of a
process share."""

import asyncio
import itertools
import logging
import re
import select
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from threading import Lock
from time import monotonic
from typing import Any, LiteralString
from weakref import WeakValueDictionary

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from milepost.concurrency import run_to_end, run_to_end_if_it_waits
from milepost.errors import NoDatabase, Unavailable
from milepost.postgres.connections import ResultRow
from milepost.postgres.statements import Statements

logger = logging.getLogger("milepost.log.database")

_outages: WeakValueDictionary[str, "Outage"] = WeakValueDictionary()
_outages_lock = Lock()


def outage_of(conninfo: str) -> "Outage":
    """Return what all connections of this process to one database share."""
    given = conninfo_to_dict(conninfo)
    place = " ".join(str(given.get(name, "")) for name in ("host", "hostaddr", "port", "dbname"))
    with _outages_lock:
        outage = _outages.get(place)
        if outage is None:
            _outages[place] = outage = Outage()
        return outage


class Outage:
    """Logs one line when a database is lost and one when it is back, and wakes those who wait for that.

    Used by several threads: a worker's heart has an event loop of its own.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._began: float | None = None
        self._failed = -inf
        """When a connection failed last."""
        self._failures = 0
        self.failures = 0
        """How often a connection failed, ever."""
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def failed(self, error: BaseException, opened_at: float = inf) -> None:
        """Note that a connection could not be had, or ended under a statement.

        `opened_at` is when it was opened, by `time.monotonic`: one of before the last
        failure says nothing new.
        """
        with self._lock:
            self.failures += 1
            is_old = self._began is None and opened_at < self._failed
            self._failed = monotonic()
            if is_old:
                return
            self._failures += 1
            if self._began is not None:
                return
            self._began = monotonic()
        logger.warning("connection lost, trying again: %s", error)

    def succeeded(self) -> None:
        """Note that a statement was answered."""
        # Asked after each statement, and nearly always there is nothing to end.
        if not self._failures:
            return
        with self._lock:
            began, failures, waiting = self._began, self._failures, list(self._waiting)
            self._began, self._failures = None, 0
        if began is None:
            return
        logger.warning("connected again after %.1f s and %d failed attempts", monotonic() - began, failures)
        for loop, event in waiting:
            # A loop that has ended waits for nothing.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

    @contextmanager
    def waking(self, event: asyncio.Event) -> Iterator[None]:
        """Within this block set an event of this loop's whenever the database is back."""
        waiting = (asyncio.get_running_loop(), event)
        with self._lock:
            self._waiting.add(waiting)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(waiting)


class PoolLogFilter(logging.Filter):
    """Keeps the driver's pool from telling of each attempt to connect: an outage is told once."""

    def __init__(self, pools: str, connection: type) -> None:
        super().__init__()
        self._pools = re.compile(pools)
        self._connection = connection

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for what the pool says of its own connections."""
        args = record.args if isinstance(record.args, tuple) else ()
        return not any(
            isinstance(arg, self._connection) or (isinstance(arg, str) and self._pools.fullmatch(arg))
            for arg in args
        )


CONNECT_TIMEOUT_SECONDS = 10
"""Seconds to wait for a connection, unless the address says otherwise."""

STATEMENT_SECONDS = 10.0
"""Time limit of a statement of Milepost's own; less where a lease is shorter."""
STATEMENT_SHARE_OF_LEASE = 0.8
"""The part of a lease that a statement may take: who waits longer has lost its lanes."""

GRACE_AFTER_BLOCK_SECONDS = 0.05
"""Seconds for the loop to look at answers before a connection counts as dead."""

BAD_ADDRESS_TEXT = (
    "this is no address that PostgreSQL understands: "
    "postgresql://user:password@host:5432/database is wanted, or embedded"
)

CONNECT_RETRY_SECONDS = 1.0
"""Seconds between two attempts to connect while somebody waits. Left to itself, the pool doubles its pauses: of a
server that comes back after a minute it would hear another minute later."""

RECOVERY_ERRORS = (psycopg.errors.FeatureNotSupported, psycopg.errors.ReadOnlySqlTransaction)
"""What a standby answers: it has no unlogged tables, and takes no writes."""

UNREACHABLE_ERRORS = (
    psycopg.OperationalError,
    PoolTimeout,
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.TransactionTimeout,
)
"""What says that a connection cannot be had, or has ended."""

_STATEMENTS = Statements("", "milepost.postgres")
"""What a session needs, before it is known for which schema."""

POOL_NAME_PREFIX = "milepost"
"""Pools are named by it and a number."""

Connection = psycopg.AsyncConnection[TupleRow]


class OwnConnection(psycopg.AsyncConnection[TupleRow]):
    """A connection that Milepost has opened."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.opened_at = monotonic()
        self.is_configured = False
        """True once it is known whether there is a pooler between."""
        self.begins_transactions = False
        """True if each statement needs a transaction that says READ COMMITTED: the role has another default, and
        behind a pooler it cannot be set for the session."""

    @classmethod
    async def connect(  # type: ignore[override]  # one keyword more, for the pool
        cls, conninfo: str = "", *, spares: "list[OwnConnection] | None" = None, **options: Any
    ) -> "OwnConnection":
        """Take one of `spares` that still lives, or open a connection."""
        while spares:
            spare = spares.pop()
            if not spare.has_ended():
                return spare
            await spare.close()
        return await super().connect(conninfo, **options)

    def has_ended(self) -> bool:
        """Return True if the server ended the session while nobody used it. Nothing is asked of the server."""
        if self.closed:
            return True
        with suppress(psycopg.Error, OSError):
            # It may be a notice, or the news that a setting has changed. A last word comes before the end.
            while _is_readable(self.pgconn.socket):
                self.pgconn.consume_input()
        return self.closed


def _is_readable(descriptor: int) -> bool:
    """Return True if something has arrived at a socket, its end included."""
    if sys.platform == "win32":
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


logging.getLogger("psycopg.pool").addFilter(PoolLogFilter(rf"{POOL_NAME_PREFIX}-\d+", OwnConnection))


_pool_numbers = itertools.count(1)


class Database:
    """One PostgreSQL primary, reached through autocommit connections."""

    blocking = False

    def __init__(self, url: str, *, pool_size: int, lease: float | None = None) -> None:
        self.conninfo = _primary_conninfo(url)
        self.pool_size = pool_size
        """How many connections calls may have at once."""
        self.statement_seconds = STATEMENT_SECONDS
        """Time limit of a statement. After it the connection is ended."""
        if lease is not None:
            self.limit_statement_time(lease)
        self.lent = 0
        """How many connections of the pool are with somebody."""
        self._was_reached = False
        self.outage = outage_of(self.conninfo)
        """Knows whether the server can be reached, from all connections of this process."""
        self._spares: list[OwnConnection] = []
        """The connection that `open` made, until the pool takes it."""
        self._pool = AsyncConnectionPool[OwnConnection](
            self.conninfo,
            connection_class=OwnConnection,
            name=f"{POOL_NAME_PREFIX}-{next(_pool_numbers)}",
            kwargs={"autocommit": True, "spares": self._spares},
            min_size=0,
            max_size=pool_size,
            reconnect_timeout=CONNECT_RETRY_SECONDS,
            configure=_configure_session,
            open=False,
        )

    async def open(self) -> None:
        """Start the pool with one connection; raise `Unavailable` if none can be had."""
        # The pool itself would not say why it has none.
        self._spares.append(await self.connect())
        await self._pool.open()

    async def close(self) -> None:
        """Close the pool and wait for its connections to end."""
        await self._pool.close()
        while self._spares:
            await self._spares.pop().close()

    async def connect(self) -> OwnConnection:
        """A connection of the caller's own, which the caller closes."""
        connection: OwnConnection | None = None
        try:
            with translate_errors():
                connection = await OwnConnection.connect(self.conninfo, autocommit=True)
                await _configure_session(connection)
        except BaseException as error:
            if connection is not None:
                await connection.close()
            if isinstance(error, Unavailable):
                self.failed(error)
            raise
        self.succeeded()
        return connection

    def failed(self, error: Unavailable, opened_at: float = inf) -> None:
        """Note that there is no connection, or that one ended which was opened then."""
        # Whoever opens it is told: nothing is lost that was not there.
        if self._was_reached:
            self.outage.failed(error, opened_at)

    def succeeded(self) -> None:
        """Note that the server has answered."""
        # The first answer ends nothing that began here: it is for those who were there before to say that.
        if self._was_reached:
            self.outage.succeeded()
        self._was_reached = True

    def limit_statement_time(self, lease: float) -> None:
        """Ends statements before a lease does that depends on them."""
        self.statement_seconds = min(self.statement_seconds, STATEMENT_SHARE_OF_LEASE * lease)

    def within(self, seconds: float | None) -> "LimitedExecutor":
        """Runs statements that may take so long; None: as long as they take, as maintenance may."""
        return LimitedExecutor(self, seconds)

    def connection(self) -> "PooledConnection":
        """A connection of the pool's, for a block."""
        return PooledConnection(self)

    async def take(self) -> OwnConnection:
        """A connection of the pool's. Who asks makes it try to connect, if it has none to give."""
        clock = asyncio.get_running_loop().time
        until = clock() + CONNECT_TIMEOUT_SECONDS
        while True:
            try:
                connection = await self._pool.getconn(timeout=CONNECT_RETRY_SECONDS)
            except PoolTimeout as error:
                if clock() >= until:
                    raise Unavailable(f"PostgreSQL: no connection within {CONNECT_TIMEOUT_SECONDS} s") from error
            else:
                self.lent += 1
                if not connection.has_ended():
                    return connection
                # While it was in the pool; the pool makes another one for it.
                await connection.close()
                await self.give_back(connection)

    async def give_back(self, connection: OwnConnection) -> None:
        """Back to the pool. One that is cancelled there would lose it, and whoever waits for it too."""
        self.lent -= 1
        giving = self._pool.putconn(connection)
        if connection.info.transaction_status == TransactionStatus.IDLE:
            await run_to_end_if_it_waits(giving)
        else:
            await run_to_end(giving)

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[ResultRow]:
        """Runs a statement on a connection of the pool's, in a transaction of its own."""
        async with self.connection() as connection:
            return await fetch_rows(connection, statement, parameters, self.statement_seconds)

    def has_none(self, error: BaseException | None) -> None:
        """Note that the pool gave no connection; while others have them all, that says nothing of the server."""
        if isinstance(error, Unavailable) and not self.lent:
            self.failed(error)

    async def replace_connections(self) -> None:
        """Replaces the pool's connections when one was lost: the others most likely were lost with it.

        They are not asked whether they still work: a frozen server would not answer.
        """
        with suppress(psycopg.Error):
            await self._pool.drain()


class LimitedExecutor:
    """Runs statements on connections of a database's pool, with a time limit of its own."""

    blocking = False

    def __init__(self, database: Database, seconds: float | None) -> None:
        self._database = database
        self._seconds = seconds

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[ResultRow]:
        """Runs a statement in a transaction of its own."""
        async with self._database.connection() as connection:
            return await fetch_rows(connection, statement, parameters, self._seconds)


class PooledConnection:
    """A connection that is the caller's for a block, and the pool's again after it.

    It is no generator: a loop that ends closes those, and would give back what a statement still runs on.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: OwnConnection | None = None

    async def __aenter__(self) -> Connection:
        try:
            with translate_errors():
                self._connection = await self._database.take()
        except BaseException as error:
            # One who is cancelled may have it already.
            await self._end(error)
            raise
        return self._connection

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        try:
            if self._connection is None:
                self._database.has_none(error)
            elif isinstance(error, Unavailable) and self._connection.closed:
                self._database.failed(error, self._connection.opened_at)
                await self._database.replace_connections()
            elif error is None:
                self._database.succeeded()
        finally:
            if self._connection is not None:
                await self._database.give_back(self._connection)


class Deadline:
    """Ends a connection when a statement takes longer than it may.

    A server that is frozen, or a network that is cut, answers nothing: not the statement, and not the wish to
    cancel it. Within the block `within` says how long what follows may take.
    """

    def __init__(self, connection: Connection, seconds: float | None = None) -> None:
        self._connection = connection
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._has_expired = False

    def __enter__(self) -> "Deadline":
        self.within(self._seconds)
        return self

    def within(self, seconds: float | None) -> None:
        """What follows may take so long; None: as long as it takes."""
        self._stop()
        self._seconds = seconds
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._stop()
        if self._has_expired and is_unreachable(error):
            raise Unavailable(f"PostgreSQL: no answer within {self._seconds:g} s") from error

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        # A loop that stood still comes here first, and then to an answer that has been there for long.
        self._timer = asyncio.get_running_loop().call_later(GRACE_AFTER_BLOCK_SECONDS, self._cut)

    def _cut(self) -> None:
        self._has_expired = True
        cut_connection(self._connection)


def cut_connection(connection: Connection) -> None:
    """Ends a connection under whoever waits for it; closing it stays with who has it."""
    with suppress(psycopg.Error, OSError):
        peer = socket.socket(fileno=connection.pgconn.socket)
        try:
            peer.shutdown(socket.SHUT_RDWR)
        finally:
            peer.detach()


async def fetch_rows(
    connection: Connection,
    statement: LiteralString,
    parameters: Mapping[str, Any],
    seconds: float | None = None,
) -> Sequence[ResultRow]:
    """The rows of a statement, in PostgreSQL's binary format; in `seconds` at the most, if that is given."""
    with translate_errors(), Deadline(connection, seconds):
        if (
            isinstance(connection, OwnConnection)
            and connection.begins_transactions
            and connection.info.transaction_status == TransactionStatus.IDLE
        ):
            async with connection.transaction():
                return await _fetch_all(connection, statement, parameters)
        return await _fetch_all(connection, statement, parameters)


async def _fetch_all(
    connection: Connection, statement: LiteralString, parameters: Mapping[str, Any]
) -> Sequence[ResultRow]:
    cursor = connection.cursor(binary=True)
    await cursor.execute(statement, parameters)
    result = cursor.pgresult
    return await cursor.fetchall() if result is not None and result.nfields else []


def is_unreachable(error: BaseException | None) -> bool:
    """Whether the connection or the server is gone. Of an answer that libpq made up the driver knows no class."""
    return isinstance(error, UNREACHABLE_ERRORS) or (type(error) is psycopg.DatabaseError and not error.sqlstate)


class translate_errors:  # noqa: N801 - reads as a word at its uses
    """Around calls of the driver: its errors about connection and server become `Unavailable`.

    It also brings back a cancellation that got lost: before Python 3.12 `asyncio.wait_for`, which the driver
    waits with, swallows one that arrives together with the result.
    """

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._cancelled = self._task.cancelling() if self._task else 0

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if is_unreachable(error):
            reason = str(error).strip().splitlines()
            raise Unavailable(f"PostgreSQL: {reason[0] if reason else type(error).__name__}") from error
        if isinstance(error, RECOVERY_ERRORS):
            raise Unavailable("PostgreSQL is in recovery: a standby cannot tell what is final") from error
        if error is None and self._task and self._task.cancelling() > self._cancelled:
            raise asyncio.CancelledError


def _primary_conninfo(url: str) -> str:
    # Only a primary can tell what is final; a standby is refused, and with several hosts the next is tried.
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # The driver's own words would repeat the address, and a password with it.
        raise NoDatabase(BAD_ADDRESS_TEXT) from None
    defaults: dict[str, str | int] = {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "application_name": "milepost",
        # A peer that vanished without a word is noticed within half a minute.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }
    missing = {name: value for name, value in defaults.items() if name not in given}
    return make_conninfo(url, target_session_attrs="read-write", **missing)


async def _configure_session(connection: OwnConnection) -> None:
    if connection.is_configured:
        return
    # Behind a pooler the session's process is another from statement to statement, and psycopg's prepared
    # statements are lost between them. The pooler's own idea of the process gives it away.
    statement, parameters = _STATEMENTS.get("configure"), {"pid": connection.info.backend_pid}
    with Deadline(connection, STATEMENT_SECONDS):
        cursor = await connection.execute(statement, parameters)
        row = await cursor.fetchone()
    is_direct, is_read_committed, _ = row or (False, True, None)
    if not is_direct:
        connection.prepare_threshold = None
        connection.begins_transactions = not is_read_committed
        if not is_read_committed:
            await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
    connection.is_configured = True
