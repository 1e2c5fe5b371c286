"""Following over HTTP when the log lost its newest commits: other messages stand at the same positions."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lossy import Lossy, lossy, until_available
from milepost import Milepost, NewMessage
from milepost.names import MAX_POSITION_NUMBER
from server.followers import Events, following
from server.websocket.conftest import Serve
from support import MakeMilepost

KEPT, LOST, NEW = 3, 20, 30


@pytest.fixture
async def disk(database_url: str, schema: str) -> AsyncIterator[Lossy]:
    async with lossy(database_url, schema) as disk:
        yield disk


async def append(mp: Milepost, type: str, count: int) -> list[tuple[int, str]]:
    """Append messages one by one, and return their positions and types."""
    return [((await mp.append("order-1", NewMessage(type, number))).position, type) for number in range(count)]


async def messages(events: Events, count: int) -> list[tuple[int, str]]:
    async with asyncio.timeout(60):
        return [(message["position"], message["type"]) for message in await events.messages(count)]


async def ids(events: Events, count: int) -> list[str]:
    async with asyncio.timeout(60):
        return [(await events.next())["id"] for _ in range(count)]


async def until_new(events: Events, new: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return what comes before the new messages, and see that these come in order."""
    before: list[tuple[int, str]] = []
    while (found := (await messages(events, 1))[0]) != new[0]:
        before.append(found)
    assert await messages(events, len(new) - 1) == new[1:]
    return before


async def lose(mp: Milepost, make_mp: MakeMilepost, disk: Lossy) -> list[tuple[int, str]]:
    """Crash, and return what is appended at the positions of what was lost."""
    await disk.crash()
    await until_available(mp)
    async with make_mp() as another:
        new = await append(another, "new", NEW)
    assert new[0][0] == KEPT + 1
    return new


def coming_back(way: str, id: str) -> dict[str, Any]:
    """How a follower says what it saw."""
    return {"headers": {"last-event-id": id}} if way == "Last-Event-ID" else {"params": {"after": id}}


@pytest.mark.shard("variants", fast=["Last-Event-ID"])
@pytest.mark.parametrize("way", ["Last-Event-ID", "after"])
async def test_whoever_comes_back_to_a_server_that_knows_nothing(
    mp: Milepost, make_mp: MakeMilepost, serve: Serve, disk: Lossy, way: str
) -> None:
    await append(mp, "kept", KEPT)
    await disk.flush()
    await append(mp, "lost", LOST)
    first = await serve()
    async with first.client() as client, following(client) as events:
        seen = await ids(events, KEPT + LOST)
    await first.end()
    new = await lose(mp, make_mp, disk)
    async with (await serve()).client() as client:
        async with following(client, **coming_back(way, seen[-1])) as events:
            before = await until_new(events, new)
            # Which of those that are left it had seen is known to a few.
            assert {kind for _, kind in before} <= {"kept"}
            [newest] = await append_and_id(mp, events)
        async with following(client, **coming_back(way, seen[KEPT - 1])) as events:
            assert await messages(events, NEW) == new
        async with following(client, **coming_back(way, newest)) as events:
            last = await append(mp, "newest", 1)
            assert await messages(events, 1) == last


async def append_and_id(mp: Milepost, events: Events) -> list[str]:
    await append(mp, "newer", 1)
    return await ids(events, 1)


async def test_whoever_stays_connected(mp: Milepost, make_mp: MakeMilepost, serve: Serve, disk: Lossy) -> None:
    """What ids name from then on is in the log as it is now: with the last it comes back after a second loss."""
    await append(mp, "kept", KEPT)
    await disk.flush()
    server = await serve()
    async with server.client() as client, following(client) as events:
        seen = await ids(events, KEPT)
        await append(mp, "lost", LOST)
        seen += await ids(events, LOST)
        new = await lose(mp, make_mp, disk)
        assert await messages(events, 1) == new[:1]
        assert await messages(events, NEW - 1) == new[1:]
        await disk.flush()
        await append(mp, "lost", LOST)
        seen += await ids(events, LOST)
    await server.end()
    await disk.crash()
    await until_available(mp)
    newer = await append(mp, "newer", NEW)
    async with (await serve()).client() as client:
        async with following(client, headers={"last-event-id": seen[-1]}) as events:
            assert {kind for _, kind in await until_new(events, newer)} <= {"kept", "new"}


