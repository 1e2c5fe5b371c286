"""What several tests share: followers that keep what they saw, and small questions to a log."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import sql

from milepost import Milepost
from patience import until, within

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
MakeMilepost = Callable[..., Milepost]


async def positions(mp: Milepost, **query: Any) -> list[int]:
    """The positions of all messages that a read gives."""
    return [message.position async for message in mp.read(**query)]


async def until_somebody_waits_for(connection: Connection) -> None:
    """Until another session is held up by what this one has locked."""
    statement = "select exists (select from pg_stat_activity where %s = any (pg_blocking_pids(pid)))"
    async with await Connection.connect(connection.info.dsn, autocommit=True) as observer, asyncio.timeout(60):
        while True:
            cursor = await observer.execute(statement, [connection.info.backend_pid])
            if await cursor.fetchone() == (True,):
                return
            await asyncio.sleep(0.01)


async def until_listening(mp: Milepost) -> None:
    """Wait until notifications arrive."""
    await until(lambda: mp.log.wakeups.listening, 60)


def qualified(text: str, mp: Milepost) -> str:
    """A statement with the schema's name for `{}`."""
    return sql.SQL(text).format(sql.Identifier(mp.settings["schema"].value)).as_string(None)


async def expire_token(mp: Milepost, name: str) -> None:
    """Has a token end now, as if its time had come."""
    await mp.log.database.execute(
        qualified("update {0}.tokens set expires = {0}.clock() where name = %(name)s", mp), {"name": name}
    )


async def rows_by_state(mp: Milepost) -> dict[str, int]:
    """How many rows of messages there are in each state."""
    statement = qualified("select state, count(*) from {}.deliveries group by state", mp)
    return dict(await mp.log.database.execute(statement, {}))


class Follower:
    """Follows the log in a task and keeps what it saw."""

    def __init__(self, mp: Milepost, **query: Any) -> None:
        self.seen: list[int] = []
        self._grown = asyncio.Condition()
        self._task = asyncio.create_task(self._run(mp, query))

    async def _run(self, mp: Milepost, query: dict[str, Any]) -> None:
        async for message in mp.follow(**query):
            async with self._grown:
                self.seen.append(message.position)
                self._grown.notify_all()

    async def until(self, count: int) -> list[int]:
        """What it saw, once that is so many messages."""
        async with within(60, lambda: f"{self.seen}, wanted {count}"), self._grown:
            while len(self.seen) < count:
                if self._task.done():
                    self._task.result()
                await self._grown.wait()
        return self.seen

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@asynccontextmanager
async def following(mp: Milepost, **query: Any) -> AsyncIterator[Follower]:
    """A follower that has reached the head."""
    follower = Follower(mp, **query)
    try:
        yield follower
    finally:
        await follower.stop()
