"""Following over HTTP, with a network between."""

import asyncio
import gc
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import psutil
import pytest

from engine.consuming.taking import until
from milepost import Message, Milepost, NewMessage
from milepost.log.postgres.feed import Feed
from milepost.log.query import Page
from milepost.log.resume import ResumeTrail
from milepost.server import follow as http_following
from milepost.server.access import authentication
from milepost.server.access.authentication import Authenticator
from milepost.server.access.permissions import TokenRole
from milepost.server.access.tokens import TokenStore
from milepost.server.http.sse import SSE_CHUNK_BYTES
from milepost.server.limits import Limits
from milepost.server.problems import INVALID, TOO_MANY
from milepost.server.shutdown import Shutdown
from server.answers import problem
from server.followers import following
from server.process import StartServer
from server.websocket.conftest import Serve
from support import expire_token


def positions(messages: list[dict[str, Any]]) -> list[int]:
    return [message["position"] for message in messages]


async def test_history_then_what_arrives(mp: Milepost, serve: Serve) -> None:
    await mp.append("order-1", [NewMessage("a", number) for number in range(3)])
    async with (await serve()).client() as client, following(client) as events:
        assert positions(await events.messages(3)) == [1, 2, 3]
        await mp.append("order-2", NewMessage("b", {"x": 1}, properties={"p": 1}))
        [message] = await events.messages(1)
        assert (message["position"], message["data"], message["properties"]) == (4, {"x": 1}, {"p": 1})


async def test_the_id_of_an_event_begins_with_its_position(mp: Milepost, serve: Serve) -> None:
    await mp.append("order-1", [NewMessage("a")] * 2)
    async with (await serve()).client() as client, following(client) as events:
        assert (await events.block()) == {"retry": "1000"}
        assert (await events.block()) == {"id": "0"}
        assert [(await events.next())["id"].partition("-")[0] for _ in range(2)] == ["1", "2"]


async def test_whoever_comes_back_goes_on(mp: Milepost, serve: Serve) -> None:
    await mp.append("order-1", [NewMessage("a")] * 5)
    async with (await serve()).client() as client:
        async with following(client, headers={"last-event-id": "3"}, params={"after": "0"}) as events:
            assert positions(await events.messages(2)) == [4, 5]
        async with following(client, params={"after": 4}) as events:
            assert positions(await events.messages(1)) == [5]


async def test_only_what_is_new(mp: Milepost, serve: Serve) -> None:
    await mp.append("order-1", [NewMessage("a")] * 5)
    async with (await serve()).client() as client, following(client, params={"after": "now"}) as events:
        await events.block()
        # It begins some time after its first words: what is new by then is not known.
        appending = asyncio.create_task(append_slowly(mp))
        [message] = await events.messages(1)
        assert message["position"] > 5
        appending.cancel()


async def append_slowly(mp: Milepost) -> None:
    while True:
        await mp.append("order-1", NewMessage("a"))
        await asyncio.sleep(0.05)


async def test_choosing(mp: Milepost, serve: Serve) -> None:
    for number in range(6):
        await mp.append(f"order-{number % 2}", NewMessage(f"t.{number}", properties={"amount": number}))
    async with (await serve()).client() as client:
        for params, expected in (
            ({"stream": "order-1", "where": "amount > 1"}, [4, 6]),
            ({"category": "order", "types": ["t.0", "t.3"]}, [1, 4]),
        ):
            async with following(client, params=params) as events:
                assert positions(await events.messages(2)) == expected


async def test_what_cannot_be_followed(serve: Serve) -> None:
    async with (await serve()).client() as client:
        for params in ({"after": "later"}, {"stream": "-1"}, {"types": "a*"}, {"since": "2026-01-01T00:00:00Z"}):
            problem(await client.get("/v1/follow", params=params), INVALID)
        for position in ("x", "-1", "3-", "3-0000000g", "3-00000000.", "now-00000000", f"{2**63}-00000000"):
            problem(await client.get("/v1/follow", headers={"last-event-id": position}), INVALID)


async def test_silence_is_broken(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_following, "FOLLOW_COMMENT_SECONDS", 0.05)
    async with (await serve()).client() as client, following(client) as events:
        async with asyncio.timeout(60):
            while "" not in await events.block():
                pass


