"""Large results come whole and in order, and can be given up at any moment."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import LiteralString

import psutil
import psycopg
import pytest
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGconn, PGresult

from milepost.errors import Unavailable
from milepost.postgres import bulk as module
from milepost.postgres.bulk import BulkExecutor
from milepost.postgres.pool import Database, translate_errors

ROWS = 50_000
NUMBERS: LiteralString = "select n, repeat('x', 100) from generate_series(1, %(count)s::int) n where 7 %% 4 = 3"
ASLEEP: LiteralString = "select pg_sleep(60), %(count)s::int"


@pytest.fixture
async def bulk(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BulkExecutor]:
    monkeypatch.setattr(module, "CANCEL_TIMEOUT_SECONDS", 60.0)
    bulk = BulkExecutor(database)
    yield bulk
    bulk.close()


async def numbers(bulk: BulkExecutor, count: int) -> list[int]:
    return [row[0] for row in await bulk.execute(NUMBERS, {"count": count})]


async def backend(database: Database) -> int:
    rows = await database.execute("select pg_backend_pid()", {})
    found: int = rows[0][0]
    return found


async def until_it_sleeps(url: str, pid: int) -> None:
    statement = "select from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other, asyncio.timeout(60):
        while (await other.execute(statement, [pid])).rowcount == 0:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("count", [0, 1, 1_000, ROWS])
async def test_whole_and_in_order(bulk: BulkExecutor, count: int) -> None:
    assert await numbers(bulk, count) == list(range(1, count + 1))


async def test_after_the_end_nothing_waits(bulk: BulkExecutor) -> None:
    """A reader may be at its next page while the log is closed: no thread would ever take that."""
    assert await numbers(bulk, 1) == [1]
    bulk.close()
    with pytest.raises(Unavailable, match="closed"):
        await numbers(bulk, 1)


async def test_again_and_again(bulk: BulkExecutor) -> None:
    assert [len(await numbers(bulk, count)) for count in (1, 70_000, 3, 200)] == [1, 70_000, 3, 200]


async def test_without_prepared_statements(bulk: BulkExecutor, database: Database) -> None:
    async with database.connection() as connection:
        connection.prepare_threshold = None
    assert await numbers(bulk, 3) == [1, 2, 3]
    rows = await database.execute("select count(*) from pg_prepared_statements", {})
    assert rows == [(0,)]


async def test_the_loop_goes_on_meanwhile(bulk: BulkExecutor, database: Database, database_url: str) -> None:
    pid = await backend(database)
    reading = asyncio.create_task(bulk.execute(ASLEEP, {"count": 1}))
    await until_it_sleeps(database_url, pid)
    assert not reading.done()
    reading.cancel()
    await asyncio.wait([reading])


async def test_an_error_in_the_middle(bulk: BulkExecutor) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        await bulk.execute("select repeat('x', 1000), 1 / (20000 - n) from generate_series(1, 40000) n", {})
    assert await numbers(bulk, 3) == [1, 2, 3]


async def test_given_up_it_leaves_the_connection_as_it_was(
    bulk: BulkExecutor, database: Database, database_url: str
) -> None:
    pid = await backend(database)
    reading = asyncio.create_task(bulk.execute(ASLEEP, {"count": 1}))
    await until_it_sleeps(database_url, pid)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await numbers(bulk, 3) == [1, 2, 3]
    assert await backend(database) == pid


async def test_given_up_twice_it_still_waits_for_the_thread(
    bulk: BulkExecutor, database: Database, database_url: str
) -> None:
    pid = await backend(database)
    reading = asyncio.create_task(bulk.execute(ASLEEP, {"count": 1}))
    await until_it_sleeps(database_url, pid)
    while not reading.done():
        reading.cancel()
        await asyncio.sleep(0)
    assert reading.cancelled()
    assert await backend(database) == pid


async def test_a_time_limit_around_it(bulk: BulkExecutor) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await bulk.execute(ASLEEP, {"count": 1})
    assert await numbers(bulk, 3) == [1, 2, 3]


async def test_if_the_server_does_not_stop_the_connection_is_cut(
    bulk: BulkExecutor, database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unheard(connection: object, **options: object) -> None:
        raise psycopg.OperationalError("nobody there")

    monkeypatch.setattr(psycopg.AsyncConnection, "cancel_safe", unheard)
    monkeypatch.setattr(module, "CANCEL_TIMEOUT_SECONDS", 0.1)
    pid = await backend(database)
    reading = asyncio.create_task(bulk.execute(ASLEEP, {"count": 1}))
    await until_it_sleeps(database_url, pid)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await numbers(bulk, 3) == [1, 2, 3]
    assert await backend(database) != pid


@pytest.mark.parametrize("steps", [0, 1])
def test_a_loop_that_ends_waits_for_the_thread(
    database_url: str, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Or the connection would be closed under the thread, and the next one could take its place."""
    checked, under_way, cut = module._checked_result, [], []

    def watched(pgconn: PGconn, call: Callable[[], PGresult]) -> PGresult:
        under_way.append(pgconn)
        try:
            return checked(pgconn, call)
        except psycopg.Error as error:
            cut.append(error)
            raise
        finally:
            under_way.remove(pgconn)

    monkeypatch.setattr(module, "_checked_result", watched)

    database = Database(database_url, pool_size=1)
    bulk = BulkExecutor(database)

    async def leave_it_behind() -> None:
        await database.open()
        pid = await backend(database)
        reading = asyncio.create_task(bulk.execute(ASLEEP, {"count": 1}))
        await until_it_sleeps(database_url, pid)
        reading.cancel()
        for _ in range(steps):
            await asyncio.sleep(0)
        assert under_way

    asyncio.run(leave_it_behind())
    bulk.close()
    assert not under_way
    assert len(cut) == 1


async def test_the_connection_ends(bulk: BulkExecutor, database: Database, database_url: str) -> None:
    pid = await backend(database)
    reading = asyncio.create_task(bulk.execute(ASLEEP, {"count": 1}))
    await until_it_sleeps(database_url, pid)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as other:
        await other.execute("select pg_terminate_backend(%s)", [pid])
    with pytest.raises(Unavailable):
        await reading
    assert await numbers(bulk, 3) == [1, 2, 3]


async def test_the_connection_ended_before(bulk: BulkExecutor, database: Database, database_url: str) -> None:
    """Nobody is told: such a connection is handed to nobody."""
    pid = await backend(database)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as other:
        await other.execute("select pg_terminate_backend(%s)", [pid])
    async with asyncio.timeout(60):
        while psutil.pid_exists(pid):
            await asyncio.sleep(0.005)
    assert await numbers(bulk, 3) == [1, 2, 3]


async def test_an_answer_that_no_server_gave(database: Database) -> None:
    """What libpq says in the server's place has no code; it may not know yet that the connection is bad."""
    with (
        pytest.raises(Unavailable, match="^PostgreSQL: server closed the connection unexpectedly$"),
        translate_errors(),
    ):
        async with await database.connect() as connection:
            with socket.socket(fileno=os.dup(connection.pgconn.socket)) as peer:
                peer.shutdown(socket.SHUT_RDWR)
            raise error_from_result(connection.pgconn.prepare(b"nothing", b"select 1"))


async def test_a_mistake_is_no_lost_connection(bulk: BulkExecutor) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        await bulk.execute("select from nowhere", {})
