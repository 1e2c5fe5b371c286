"""A client that follows a log that loses its newest commits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from client.proxy import Proxy
from lossy import Lossy, lossy, until_available
from milepost import InvalidMessage, Milepost, NewMessage
from milepost.client import messages as client_following
from milepost.client.client import Client
from milepost.log.query import Page
from patience import until
from server.websocket.conftest import serving
from support import MakeMilepost

KEPT, LOST, NEW = 30, 20, 60

Seen = list[tuple[int, str]]


@pytest.fixture
async def disk(database_url: str, schema: str) -> AsyncIterator[Lossy]:
    async with lossy(database_url, schema) as disk:
        yield disk


@asynccontextmanager
async def follower(client: Client, after: int = 0) -> AsyncIterator[Seen]:
    """The positions and types that a client is given."""
    seen: Seen = []

    async def follow() -> None:
        async for message in client.follow(category="order", after=after):
            seen.append((message.position, message.type))

    task = asyncio.create_task(follow())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait([task])


async def append(mp: Milepost, type: str, count: int) -> Seen:
    return [((await mp.append("order-1", NewMessage(type, number))).position, type) for number in range(count)]


async def lose(mp: Milepost, make_mp: MakeMilepost, disk: Lossy) -> Seen:
    """Crash, and return what is appended at the positions of what was lost."""
    await disk.crash()
    await until_available(mp)
    async with make_mp() as another:
        new = await append(another, "new", NEW)
    assert new[0][0] == KEPT + 1
    return new


async def test_while_it_is_connected(
    mp: Milepost, make_mp: MakeMilepost, client: Client, proxy: Proxy, disk: Lossy
) -> None:
    kept = await append(mp, "kept", KEPT)
    await disk.flush()
    async with follower(client) as seen:
        await until(lambda: len(seen) == KEPT, 60)
        connections = proxy.connections
        lost = await append(mp, "lost", LOST)
        await until(lambda: len(seen) == KEPT + LOST, 60)
        new = await lose(mp, make_mp, disk)
        await until(lambda: new[-1] in seen, 60, lambda: seen)
        assert seen == kept + lost + new
        assert proxy.connections == connections


@pytest.mark.parametrize("remembered", [10_000, 0])
async def test_while_it_is_away(
    mp: Milepost,
    make_mp: MakeMilepost,
    client: Client,
    proxy: Proxy,
    disk: Lossy,
    monkeypatch: pytest.MonkeyPatch,
    remembered: int,
) -> None:
    """It comes back to a server that never knew the life before; without a memory, some come again."""
    monkeypatch.setattr(client_following, "REMEMBERED_MESSAGES", remembered)
    kept = await append(mp, "kept", KEPT)
    await disk.flush()
    lost = await append(mp, "lost", LOST)
    async with follower(client) as seen:
        await until(lambda: len(seen) == KEPT + LOST, 60)
        await proxy.refuse()
        new = await lose(mp, make_mp, disk)
        async with serving(make_mp()) as server:
            proxy.lead_to(server.address)
            await proxy.listen()
            await until(lambda: new[-1] in seen, 60, lambda: seen)
            last = await append(mp, "last", 1)
            await until(lambda: last[0] in seen, 60, lambda: seen)
            again = [each for each in seen[KEPT + LOST :] if each in kept]
            assert seen == kept + lost + again + new + last
            assert bool(again) is not remembered
            await proxy.refuse()


async def test_beyond_the_head(mp: Milepost, client: Client) -> None:
    await append(mp, "a", 3)
    async with asyncio.timeout(60):
        with pytest.raises(InvalidMessage, match="ends at position 3, before 4") as raised:
            await anext(client.follow(after=4))
    assert raised.value.field == "after"


async def test_it_is_cut_off_before_the_first_message(
    mp: Milepost,
    make_mp: MakeMilepost,
    client: Client,
    proxy: Proxy,
    disk: Lossy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it knows of the log is what the server told when it began."""
    kept = await append(mp, "kept", KEPT)
    await disk.flush()
    await append(mp, "lost", LOST)
    told: list[int] = []
    add = client_following._RecentMessages.add

    def note_and_add(handed_out: client_following._RecentMessages, page: Page) -> Page:
        told.append(len(page))
        return add(handed_out, page)

    monkeypatch.setattr(client_following._RecentMessages, "add", note_and_add)
    async with follower(client, after=KEPT + LOST) as seen:
        # The server answered, and told where it began.
        await until(lambda: told == [0, 0], 60)
        await proxy.refuse()
        new = await lose(mp, make_mp, disk)
        await proxy.listen()
        await until(lambda: new[-1] in seen, 60, lambda: seen)
        assert seen[-NEW:] == new
        assert seen[:-NEW] == kept[len(kept) + NEW - len(seen) :]
        await proxy.refuse()
