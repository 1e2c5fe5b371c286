"""The pool of connections: none is lost, whatever becomes of those who use them."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from milepost.log.database import Database


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, pool_size=1)
    await database.open()
    yield database
    await database.close()


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
    assert await asyncio.wait_for(waiter, 5)


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
    async with asyncio.timeout(8):
        assert await database.execute("select 1", {}) == [(1,)]
