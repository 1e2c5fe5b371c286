"""Consumers whose connection breaks."""

import asyncio

import pytest

from client.proxy import Proxy
from contract.both import order, orders
from contract.test_consuming import take, until
from milepost import ConsumerClosed, Lost, Milepost, Retry
from milepost.client.client import Client
from milepost.client.consumer import ClientConsumer
from server.websocket.conftest import Serving


@pytest.fixture
async def shipping(client: Client) -> Client:
    """A client with something to take."""
    await client.create_subscription("shipping", category="order", retry=Retry(delay=0))
    await orders(client, 6)
    return client


async def test_a_consumer_comes_back_with_what_it_has(proxy: Proxy, shipping: Client) -> None:
    async with shipping.consumer("shipping") as consumer:
        taken = await take(consumer, 3)
        proxy.cut()
        for delivery in taken:
            await delivery.ack()
        rest = await take(consumer, 3)
        assert [(each.position, each.attempt) for each in rest] == [(4, 1), (5, 1), (6, 1)]
        await consumer.settle(ack=rest)
        assert consumer.statistics().acked == 6
    await shipping.manage("shipping").caught_up(6, timeout=60)


async def test_what_was_settled_before_the_answer_got_lost_is_settled(proxy: Proxy, shipping: Client) -> None:
    async with shipping.consumer("shipping", capacity=3) as consumer:
        taken = await take(consumer, 3)
        proxy.swallow()
        acking = asyncio.create_task(consumer.settle(ack=taken))
        await until(lambda: _is_handled(shipping, proxy))
        proxy.pass_on()
        async with asyncio.timeout(60):
            assert (await acking).moved == (1, 2, 3)
        assert [each.attempt for each in await take(consumer, 3)] == [1, 1, 1]


async def _is_handled(client: Client, proxy: Proxy) -> bool:
    """Whether the connection broke since it was to swallow answers."""
    return proxy.connections > 2


async def test_one_that_stays_away_for_too_long(
    proxy: Proxy,
    shipping: Client,
    mp: Milepost,
    server: Serving,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.app.connections.resume_seconds = 0.5
    async with shipping.consumer("shipping", capacity=2) as consumer:
        first, second = await take(consumer, 2)
        await proxy.refuse()
        with pytest.raises(Lost, match="position 1 was with a server that could not be reached"):
            await first.ack()
        async with second:
            pass
        async with mp.consumer("shipping") as other:
            # Standing by: the server has it until its consumer is lost, and then this process.
            taken = await take(other, 6)
            assert sorted(each.position for each in taken) == [1, 2, 3, 4, 5, 6]
            assert {each.attempt for each in taken if each.position < 3} == {2}
            await other.settle(ack=taken)
        await proxy.listen()
        await mp.append("order-1", order(9))
        assert [each.position for each in await take(consumer, 1)] == [7]
    assert "lost 2 deliveries that were open here, at 1, 2" in caplog.text


async def test_changes_while_it_is_away(proxy: Proxy, shipping: Client) -> None:
    async with shipping.consumer("shipping", capacity=1) as consumer:
        [first] = await take(consumer, 1)
        await proxy.refuse()
        changing = asyncio.create_task(consumer.configure(capacity=6))
        await until(lambda: _is_away(consumer))
        await proxy.listen()
        async with asyncio.timeout(60):
            await changing
        assert len(await take(consumer, 5)) == 5
        await first.ack()


async def _is_away(consumer: ClientConsumer) -> bool:
    """Whether its connection has broken, and it was asked for something."""
    connection = consumer._connection
    return connection is not None and connection._socket is None and bool(connection._requests)


async def test_draining_while_it_is_away(proxy: Proxy, shipping: Client) -> None:
    async with shipping.consumer("shipping", capacity=2) as consumer:
        taken = await take(consumer, 2)
        await proxy.refuse()
        draining = asyncio.create_task(consumer.drain())
        await until(lambda: _is_away(consumer))
        await proxy.listen()
        async with asyncio.timeout(60):
            await draining
            await consumer.settle(ack=taken)
            assert await anext(consumer, None) is None
        assert consumer.closed == "drained"


async def test_a_subscription_that_is_deleted_while_it_is_away(
    proxy: Proxy, shipping: Client, mp: Milepost, server: Serving
) -> None:
    server.app.connections.resume_seconds = 0.5
    async with shipping.consumer("shipping", capacity=1) as consumer:
        await proxy.refuse()
        await mp.manage("shipping").delete()
        await proxy.listen()
        async with asyncio.timeout(60):
            with pytest.raises(ConsumerClosed) as raised:
                while True:
                    await anext(consumer)
        assert raised.value.reason == "deleted"


async def test_the_end_of_the_client_ends_its_consumers(shipping: Client) -> None:
    consumer = shipping.consumer("shipping")
    async with consumer:
        await take(consumer, 1)
        await shipping.__aexit__(None, None, None)
        with pytest.raises(ConsumerClosed) as raised:
            await anext(consumer)
        assert raised.value.reason == "closed"
        await shipping.__aenter__()


async def test_blocks_are_told_when_the_consumer_leaves(shipping: Client) -> None:
    async with shipping.consumer("shipping") as consumer:
        for delivery in await take(consumer, 6):
            async with delivery:
                pass
    assert [each async for each in shipping.manage("shipping").deliveries()] == []
    await shipping.manage("shipping").caught_up(6, timeout=60)


async def test_many_cuts_under_load(proxy: Proxy, shipping: Client, mp: Milepost) -> None:
    """Within the time for which a consumer is kept, a cut repeats nothing and loses nothing."""
    await mp.append("order-1", [order(n) for n in range(1000)])
    seen: dict[int, int] = {}
    async with shipping.consumer("shipping", capacity=50) as consumer:
        while len(seen) < 1006:
            [delivery] = await take(consumer, 1)
            seen[delivery.position] = seen.get(delivery.position, 0) + 1
            if len(seen) % 250 == 0:
                proxy.cut()
            async with delivery:
                pass
    assert set(seen.values()) == {1}
    await shipping.manage("shipping").caught_up(1006, timeout=60)
