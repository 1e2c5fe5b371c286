"""Servers that tell a wrong address: they notice it themselves, and clients that are sent there come back."""

import asyncio
import logging
from collections.abc import Callable

import pytest

import milepost
from client.odd import answering, http
from contract.both import order
from contract.test_consuming import take, until
from milepost import Milepost
from milepost.server import nodes
from server.websocket.conftest import serving
from server.websocket.talking import consuming
from support import MakeMilepost

WARNING = "where clients of other servers are sent to reach this one, "


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What servers log, which look for themselves at once."""
    monkeypatch.setattr(nodes, "SELF_CHECK_PAUSE_SECONDS", ())
    caplog.set_level(logging.WARNING)
    return caplog


async def test_nobody_answers(
    make_mp: MakeMilepost, warned: pytest.LogCaptureFixture, nobody: Callable[[], str]
) -> None:
    address = nobody()
    async with serving(make_mp(), advertise=address):
        await until(lambda: _says(warned, f"{address}, {WARNING}does not answer"))


async def test_another_server_answers(make_mp: MakeMilepost, warned: pytest.LogCaptureFixture) -> None:
    async with serving(make_mp()) as other, serving(make_mp(), advertise=other.address):
        await until(lambda: _says(warned, f"{other.address}, {WARNING}is answered by another server"))


async def test_something_else_answers(make_mp: MakeMilepost, warned: pytest.LogCaptureFixture) -> None:
    async with answering(http("404 Not Found", b"")) as odd, serving(make_mp(), advertise=odd):
        await until(lambda: _says(warned, f"{odd}, {WARNING}is answered by something else"))


async def test_its_own_address_is_nothing_to_talk_about(
    make_mp: MakeMilepost, warned: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    ask = nodes._healthz_head

    async def noted(address: str) -> bytes:
        asked.append(await ask(address))
        return asked[-1]

    monkeypatch.setattr(nodes, "_healthz_head", noted)
    async with serving(make_mp()) as server:
        await until(lambda: _is_asked(asked))
        assert all(server.app.connections.id.encode() in answer for answer in asked)
    assert WARNING not in warned.text


async def test_a_client_that_was_sent_to_something_else_comes_back(
    mp: Milepost, make_mp: MakeMilepost, warned: pytest.LogCaptureFixture
) -> None:
    await mp.create_subscription("shipping", category="order")
    async with answering(http("404 Not Found", b"")) as odd, serving(make_mp(), advertise=odd) as wrong:
        async with serving(make_mp()) as right, milepost.connect(right.address) as client:
            async with consuming(wrong.address, routes=[{"capacity": 0}]) as owner, asyncio.timeout(60):
                async with client.consumer("shipping") as consumer:
                    assert consumer.standby
                    await mp.append("order-1", order(1))
                    await owner.say("leave")
                    await owner.closed()
                    assert [each.message.data["n"] for each in await take(consumer, 1)] == [1]
    assert f"{odd}, where another node sent it, is not the one meant" in warned.text


async def test_a_client_does_not_go_where_it_was_not_told_to_trust(
    mp: Milepost, make_mp: MakeMilepost, warned: pytest.LogCaptureFixture
) -> None:
    await mp.create_subscription("shipping", category="order")
    elsewhere = "http://milepost.invalid:8480"
    async with serving(make_mp(), advertise=elsewhere) as owner_server, serving(make_mp()) as right:
        async with consuming(owner_server.address, routes=[{"capacity": 0}]) as owner, asyncio.timeout(60):
            async with milepost.connect(right.address) as client, client.consumer("shipping") as consumer:
                assert consumer.standby
                assert f"was sent to {elsewhere}, where it does not go" in warned.text
                await mp.append("order-1", order(1))
                await owner.say("leave")
                await owner.closed()
                assert [each.message.data["n"] for each in await take(consumer, 1)] == [1]
    assert "cannot be reached" not in warned.text


async def _says(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return words in caplog.text


async def _is_asked(asked: list[bytes]) -> bool:
    return len(asked) == nodes.SELF_CHECK_ATTEMPTS
