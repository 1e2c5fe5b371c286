"""Requests when nodes cannot be reached, or answers get lost."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import milepost
from client.proxy import Proxy
from contract.both import order
from milepost import Milepost, MilepostError, NewMessage, NotAllowed, Retry, Unavailable, UnknownSubscription
from milepost.client.client import Client
from milepost.server.access.permissions import ALL_ROLES, TokenRole
from milepost.server.access.tokens import TokenStore
from milepost.server.process import TlsCertificate
from server.websocket.conftest import serving
from servers import make_certificate
from support import MakeMilepost

"""A key that is made sooner than others."""


async def test_nobody_is_there(nobody: Callable[[], str]) -> None:
    async with milepost.connect([nobody(), nobody()], patience=0.2) as client:
        with pytest.raises(Unavailable, match=r"cannot be reached: .*; .*cannot be reached: ") as raised:
            await client.head()
        assert raised.value.transient
        with pytest.raises(Unavailable, match="cannot be reached"):
            await client.manage("shipping").delete()
        with pytest.raises(Unavailable):
            async with client.consumer("shipping"):
                pass
        with pytest.raises(Unavailable):
            await anext(client.follow())


async def test_another_node_is_asked(address: str, nobody: Callable[[], str]) -> None:
    async with milepost.connect([nobody(), address, nobody()]) as client:
        assert await client.head() == 0
        await client.append("a-1", order(1))
        assert [message.data["n"] async for message in client.read()] == [1]


async def test_a_call_waits_for_a_server_that_comes_back(proxy: Proxy, client: Client) -> None:
    await proxy.refuse()
    appending = asyncio.create_task(client.append("a-1", order(1)))
    async with asyncio.timeout(60):
        while not client._nodes.avoided():
            await asyncio.sleep(0.01)
    assert not appending.done()
    await proxy.listen()
    async with asyncio.timeout(60):
        assert (await appending).version == 1


async def test_an_append_whose_answer_was_lost_is_written_once(proxy: Proxy, client: Client, mp: Milepost) -> None:
    proxy.swallow()
    one = asyncio.create_task(client.append("a-1", [order(1), order(2)], expected=milepost.NO_STREAM))
    many = asyncio.create_task(client.append_many({"b-1": order(3), "b-2": NewMessage("a", id=None)}))
    while await mp.last("a-1") == 0 or await mp.last("b-1") == 0:
        await asyncio.sleep(0.02)
    proxy.pass_on()
    async with asyncio.timeout(60):
        appended, several = await one, await many
    assert (appended.version, appended.duplicate) == (2, False)
    assert [each.duplicate for each in several.values()] == [False, False]
    assert [await mp.last(stream) for stream in ("a-1", "b-1", "b-2")] == [2, 1, 1]


async def test_what_cannot_be_repeated_is_not(proxy: Proxy, client: Client, mp: Milepost) -> None:
    await client.create_subscription("shipping")
    proxy.swallow()
    with pytest.raises(Unavailable, match="may have been done"):
        await client.manage("shipping").delete()
    proxy.pass_on()
    async with asyncio.timeout(60):
        while await mp.subscriptions():
            await asyncio.sleep(0.02)


async def test_a_settlement_whose_answer_was_lost(proxy: Proxy, client: Client, mp: Milepost) -> None:
    await client.create_subscription("emails", tracking="all", retry=Retry(delay=60))
    await client.append("a-1", [order(n) for n in range(3)])
    late, *tasks = await client.pull("emails")
    await mp.settle(ack=late.token)
    proxy.swallow()
    settling = asyncio.create_task(client.settle(ack=[late, tasks[0]], retry=tasks[1]))
    async with asyncio.timeout(60):
        while not [each async for each in mp.manage("emails").deliveries(state="retrying")]:
            await asyncio.sleep(0.02)
        proxy.pass_on()
        settled = await settling
    assert (settled.moved, settled.refused) == (tuple(tasks), (late,))
    [row] = [each async for each in mp.manage("emails").deliveries()]
    assert (row.position, row.attempts) == (3, 1)


async def test_following_goes_on_where_it_was(proxy: Proxy, client: Client, mp: Milepost) -> None:
    seen: list[int] = []
    await mp.append("order-1", order(0))
    async with asyncio.timeout(60):
        async for message in client.follow(category="order"):
            seen.append(message.data["n"])
            if len(seen) == 1:
                proxy.cut()
                await mp.append("order-1", order(1))
            elif len(seen) == 2:
                await proxy.refuse()
                await mp.append("order-1", order(2))
                await proxy.listen()
            elif len(seen) == 4:
                break
            elif len(seen) == 3:
                await mp.append("order-1", order(3))
            if len(seen) == 1:
                await mp.append("other-1", order(9))
    assert seen == [0, 1, 2, 3]


async def test_a_token(mp: Milepost, make_mp: MakeMilepost, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = await TokenStore(mp).make("reader", [TokenRole.READ])
    async with serving(make_mp(), access="tokens") as server:
        async with milepost.connect(server.address, token=secret) as client:
            assert await client.head() == 0
            with pytest.raises(NotAllowed) as raised:
                await client.append("a-1", order(1))
            assert raised.value.role == "append"
            with pytest.raises(NotAllowed):
                async with client.consumer("shipping"):
                    pass
        async with milepost.connect(server.address) as client:
            with pytest.raises(NotAllowed):
                await client.head()
            with pytest.raises(NotAllowed):
                await anext(client.follow())
    assert secret not in caplog.text


async def test_a_token_that_is_for_some_groups_and_categories(
    mp: Milepost, make_mp: MakeMilepost, schema: str
) -> None:
    scope: dict[str, Any] = {"groups": ["billing"], "categories": ["order"]}
    secret = await TokenStore(mp).make("scoped", ALL_ROLES, **scope)
    for stream in ("order-1", "payment-1", "order-2"):
        await mp.append(stream, order(1))
    await mp.create_subscription("billing/everything")
    async with serving(make_mp(), access="tokens") as server:
        async with milepost.connect(server.address, token=secret, group="billing") as client:
            assert [message.stream async for message in client.read()] == ["order-1", "order-2"]
            await client.create_subscription("orders", category="order")
            async with client.consumer("orders") as consumer:
                assert (await anext(consumer)).message.stream == "order-1"
            for work in (
                client.append("payment-1", order(1)),
                client.create_subscription("all"),
                client.manage("everything").info(),
                client.manage("shipping/parcels").pause(),
                anext(client.follow(category="payment")),
                client.consumer("everything").__aenter__(),
            ):
                with pytest.raises(NotAllowed, match="for the group billing and the category order") as raised:
                    await work
                assert raised.value.role is None
            with pytest.raises(UnknownSubscription):
                await client.consumer("nothing").__aenter__()


async def test_a_certificate_is_checked(mp: Milepost, make_mp: MakeMilepost, tmp_path: Path) -> None:
    certificate, key = await asyncio.to_thread(make_certificate, tmp_path)
    await mp.create_subscription("shipping")
    async with serving(make_mp(), tls=TlsCertificate(str(certificate), str(key))) as server:
        address = server.address
        async with milepost.connect(address, ca=str(certificate)) as client:
            await client.append("a-1", order(1))
            async with client.consumer("shipping") as consumer, asyncio.timeout(60):
                await (await anext(consumer)).ack()
        async with milepost.connect(address) as client:
            for ask in (client.head(), client.append("a-1", order(2)), client.consumer("shipping").__aenter__()):
                with pytest.raises(MilepostError, match="not trusted.*give the file"):
                    await ask