@pytest.mark.shard("variants", fast=["revoked"])
@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_a_token_that_is_revoked_ends_it(
    mp: Milepost, serve: Serve, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(http_following, "FOLLOW_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(authentication, "TOKENS_FRESH_SECONDS", 0.05)
    tokens = TokenStore(mp)
    secret = await tokens.make("shop", {TokenRole.READ})
    await mp.append("order-1", NewMessage("a"))
    async with (await serve(access="tokens")).client(headers={"authorization": f"Bearer {secret}"}) as client:
        async with following(client) as events:
            await events.messages(1)
            await (tokens.revoke("shop") if how == "revoked" else expire_token(mp, "shop"))
            async with asyncio.timeout(60):
                last = await events.next()
            assert last["event"] == "problem"
            assert json.loads(last["data"])["type"] == "/problems/unauthenticated"
            with pytest.raises(StopAsyncIteration):
                await events.next()


async def test_whoever_reads_slowly_is_not_sent_the_rest_of_a_page(
    mp: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece of it may wait for half a minute to be taken."""
    monkeypatch.setattr(authentication, "TOKENS_FRESH_SECONDS", 0.0)
    await mp.append("order-1", [NewMessage("a", "x" * SSE_CHUNK_BYTES)] * 3)
    tokens = TokenStore(mp)
    authenticator = Authenticator("tokens", authentication.TokenCache(lambda: tokens))
    principal = await authenticator.authenticate_secret({}, await tokens.make("shop", {TokenRole.READ}))
    followed = http_following.FollowerSession(
        mp.follow_pages(), ResumeTrail(), principal, authenticator, Shutdown()
    )
    messages = []
    async with asyncio.timeout(60):
        async for piece in followed.counted(http_following.FollowerLimit(Limits())):
            if b"order-1" in piece:
                messages.append(piece)
                await expire_token(mp, "shop")
    assert len(messages) == 1
    assert b"/problems/unauthenticated" in piece


async def test_no_more_than_there_may_be(serve: Serve) -> None:
    server = await serve(followers=2)
    async with server.client() as client, following(client) as first, following(client) as second:
        await first.block()
        await second.block()
        answer = await client.get("/v1/follow")
        problem(answer, TOO_MANY, "2 follow already")
        assert answer.headers["retry-after"] == "1"
    async with server.client() as client, asyncio.timeout(60):
        # The ones that left make room.
        while True:
            async with client.stream("GET", "/v1/follow") as answer:
                if answer.status_code == 200:
                    break
            await asyncio.sleep(0.05)


async def test_only_the_head(serve: Serve) -> None:
    async with (await serve()).client() as client:
        answer = await client.head("/v1/follow")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
        assert answer.content == b""


def idle_follower(port: int, after: int = 0) -> socket.socket:
    """Somebody who asks and never reads."""
    idle = socket.socket()
    idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    idle.connect(("127.0.0.1", port))
    idle.sendall(b"GET /v1/follow?after=%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % after)
    return idle


@pytest.mark.shard("hostile")
async def test_who_never_reads_costs_nobody_anything(mp: Milepost, start_server: StartServer) -> None:
    """Twenty who never read 60 MB each: the others get everything at once, and memory stays where it was."""
    server = start_server(stalled_seconds=3600)
    process = psutil.Process(server.process.pid)
    async with server.client() as client:
        await client.get("/v1/head")
        before = process.memory_info().rss
        for _ in range(6):
            await mp.append("order-1", [NewMessage("a", "x" * 100_000)] * 100)
        idle = [idle_follower(server.port) for _ in range(20)]
        try:
            async with following(client) as events:
                assert positions(await events.messages(600)) == list(range(1, 601))
                await mp.append("order-2", NewMessage("b"))
                assert positions(await events.messages(1)) == [601]
            assert (await client.get("/v1/head")).json() == {"position": 601}
            # A page that is being sent and the next one for each, where all of it would be 1.2 GB.
            assert process.memory_info().rss - before < 20 * 2 * 2**20 + 100 * 2**20
        finally:
            for each in idle:
                each.close()


def followed_messages() -> list[Message[Any]]:
    """Return all messages that are in some list in this process, each once."""
    lists = [each for each in gc.get_objects() if type(each) is list and each and type(each[0]) is Message]
    return list({id(message): message for each in lists for message in each}.values())


@pytest.mark.parametrize("size", [1000, 100_000])
async def test_who_never_reads_holds_little(mp: Milepost, serve: Serve, size: int) -> None:
    """Each follows from another position on, so that none has the page of another."""
    server = await serve(stalled_seconds=3600)
    for _ in range(4):
        await mp.append("order-1", [NewMessage("a", "x" * size)] * (3_000_000 // size))
    # The feed has the newest messages, for all together.
    await mp.append("order-1", [NewMessage("b")] * 50)
    untaken = server.app.traffic._unread_answers
    idle = [idle_follower(server.port, after) for after in range(5)]
    try:
        await until(lambda: len(untaken) == 5)
        # The page that is being sent, and the next one.
        pages = 2 * len(idle)
        held = [message for message in followed_messages() if message.type == "a"]
        assert sum(message.size for message in held) <= pages * (256 * 2**10 + size + 2)
        assert len(held) <= pages * 250
    finally:
        for each in idle:
            each.close()


async def test_what_is_new_comes_in_small_pages_too(
    mp: Milepost, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is slow at the head holds no more than behind it, though all that is new was read at once."""
    given: list[Page] = []
    follow = Feed.follow

    async def noted(*args: Any) -> AsyncGenerator[Page, None]:
        async with aclosing(follow(*args)) as pages:
            async for page in pages:
                given.append(page)
                yield page

    monkeypatch.setattr(Feed, "follow", noted)
    async with (await serve()).client() as client, following(client) as events:
        await mp.append("order-1", NewMessage("a"))
        await events.messages(1)
        await mp.append("order-1", [NewMessage("a", "x" * 100_000)] * 30)
        await mp.append("order-1", [NewMessage("a")] * 1000)
        assert positions(await events.messages(1030)) == list(range(2, 1032))
    for page in given:
        assert sum(message.size for message in page) <= 256 * 2**10 + 100_002
        assert len(page) <= 270


async def test_who_never_reads_is_left(mp: Milepost, serve: Serve) -> None:
    server = await serve(stalled_seconds=3, followers=1)
    await mp.append("order-1", [NewMessage("a", "x" * 100_000)] * 100)
    idle = idle_follower(server.port)
    async with server.client() as client, asyncio.timeout(60):
        while (await client.head("/v1/follow")).status_code != 503:
            await asyncio.sleep(0.02)
        while (await client.head("/v1/follow")).status_code != 200:
            await asyncio.sleep(0.05)
    idle.close()
