"""What it takes until another node serves: the lease of one that is killed, nothing of one that is stopped."""

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest

import milepost
from client.cluster import Node
from contract.both import orders
from contract.test_consuming import take, until
from milepost import Milepost
from milepost.client.consumer import ClientConsumer
from server.websocket.conftest import Serving, serving
from support import MakeMilepost

SHORT = 5.0
"""Seconds: a lease that a test can wait for."""
LONG = 600.0
"""Seconds: a lease that nobody can have waited for."""


@pytest.fixture
def node(mp: Milepost, database_url: str, schema: str) -> Iterator[Node]:
    """A node in a process of its own."""
    node = Node(database_url, schema)
    try:
        yield node.start()
    finally:
        node.remove()


@asynccontextmanager
async def at(first: Node | Serving, *others: Serving) -> AsyncIterator[ClientConsumer]:
    """A consumer that comes to this node, and knows of the others."""
    addresses = [node.address for node in (first, *others)]
    async with milepost.connect(addresses, patience=60) as client:
        async with client.consumer("shipping", capacity=1) as consumer:
            yield consumer


async def test_of_a_node_that_is_killed_within_the_lease(mp: Milepost, make_mp: MakeMilepost, node: Node) -> None:
    await mp.create_subscription("shipping", lease=SHORT)
    async with serving(make_mp()) as other, at(node, other) as consumer:
        await orders(mp, 2)
        [first] = await take(consumer, 1)
        node.end(signal.SIGKILL)
        [again] = await take(consumer, 1)
        assert again.position == first.position
        await again.ack()
        [second] = await take(consumer, 1)
        assert (second.position, second.attempt) == (2, 1)


async def test_of_a_node_that_is_stopped_at_once(mp: Milepost, make_mp: MakeMilepost) -> None:
    """What is open is settled with the node that is being stopped, and the next comes from the other."""
    await mp.create_subscription("shipping", lease=LONG)
    stopped, other = serving(make_mp(), grace=60), serving(make_mp())
    async with stopped as node, other as there, at(node, there) as consumer:
        await orders(mp, 2)
        [first] = await take(consumer, 1)
        node.stop()
        await until(lambda: _is_stopping(node))
        await first.ack()
        [second] = await take(consumer, 1)
        assert (second.position, second.attempt) == (2, 1)
        await second.ack()
        await node.end()
    await mp.manage("shipping").caught_up(2, timeout=60)


async def _is_stopping(node: Serving) -> bool:
    """Whether it has had its signal."""
    try:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"{node.address}/readyz")).status_code != 200
    except httpx.TransportError:
        return True
