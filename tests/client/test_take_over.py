"""How long it takes until another node serves a subscription: each node a process of its own."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from time import monotonic

import httpx
import pytest

import milepost
from client.cluster import Node
from contract.both import orders
from contract.test_consuming import take, until
from milepost import Milepost
from milepost.client.consumer import Consumer

SLACK = 20.0
"""Seconds beyond what is promised: the machine may be busy, and everything else is a matter of milliseconds."""
SHORT = 5.0
"""Seconds: a lease that a test can wait for."""
LONG = 600.0
"""Seconds: a lease that nobody can have waited for."""


@pytest.fixture
def nodes(mp: Milepost, database_url: str, schema: str) -> Iterator[list[Node]]:
    """Two of them."""
    made = [Node(database_url, schema) for _ in range(2)]
    try:
        for node in made:
            node.launch()
        for node in made:
            node.wait()
        yield made
    finally:
        for node in made:
            node.remove()


@asynccontextmanager
async def at(first: Node, *others: Node) -> AsyncIterator[Consumer]:
    """A consumer that comes to this node, and knows of the others."""
    addresses = [node.address for node in (first, *others)]
    async with milepost.connect(addresses, patience=60) as client:
        async with client.consumer("shipping", capacity=1) as consumer:
            yield consumer


async def test_of_a_node_that_is_killed_within_the_lease(mp: Milepost, nodes: list[Node]) -> None:
    await mp.create_subscription("shipping", lease=SHORT)
    async with at(*nodes) as consumer:
        await orders(mp, 2)
        [first] = await take(consumer, 1)
        nodes[0].end(signal.SIGKILL)
        since = monotonic()
        [again] = await take(consumer, 1)
        assert monotonic() - since < SHORT + SLACK
        assert again.position == first.position
        await again.ack()
        [second] = await take(consumer, 1)
        assert (second.position, second.attempt) == (2, 1)


async def test_of_a_node_that_is_stopped_at_once(mp: Milepost, nodes: list[Node]) -> None:
    """What is open is settled with the node that is being stopped, and the next comes from the other."""
    await mp.create_subscription("shipping", lease=LONG)
    async with at(*nodes) as consumer:
        await orders(mp, 2)
        [first] = await take(consumer, 1)
        ending = asyncio.create_task(asyncio.to_thread(nodes[0].end, signal.SIGTERM))
        await until(lambda: _is_stopping(nodes[0]))
        since = monotonic()
        await first.ack()
        [second] = await take(consumer, 1)
        assert monotonic() - since < SLACK
        assert (second.position, second.attempt) == (2, 1)
        await second.ack()
        assert await ending == 0
    await mp.manage("shipping").caught_up(2, timeout=20)


async def _is_stopping(node: Node) -> bool:
    """Whether it has had its signal."""
    try:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"{node.address}/readyz")).status_code != 200
    except httpx.TransportError:
        return True
