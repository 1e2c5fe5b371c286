"""A server whose PostgreSQL ends and comes back: its clients wait, and go on."""

import asyncio
from collections.abc import Iterator

import pytest

import milepost
from contract.both import order
from milepost import Milepost, Retry
from milepost.client.consumer import ClientConsumer
from server.websocket.conftest import serving
from servers import Server, embedded_binaries


@pytest.fixture
def database() -> Iterator[Server]:
    server = Server(embedded_binaries()).create()
    yield server
    server.remove()


@pytest.mark.parametrize("mode", ["fast", pytest.param("immediate", marks=pytest.mark.shard("processes"))])
async def test_clients_go_on_after_a_restart(database: Server, mode: str) -> None:
    async with serving(Milepost(database.url())) as server:
        await _go_on(database, server.address, mode)


async def _go_on(database: Server, address: str, mode: str) -> None:
    async with milepost.connect(address, patience=60) as client:
        await client.create_subscription("shipping", category="order", lease=5, retry=Retry(delay=0))
        await client.create_subscription("emails", category="order", tracking="all")
        followed = client.follow(category="order")
        async with client.consumer("shipping") as consumer, asyncio.timeout(120):
            await client.append("order-1", order(0))
            assert await settled(consumer, {0}) == {0}
            assert (await anext(followed)).data["n"] == 0
            await asyncio.to_thread(database.stop, mode)
            appending = asyncio.create_task(client.append("order-1", order(1)))
            await asyncio.to_thread(database.start)
            appended = await appending
            assert appended.version == 2
            assert (await anext(followed)).data["n"] == 1
            # What was done and not written before may come again.
            assert await settled(consumer, {1}) <= {0, 1}
            assert [task.message.data["n"] for task in await client.pull("emails", wait=10)] == [0, 1]
        await followed.aclose()
        await client.manage("shipping").caught_up(appended, timeout=60)


async def settled(consumer: ClientConsumer, wanted: set[int]) -> set[int]:
    """Settles what comes, until all that is wanted has."""
    seen: set[int] = set()
    while not wanted <= seen:
        async with await anext(consumer) as message:
            seen.add(message.data["n"])
    return seen
