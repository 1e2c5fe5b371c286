"""Progress in another database than a log that lost its newest messages: that is noticed, however it shows."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from lossy import Lossy, lossy, until_available
from milepost import Checkpoint, LogMismatch, MemoryProgress, Message, Milepost, NewMessage
from milepost.progress.postgres.log_guard import ProgressRewinder
from patience import until
from support import MakeMilepost, qualified

Seen = list[tuple[int, str]]


@pytest.fixture
async def server(database_url: str, schema: str) -> AsyncIterator[Lossy]:
    async with lossy(database_url, schema) as server:
        yield server


class Programs:
    """Makes programs with progress elsewhere, which note what they handle."""

    def __init__(self, make_mp: MakeMilepost, second_url: str) -> None:
        self.seen: Seen = []
        self.free = asyncio.Event()
        self._make_mp = make_mp
        self._second_url = second_url

    def one(self) -> Milepost:
        mp = self._make_mp(progress=self._second_url)

        @mp.subscription(
            "lines", category="order", lanes=1, concurrency=1, checkpoint=Checkpoint(seconds=0.0, messages=1)
        )
        async def handle(message: Message[Any]) -> None:
            self.seen.append((message.position, message.type))
            if message.data == "held":
                await self.free.wait()

        return mp


@pytest.fixture
def programs(make_mp: MakeMilepost, second_url: str) -> Programs:
    return Programs(make_mp, second_url)


async def rewound(mp: Milepost) -> int:
    """Takes progress back; to which position."""
    database = mp.runtime().services.database
    assert database is not None
    rewinding = ProgressRewinder(mp.log.database.within(None), database.within(None), mp.log.statements.schema)
    plan = await rewinding.plan()
    assert plan is not None
    await rewinding.run(plan)
    return plan.survived


async def test_a_message_that_is_appended_again_is_not_the_one_that_was_lost(
    programs: Programs, make_mp: MakeMilepost, server: Lossy
) -> None:
    """Its producer has tried again with the same id, and it is at the same position as before."""
    again = uuid4()
    async with programs.one() as mp:
        await mp.append("order-1", NewMessage("kept"))
        await mp.run_until_idle()
        await server.flush()
        await mp.append("order-1", NewMessage("lost"))
        lost = await mp.append("order-1", NewMessage("again", id=again))
        await mp.run_until_idle()
    await server.crash()
    async with make_mp() as another:
        await another.append("order-2", NewMessage("new"))
        assert (await another.append("order-1", NewMessage("again", id=again))).position == lost.position
    with pytest.raises(LogMismatch, match="position 3 is another one"):
        await programs.one().__aenter__()


async def test_a_gap_where_the_newest_message_was(
    programs: Programs, make_mp: MakeMilepost, server: Lossy, database_url: str
) -> None:
    """Of the newest alone nobody could say whether it was removed for its age."""
    async with programs.one() as mp:
        await mp.append("order-1", NewMessage("kept"))
        await mp.run_until_idle()
        await server.flush()
        for _ in range(3):
            await mp.append("order-1", NewMessage("lost"))
            await mp.run_until_idle()
    await server.crash()
    async with make_mp() as another:
        for _ in range(2):
            await another.append("order-2", NewMessage("new"))
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            await another.append("order-3", NewMessage("never"), connection=connection)
            await connection.rollback()
        assert (await another.append("order-2", NewMessage("new"))).position == 5
    with pytest.raises(LogMismatch, match="position 2 is another one"):
        await programs.one().__aenter__()


async def test_what_survived_is_known_also_after_a_quiet_time(programs: Programs, server: Lossy) -> None:
    """A message comes each quarter of an hour: what is remembered of the one before stays."""
    async with programs.one() as mp:
        database = mp.runtime().services.database
        assert database is not None
        for number in range(10):
            if number == 9:
                await server.flush()
            await mp.append("order-1", NewMessage("kept"))
            await mp.run_until_idle()
            older = qualified("update {}.followed set at = at - interval '15 minutes'", mp)
            await database.execute(older, {})
        await server.crash()
        await until_available(mp)
        assert await rewound(mp) == 9


async def test_a_worker_that_knows_nothing_of_it_is_fenced_off_when_progress_is_taken_back(
    programs: Programs, make_mp: MakeMilepost, server: Lossy
) -> None:
    """It reaches progress and not the log, of which it remembers more than survived."""
    seen = programs.seen
    async with programs.one() as mp, mp.running():
        for _ in range(3):
            await mp.append("order-1", NewMessage("kept"))
        await until_stored(mp, 3)
        await server.flush()
        for _ in range(9):
            await mp.append("order-1", NewMessage("lost"))
        await until_stored(mp, 12)
        await mp.append("order-1", NewMessage("lost", "held"))
        await until(lambda: (13, "lost") in seen, 60)
        sample, can_sample = mp.log.horizon.sample, asyncio.Event()
        progress = mp.runtime().services.progress
        take, tried = progress.take, asyncio.Event()

        async def wait_and_sample() -> None:
            await can_sample.wait()
            await sample()

        async def try_to_take(*args: Any, **options: Any) -> Any:
            try:
                return await take(*args, **options)
            finally:
                tried.set()

        mp.log.horizon.sample = wait_and_sample  # type: ignore[method-assign]
        await server.crash()
        await until_available(mp)
        async with make_mp(progress=MemoryProgress()) as another:
            new = [(await another.append("order-2", NewMessage("new"))).position for _ in range(15)]
        progress.take = try_to_take  # type: ignore[method-assign]
        assert await rewound(mp) == 3
        programs.free.set()
        async with asyncio.timeout(60):
            await tried.wait()
        for _ in range(50):
            # Whoever has got the lane has the time to do harm with it.
            await mp.log.database.execute("select 1", {})
        can_sample.set()
        await until(lambda: {(position, "new") for position in new} <= set(seen), 60)


async def until_stored(mp: Milepost, position: int) -> None:
    """Waits until the lane has come to a position, as it is stored."""
    async with asyncio.timeout(60):
        while (await mp.manage("lines").info()).lanes[0].position < position:
            await asyncio.sleep(0.01)
