"""Filters, priorities and strategies hold over all consumers, each of which came to another node first."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import milepost
from contract.both import order
from contract.test_consuming import take, until
from milepost import Milepost, NewMessage
from milepost.client.consumer import ClientConsumer
from server.websocket.conftest import serving
from support import MakeMilepost

Come = Callable[..., Awaitable[ClientConsumer]]
"""One more consumer, of a client that asks the next node first."""


@pytest.fixture
async def addresses(mp: Milepost, make_mp: MakeMilepost) -> AsyncIterator[list[str]]:
    """Of three nodes, each with a `Milepost` of its own."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(serving(make_mp())) for _ in range(3)]
        yield [node.address for node in nodes]


@pytest.fixture
async def come(addresses: list[str]) -> AsyncIterator[Come]:
    async with AsyncExitStack() as stack:
        came = 0

        async def start(**options: Any) -> ClientConsumer:
            nonlocal came
            at = came % len(addresses)
            came += 1
            client = await stack.enter_async_context(milepost.connect(addresses[at:] + addresses[:at]))
            consumer = await stack.enter_async_context(client.consumer("shipping", **options))
            await until(lambda: _is_served(consumer))
            return consumer

        yield start


async def _is_served(consumer: ClientConsumer) -> bool:
    return not consumer.standby


async def place(mp: Milepost, count: int, *, streams: int = 1000) -> None:
    """So many orders, in streams in turn."""
    await mp.append_many(
        {f"order-{n}": [order(each) for each in range(n, count, streams)] for n in range(min(count, streams))}
    )


def positions(deliveries: list[Any]) -> list[int]:
    return [each.position for each in deliveries]


async def test_filters_and_priorities(mp: Milepost, come: Come) -> None:
    await mp.create_subscription("shipping")
    rest = await come()
    small = await come(where="n < 3", priority=1)
    first = await come(where="n == 0", priority=9)
    await place(mp, 6)
    assert positions(await take(first, 1)) == [1]
    assert positions(await take(small, 2)) == [2, 3]
    assert positions(await take(rest, 3)) == [4, 5, 6]
    assert [consumer.statistics().delivered for consumer in (first, small, rest)] == [1, 2, 3]


async def test_a_full_one_spills_nothing_to_a_lower_priority_at_another_node(mp: Milepost, come: Come) -> None:
    await mp.create_subscription("shipping")
    low = await come()
    high = await come(priority=5, capacity=1)
    await place(mp, 2)
    [held] = await take(high, 1)
    await held.ack()
    assert positions(await take(high, 1)) == [2]
    assert low.statistics().delivered == 0


async def test_round_robin(mp: Milepost, come: Come) -> None:
    await mp.create_subscription("shipping")
    consumers = [await come() for _ in range(3)]
    await place(mp, 9)
    assert [positions(await take(each, 3)) for each in consumers] == [[1, 4, 7], [2, 5, 8], [3, 6, 9]]


async def test_dispatch_to_single(mp: Milepost, come: Come) -> None:
    await mp.create_subscription("shipping", strategy="dispatch_to_single")
    consumers = [await come(capacity=3) for _ in range(3)]
    await place(mp, 7)
    assert positions(await take(consumers[0], 3)) == [1, 2, 3]
    assert positions(await take(consumers[1], 3)) == [4, 5, 6]
    assert positions(await take(consumers[2], 1)) == [7]


async def test_pinned(mp: Milepost, come: Come) -> None:
    await mp.create_subscription("shipping", strategy="pinned")
    consumers = [await come() for _ in range(3)]
    await place(mp, 60, streams=12)
    taken = await _everything(consumers, 60)
    streams = [{each.message.stream for each in of_one} for of_one in taken]
    _is_shared_out(streams, {f"order-{n}" for n in range(12)})


async def test_pinned_by_correlation(mp: Milepost, come: Come) -> None:
    await mp.create_subscription("shipping", strategy="pinned_by_correlation")
    consumers = [await come() for _ in range(3)]
    correlations = [f"c{n % 12}" for n in range(60)]
    await mp.append_many(
        {f"order-{n}": NewMessage("a", metadata={"correlation_id": each}) for n, each in enumerate(correlations)}
    )
    taken = await _everything(consumers, 60)
    found = [{each.message.metadata["correlation_id"] for each in of_one} for of_one in taken]
    _is_shared_out(found, set(correlations))


async def _everything(consumers: list[ClientConsumer], count: int) -> list[list[Any]]:
    """What each has once all is out; nothing of it is settled."""

    async def is_out() -> bool:
        return sum(each.statistics().in_flight for each in consumers) == count

    await until(is_out)
    return [await take(each, each.statistics().in_flight) for each in consumers]


def _is_shared_out(shares: list[set[str]], everything: set[str]) -> None:
    """Each to one consumer, and some to each."""
    assert all(shares)
    assert set().union(*shares) == everything
    assert sum(map(len, shares)) == len(everything)
