"""The pool of connections: none is lost, whatever becomes of those who use them."""

import asyncio
import random
from contextlib import suppress

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from milepost import Unavailable
from milepost.postgres import pool as module
from milepost.postgres.pool import Connection, Database, fetch_rows


async def test_one_who_is_cancelled_while_giving_back_takes_nothing_along(database: Database) -> None:
    has, go_on = asyncio.Event(), asyncio.Event()

    async def use() -> None:
        async with database.connection():
            has.set()
            await go_on.wait()

    async def use_next() -> str:
        async with database.connection() as connection:
            return connection.info.dbname

    giver = asyncio.create_task(use())
    await has.wait()
    waiter = asyncio.create_task(use_next())
    while not database._pool.get_stats().get("requests_waiting"):
        await asyncio.sleep(0)
    # The one who waits is just being told something else, so that whoever gives back has to wait for it.
    told = database._pool._waiting[0]._cond
    await told.acquire()
    go_on.set()
    for _ in range(5):
        await asyncio.sleep(0)
    giver.cancel()
    await asyncio.wait([giver])
    told.release()
    assert await asyncio.wait_for(waiter, 60)


async def test_one_who_is_cancelled_while_it_is_given_one_gives_it_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = database.take

    async def take_and_be_cancelled() -> Connection:
        """As the driver does before Python 3.12: a cancellation that comes with the result is lost in it."""
        connection = await take()
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return connection

    monkeypatch.setattr(database, "take", take_and_be_cancelled)
    cancelled = asyncio.create_task(database.execute("select 1", {}))
    await asyncio.wait([cancelled])
    assert cancelled.cancelled()
    monkeypatch.undo()
    assert await database.execute("select 1", {}) == [(1,)]


@pytest.mark.parametrize("statement", ["select 1", "select pg_sleep(0.001)", "begin"])
async def test_cancellations_at_random(database: Database, statement: str) -> None:
    async def use() -> None:
        async with database.connection() as connection:
            await connection.execute(statement)

    for _ in range(30):
        tasks = [asyncio.create_task(use()) for _ in range(5)]
        await asyncio.sleep(random.random() * 0.004)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.wait(tasks)
    async with asyncio.timeout(40):
        assert await database.execute("select 1", {}) == [(1,)]


async def test_a_server_that_is_away_is_looked_for_all_the_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven attempts: the pool alone would need a minute for them, and for the next another."""
    monkeypatch.setattr(module, "CONNECT_RETRY_SECONDS", 0.05)
    attempts = 0
    enough = asyncio.Event()

    def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()
        if attempts == 7:
            enough.set()

    async def use(database: Database) -> None:
        while True:
            with suppress(Unavailable):
                await database.execute("select 1", {})

    database = Database(database_url, pool_size=1)
    await database.open()
    pid = (await database.execute("select pg_backend_pid()", {}))[0][0]
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as nobody:
        port = nobody.sockets[0].getsockname()[1]
        database._pool.conninfo = make_conninfo(host="127.0.0.1", port=port, user="nobody", sslmode="disable")
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as other:
            await other.execute("select pg_terminate_backend(%s)", [pid])
        using = asyncio.create_task(use(database))
        async with asyncio.timeout(40):
            await enough.wait()
        using.cancel()
        await asyncio.wait([using])
    await database.close()


def test_a_loop_that_ends_takes_no_connection_away_from_a_statement(database_url: str) -> None:
    """It closes all generators at once, also those of whom others still wait for something."""

    async def read() -> object:
        database = Database(database_url, pool_size=1)
        await database.open()
        has = asyncio.Event()

        async def use() -> object:
            async with database.connection() as connection:
                has.set()
                return await (await connection.execute("select 1 from pg_sleep(0.2)")).fetchone()

        using = asyncio.create_task(use())
        await has.wait()
        await asyncio.get_running_loop().shutdown_asyncgens()
        row = await using
        await database.close()
        return row

    assert asyncio.run(read()) == (1,)


async def test_a_transaction_that_the_server_ended_for_its_length(database: Database) -> None:
    async with await database.connect() as connection:
        if connection.info.server_version < 170_000:
            pytest.skip("PostgreSQL 17 brought transaction_timeout")
        await connection.execute("set transaction_timeout = 50")
        with pytest.raises(Unavailable, match="transaction timeout"):
            await fetch_rows(connection, "select pg_sleep(60)", {})
