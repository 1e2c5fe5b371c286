"""Large results, fetched whole in a thread.

The driver's own way wakes the event loop for every few rows, and while the loop works on something else PostgreSQL
stands still: what the system keeps for a connection is soon full. Here libpq takes a result to its end in one call
that needs neither the loop nor Python's lock, and the server works on the next page during all of the last.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from threading import Lock
from typing import Any, LiteralString
from weakref import WeakKeyDictionary

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from milepost.concurrency import DaemonThreads, ThreadsClosed
from milepost.errors import Unavailable
from milepost.postgres.connections import ResultRow
from milepost.postgres.pool import Connection, Database, cut_connection, translate_errors

THREAD_START_SECONDS = 0.005
"""Seconds that the loop waits for a thread to begin, at most. That takes a tenth of a millisecond; if the loop
went on at once, Python would let the thread begin only after some milliseconds."""
CANCEL_TIMEOUT_SECONDS = 5.0
"""Seconds that a statement which nobody waits for any more gets to end, before its connection is cut."""

_DONE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class BulkExecutor:
    """Runs statements with large results, on connections of a database's pool."""

    blocking = False

    def __init__(self, database: Database) -> None:
        self._database = database
        self._threads = DaemonThreads(database.pool_size, "reader")
        self._prepared: WeakKeyDictionary[Connection, dict[bytes, bytes]] = WeakKeyDictionary()

    def close(self) -> None:
        """Ends its threads."""
        self._threads.close()

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[ResultRow]:
        """The rows of a statement, in a transaction of its own."""
        query, names = _numbered_parameters(statement)
        async with self._database.connection() as connection:
            with translate_errors():
                transformer = Transformer(connection)
                given = [parameters[name] for name in names]
                values = transformer.dump_sequence(given, [PyFormat.TEXT] * len(given))
                result = await self._apart(connection, partial(self._fetch, connection, query, values))
                transformer.set_pgresult(result)
                rows: list[ResultRow] = transformer.load_rows(0, result.ntuples, tuple)
                return rows

    async def _apart(self, connection: Connection, call: Callable[[], PGresult]) -> PGresult:
        """A call in a thread. The connection is the thread's until it returns, whoever is cancelled."""
        waits = Lock()
        waits.acquire()

        def begin() -> PGresult:
            waits.release()
            return call()

        try:
            running = self._threads.run(begin)
        except ThreadsClosed as error:
            raise Unavailable("this Milepost was closed while a page was read") from error
        waits.acquire(timeout=THREAD_START_SECONDS)
        awaited: list[asyncio.Future[Any]] = [running]
        seconds = self._database.statement_seconds
        deadline = asyncio.get_running_loop().call_later(seconds, _cut_if_running, connection, running)
        running.add_done_callback(lambda _: deadline.cancel())
        while not all(future.done() for future in awaited):
            try:
                await asyncio.wait(awaited)
            except asyncio.CancelledError:
                if awaited == [running]:
                    stopping = asyncio.create_task(_cancel_statement(connection, running))
                    stopping.add_done_callback(lambda _: _cut_if_running(connection, running))
                    awaited.append(stopping)
        if awaited == [running]:
            return running.result()
        # Looked at: nobody waits for it any more.
        running.exception()
        raise asyncio.CancelledError

    def _fetch(self, connection: Connection, query: bytes, values: Sequence[Any]) -> PGresult:
        pgconn = connection.pgconn
        if connection.prepare_threshold is None:
            return _checked_result(pgconn, lambda: pgconn.exec_params(query, values, result_format=Format.BINARY))
        prepared = self._prepared.setdefault(connection, {})
        if query not in prepared:
            name = b"milepost_%d" % len(prepared)
            _checked_result(pgconn, lambda: pgconn.prepare(name, query))
            prepared[query] = name
        return _checked_result(
            pgconn, lambda: pgconn.exec_prepared(prepared[query], values, result_format=Format.BINARY)
        )


async def _cancel_statement(connection: Connection, running: "asyncio.Future[PGresult]") -> None:
    """Asks the server to end what a thread waits for, and waits for that a while."""
    if running.done():
        return
    with suppress(psycopg.Error):
        await connection.cancel_safe(timeout=CANCEL_TIMEOUT_SECONDS)
    await asyncio.wait([running], timeout=CANCEL_TIMEOUT_SECONDS)


def _cut_if_running(connection: Connection, running: "asyncio.Future[PGresult]") -> None:
    """If asking did not help, or a loop that ends left no time for it: ends the connection under the thread.

    Closing it stays with whoever has it.
    """
    if not running.done():
        cut_connection(connection)


def _checked_result(pgconn: PGconn, call: Callable[[], PGresult]) -> PGresult:
    """What a call returns, if it went well."""
    try:
        result = call()
    except MemoryError:
        # What the driver says when there is no result at all.
        raise psycopg.OperationalError(pgconn.get_error_message()) from None
    if result.status in _DONE:
        return result
    raise error_from_result(result)


@cache
def _numbered_parameters(statement: str) -> tuple[bytes, tuple[str, ...]]:
    """A statement with its parameters as PostgreSQL counts them, and their names in that order."""
    names: dict[str, int] = {}
    numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${names.setdefault(found[1], len(names) + 1)}", statement)
    return numbered.replace("%%", "%").encode(), tuple(names)