async def test_two_lives_later(mp: Milepost, make_mp: MakeMilepost, serve: Serve, disk: Lossy) -> None:
    """The present life began behind the positions that were lost in an earlier one."""
    await append(mp, "kept", KEPT)
    await disk.flush()
    await append(mp, "lost", LOST)
    async with (await serve()).client() as client, following(client) as events:
        seen = await ids(events, KEPT + LOST)
    new = await lose(mp, make_mp, disk)
    await disk.flush()
    await disk.crash()
    await until_available(mp)
    async with (await serve()).client() as client:
        async with following(client, headers={"last-event-id": seen[-1]}) as events:
            assert {kind for _, kind in await until_new(events, new)} <= {"kept"}


@pytest.mark.parametrize("after", ["now", str(KEPT + LOST)])
async def test_whoever_was_cut_off_before_the_first_message(
    mp: Milepost, make_mp: MakeMilepost, serve: Serve, disk: Lossy, after: str
) -> None:
    await append(mp, "kept", KEPT)
    await disk.flush()
    await append(mp, "lost", LOST)
    async with (await serve()).client() as client, following(client, params={"after": after}) as events:
        async with asyncio.timeout(60):
            assert "retry" in await events.block()
            begun = (await events.block())["id"]
    assert begun.startswith(f"{KEPT + LOST}-")
    new = await lose(mp, make_mp, disk)
    async with (await serve()).client() as client:
        async with following(client, headers={"last-event-id": begun}) as events:
            assert {kind for _, kind in await until_new(events, new)} <= {"kept"}


async def test_now_leaves_out_nothing_that_an_open_transaction_holds_back(
    mp: Milepost, serve: Serve, database_url: str
) -> None:
    """The id at the beginning is behind what is open."""
    await append(mp, "old", 2)
    async with mp.log.database.connection() as connection:
        async with connection.transaction():
            await mp.append("order-2", NewMessage("open"), connection=connection)
            await append(mp, "old", 2)
            async with (await serve()).client() as client:
                async with following(client, params={"after": "now"}) as events, asyncio.timeout(60):
                    assert "retry" in await events.block()
                    assert (await events.block())["id"].startswith("2-")


@pytest.mark.shard("variants", fast=["Last-Event-ID-4", "after-9223372036854775807"])
@pytest.mark.parametrize("after", [4, 1000, MAX_POSITION_NUMBER])
@pytest.mark.parametrize("way", ["Last-Event-ID", "after"])
async def test_a_position_beyond_the_head(mp: Milepost, serve: Serve, way: str, after: int) -> None:
    """It is answered at once, and not waited for."""
    await append(mp, "a", 3)
    async with (await serve()).client() as client:
        async with following(client, **coming_back(way, str(after))) as events, asyncio.timeout(60):
            found = await events.next()
            assert found["event"] == "problem"
            assert '"/problems/beyond-head"' in found["data"]
            assert '"head":3' in found["data"]
            with pytest.raises(StopAsyncIteration):
                await events.next()
        async with following(client, **coming_back(way, "3")) as events:
            assert await messages_after(mp, events) == [(4, "b")]


async def messages_after(mp: Milepost, events: Events) -> list[tuple[int, str]]:
    await append(mp, "b", 1)
    return await messages(events, 1)


@pytest.mark.shard("hostile", fast=["2-00000000"])
@pytest.mark.parametrize(
    "id", ["2-00000000", f"{MAX_POSITION_NUMBER}-ffffffff", "0-00000000", ".".join(["3-12345678"] * 32)]
)
async def test_ids_that_no_event_had(mp: Milepost, serve: Serve, id: str) -> None:
    """What they name is not in the log: it is given from the beginning."""
    await append(mp, "a", 3)
    async with (await serve()).client() as client, following(client, headers={"last-event-id": id}) as events:
        assert await messages(events, 3) == [(1, "a"), (2, "a"), (3, "a")]
