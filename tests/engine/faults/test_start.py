"""Where a new subscription begins: exact, whatever commits late."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from engine.pulling import Clock
from milepost import Message, Milepost, NewMessage
from support import Connection, MakeMilepost

Start = str | int | datetime


class Late:
    """Transactions of others: one appended before the start, one only began before it; both commit after it."""

    def __init__(self, mp: Milepost, appended: Connection, begun: Connection) -> None:
        self._mp = mp
        self._appended = appended
        self._begun = begun
        self.position = 0

    async def append(self) -> None:
        """The first appends, and stays open; the second has only looked."""
        await self._begun.execute("select 1")
        appended = await self._mp.append("order-9", named("appended"), connection=self._appended)
        self.position = appended.position

    async def commit(self) -> None:
        """Both end."""
        await self._mp.append("order-8", named("begun"), connection=self._begun)
        await self._begun.commit()
        await self._appended.commit()


def named(name: str) -> NewMessage:
    return NewMessage("placed", name)


@asynccontextmanager
async def late(mp: Milepost, url: str) -> AsyncIterator[Late]:
    async with await Connection.connect(url) as appended, await Connection.connect(url) as begun:
        yield Late(mp, appended, begun)


def program(make_mp: MakeMilepost, start: Start, seen: list[Any]) -> Milepost:
    mp = make_mp()

    @mp.subscription("new", category="order", start=start)
    async def handle(message: Message[Any]) -> None:
        seen.append(message.data)

    return mp


async def handled(
    mp: Milepost, make_mp: MakeMilepost, start: Start, others: Late, *, restarts: bool = True
) -> list[Any]:
    """What a subscription handles that is made while the transactions of others are open, over restarts."""
    seen: list[Any] = []
    if restarts:
        async with program(make_mp, start, seen).running():
            await mp.append("order-1", named("new-1"))
        async with program(make_mp, start, seen).running():
            await others.commit()
    else:
        async with program(make_mp, start, seen).running():
            await mp.append("order-1", named("new-1"))
            await others.commit()
    await mp.append("order-1", named("new-2"))
    await program(make_mp, start, seen).run_until_idle()
    return sorted(seen)


@pytest.mark.shard("faults", fast=["True"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_now_is_what_was_not_visible_then(
    mp: Milepost, make_mp: MakeMilepost, database_url: str, restarts: bool
) -> None:
    await mp.append("order-1", named("old"))
    async with late(mp, database_url) as others:
        await others.append()
        await mp.append("order-2", named("old above the horizon"))
        found = await handled(mp, make_mp, "now", others, restarts=restarts)
    assert found == ["appended", "begun", "new-1", "new-2"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_beginning_is_everything(
    mp: Milepost, make_mp: MakeMilepost, database_url: str, restarts: bool
) -> None:
    await mp.append("order-1", named("old"))
    async with late(mp, database_url) as others:
        await others.append()
        await mp.append("order-2", named("old above the horizon"))
        found = await handled(mp, make_mp, "beginning", others, restarts=restarts)
    assert found == ["appended", "begun", "new-1", "new-2", "old", "old above the horizon"]


@pytest.mark.parametrize(("offset", "wanted"), [(0, []), (-1, ["appended"])])
async def test_a_position_is_all_after_it(
    mp: Milepost, make_mp: MakeMilepost, database_url: str, offset: int, wanted: list[str]
) -> None:
    """Also what has a higher one and commits later, and nothing else."""
    await mp.append("order-1", named("old"))
    async with late(mp, database_url) as others:
        await others.append()
        await mp.append("order-2", named("after"))
        found = await handled(mp, make_mp, others.position + offset, others)
    assert found == [*("after",), *wanted, "begun", "new-1", "new-2"]


async def now(mp: Milepost) -> datetime:
    """The database's time, and later than all before."""
    await asyncio.sleep(0.002)
    rows = await mp.log.database.execute("select clock_timestamp()", {})
    await asyncio.sleep(0.002)
    moment: datetime = rows[0][0]
    return moment.astimezone(UTC)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_time_is_all_that_was_appended_at_it_or_later(
    mp: Milepost, make_mp: MakeMilepost, database_url: str, restarts: bool
) -> None:
    """What was appended after that time and commits late too."""
    await mp.append("order-1", named("old"))
    moment = await now(mp)
    async with late(mp, database_url) as others:
        await others.append()
        await mp.append("order-2", named("after"))
        found = await handled(mp, make_mp, moment, others, restarts=restarts)
    assert found == ["after", "appended", "begun", "new-1", "new-2"]


async def test_a_time_leaves_out_what_was_appended_before_and_commits_late(
    mp: Milepost, make_mp: MakeMilepost, database_url: str
) -> None:
    await mp.append("order-1", named("old"))
    async with late(mp, database_url) as others:
        await others.append()
        await mp.append("order-2", named("before"))
        moment = await now(mp)
        await mp.append("order-2", named("after"))
        found = await handled(mp, make_mp, moment, others)
    assert found == ["after", "begun", "new-1", "new-2"]


async def test_a_time_that_is_still_to_come(mp: Milepost, make_mp: MakeMilepost) -> None:
    seen: list[Any] = []
    moment = await now(mp) + timedelta(hours=1)
    await mp.append("order-1", named("old"))
    async with program(make_mp, moment, seen).running():
        await mp.append("order-1", named("early"))
        await Clock(mp).advance(3600)
        await mp.append("order-1", named("then"))
    await program(make_mp, moment, seen).run_until_idle()
    assert seen == ["then"]
