"""Hours of random load with killed connections, for the shard `soak`; MILEPOST_SOAK_SECONDS says how long."""

import asyncio
import os
import random
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from milepost import Milepost, NewMessage
from servers import Server, embedded_binaries
from support import Connection, following

SECONDS = float(os.environ.get("MILEPOST_SOAK_SECONDS", "300"))
WRITERS = 12

pytestmark = [pytest.mark.shard("soak"), pytest.mark.timeout(SECONDS + 300)]


async def write(mp: Milepost, url: str, seed: int, until: float) -> None:
    """Appends in transactions that pause, roll back, and lose their connection now and then."""
    chance = random.Random(seed)
    loop = asyncio.get_running_loop()
    while loop.time() < until:
        with suppress(psycopg.OperationalError):
            async with await Connection.connect(url) as connection:
                for _ in range(200):
                    for _ in range(chance.randint(1, 5)):
                        stream = f"c{chance.randrange(10)}-{chance.randrange(1000)}-{seed}"
                        await mp.append(stream, NewMessage("happened"), connection=connection)
                        if chance.random() < 0.1:
                            await asyncio.sleep(chance.random() * 0.1)
                    await (connection.rollback() if chance.random() < 0.2 else connection.commit())


async def disturb(server: Server, until: float) -> None:
    """Ends a random connection every second."""
    loop = asyncio.get_running_loop()
    while loop.time() < until:
        await asyncio.sleep(1)
        with suppress(psycopg.OperationalError):
            async with await Connection.connect(server.url(), autocommit=True) as admin:
                await admin.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where backend_type = 'client backend' and pid <> pg_backend_pid() order by random() limit 1"
                )


async def test_followers_see_every_committed_position_once_in_order(tmp_path: Path) -> None:
    server = Server(embedded_binaries()).create()
    try:
        async with Milepost(server.url()) as mp, following(mp) as everything, following(mp, category="c3") as some:
            until = asyncio.get_running_loop().time() + SECONDS
            await asyncio.gather(
                disturb(server, until), *(write(mp, server.url(), seed, until) for seed in range(WRITERS))
            )
            async with await Connection.connect(server.url()) as connection:
                cursor = await connection.execute(
                    'select "position", s.category from milepost.messages '
                    'join milepost.streams s using (stream_id) order by "position"'
                )
                rows = await cursor.fetchall()
            assert rows
            assert await everything.until(len(rows)) == [row[0] for row in rows]
            of_category = [row[0] for row in rows if row[1] == "c3"]
            assert await some.until(len(of_category)) == of_category
    finally:
        server.remove()
