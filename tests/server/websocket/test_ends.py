"""Why a connection ends: each reason, and what becomes of what was open."""

import asyncio
from contextlib import AsyncExitStack

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from engine.consuming.taking import orders, until
from milepost import Checkpoint, Milepost
from milepost.server.access import authentication
from milepost.server.access.permissions import TokenRole
from milepost.server.access.tokens import TokenStore
from milepost.server.problems import INVALID
from milepost.server.websocket import registry
from server.answers import problem
from server.websocket.conftest import Serve, Serving
from server.websocket.talking import Talk, consuming, talking, witnessing
from support import expire_token


async def test_the_subscription_is_deleted(mp: Milepost, server: Serving) -> None:
    await orders(mp, 1)
    async with consuming(server.address) as talk:
        [delivery] = await talk.take(1)
        deleting = asyncio.create_task(mp.manage("shipping").delete())
        await talk.say("settle", ack=[delivery["id"]])
        await deleting
        await talk.ended("deleted", 4002)
    async with talking(server.address) as talk:
        await talk.say("hello", ref=3)
        found = (await talk.expect("problem", ref=3))["problem"]
        assert found["type"] == "/problems/unknown-subscription"
        await talk.ended("refused", 4005)


async def test_paused_moved_and_updated_under_its_consumers(mp: Milepost, server: Serving) -> None:
    sub = mp.manage("shipping")
    await orders(mp, 2)
    async with consuming(server.address) as talk, witnessing(mp, server.address) as seen:
        await talk.say("settle", ack=[each["id"] for each in await talk.take(2)])
        await sub.pause()
        await orders(mp, 1, first=2)
        await seen(1)
        await talk.is_dry()
        await sub.resume()
        [third] = await talk.take(1)
        await talk.say("settle", ack=[third["id"]])
        await sub.replay("beginning")
        again = await talk.take(3)
        assert [(each["message"]["data"]["n"], each["replay"]) for each in again] == [
            (0, True),
            (1, True),
            (2, True),
        ]
        await talk.say("settle", ack=[each["id"] for each in again])
        await sub.update(where="n == 4")
        await orders(mp, 2, first=3)
        assert [each["message"]["data"]["n"] for each in await talk.take(1)] == [4]


async def test_too_many_consumers(mp: Milepost, server: Serving) -> None:
    await mp.manage("shipping").update(max_consumers=1)
    async with consuming(server.address) as first:
        async with talking(server.address) as second:
            await second.say("hello")
            end = await second.ended("too many consumers", 4003)
            assert "may be 1" in end["detail"]
        await first.say("leave")
        await first.closed()
    await until(lambda: comes(server))


async def comes(server: Serving) -> bool:
    async with talking(server.address) as talk:
        await talk.say("hello")
        return bool((await talk.hear())["type"] == "welcome")


async def test_too_many_connections(serve: Serve) -> None:
    server = await serve(consumers=1)
    async with consuming(server.address):
        with pytest.raises(InvalidStatus) as refused:
            async with talking(server.address):
                pass
        assert refused.value.response.status_code == 503
        assert b"/problems/too-many" in (refused.value.response.body or b"")


async def test_no_such_path(server: Serving) -> None:
    for path in ("default/shipping/x", "default", "/"):
        with pytest.raises(InvalidStatus) as refused:
            async with talking(server.address, path):
                pass
        assert refused.value.response.status_code == 404


async def test_without_a_websocket(server: Serving) -> None:
    async with httpx.AsyncClient(base_url=server.address) as client:
        refused = problem(await client.get("/v1/subscriptions/default/shipping/consume"), INVALID)
        assert "WebSocket" in refused["detail"]


async def test_no_hello_in_time(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.server.websocket.session.HELLO_TIMEOUT_SECONDS", 0.1)
    async with talking(server.address) as talk:
        await talk.ended("bad frame", 1008)


@pytest.mark.parametrize(
    "hello",
    [
        {"type": "ping"},
        {"type": "hello", "routes": [{"where": "a =="}]},
        {"type": "hello", "routes": [{"priority": "high"}]},
        {"type": "hello", "routes": [{"name": "x"}, {"name": "x"}]},
        {"type": "hello", "routes": [{"name": "x\0"}]},
        {"type": "hello", "routes": [{"where": 'n == "x\0"'}]},
        {"type": "hello", "routes": [{}] * 1001},
        {"type": "hello", "consumer": ""},
        {"type": "hello", "consumer": "a\0b"},
        {"type": "hello", "consumer": "a" * 300},
        {"type": "hello", "resume": 5},
        {"type": "hello", "avoid": ["x"] * 101},
        {"type": "hello", "colour": "red"},
        {"type": "hello", "ref": [1]},
        {"type": "hello", "ref": "x" * 101},
    ],
)
async def test_a_hello_that_cannot_be(server: Serving, hello: dict[str, object]) -> None:
    async with talking(server.address) as talk:
        await talk.say(**hello)  # type: ignore[arg-type]
        found = (await talk.expect("problem"))["problem"]
        assert found["status"] in (400, 413), found
        await talk.ended("refused", 4005)


# The client leaves


@pytest.mark.parametrize("last", [True, False])
async def test_what_was_settled_is_stored_before_the_close(mp: Milepost, server: Serving, last: bool) -> None:
    """Also where others stay, and it would be written much later."""
    await mp.manage("shipping").update(checkpoint=Checkpoint(seconds=60))
    await orders(mp, 3)
    async with AsyncExitStack() as stack:
        if not last:
            await stack.enter_async_context(consuming(server.address, routes=[{"capacity": 0}]))
        talk = await stack.enter_async_context(consuming(server.address))
        first, second, third = await talk.take(3)
        await talk.say("settle", ack=[first["id"], third["id"]], park=[{"id": second["id"], "reason": "broken"}])
        await talk.say("leave")
        assert await talk.closed() == 1000
        await is_stored(mp)


async def test_what_was_settled_is_stored_before_the_end_of_a_drain(mp: Milepost, server: Serving) -> None:
    await mp.manage("shipping").update(checkpoint=Checkpoint(seconds=60))
    await orders(mp, 3)
    async with consuming(server.address, routes=[{"capacity": 0}]), consuming(server.address) as talk:
        first, second, third = await talk.take(3)
        await talk.say("settle", ack=[first["id"], third["id"]])
        await talk.say("drain", ref=1)
        await talk.expect("done", ref=1)
        await talk.say("settle", park=[{"id": second["id"], "reason": "broken"}])
        await talk.ended("drained", 1000)
        await is_stored(mp)


async def is_stored(mp: Milepost) -> None:
    """That one is parked, and the others are done."""
    sub = mp.manage("shipping")
    assert [(each.position, each.reason) async for each in sub.deliveries()] == [(2, "broken")]
    assert (await sub.info()).lag.positions == 0


# Access


@pytest.fixture
def tokens(mp: Milepost) -> TokenStore:
    return TokenStore(mp)


def bearing(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def test_who_has_no_token_or_role_is_answered_in_http(serve: Serve, tokens: TokenStore) -> None:
    server = await serve(access="tokens")
    reader = await tokens.make("reader", [TokenRole.READ])
    for headers, status in (({}, 401), (bearing("mp_wrong"), 401), (bearing(reader), 403)):
        with pytest.raises(InvalidStatus) as refused:
            async with talking(server.address, additional_headers=headers):
                pass
        assert refused.value.response.status_code == status
        assert refused.value.response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_a_token_is_revoked_while_in_use(
    mp: Milepost, serve: Serve, tokens: TokenStore, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(registry, "TOKEN_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(authentication, "TOKENS_FRESH_SECONDS", 0.05)
    server = await serve(access="tokens")
    secret, other = await tokens.make("a", [TokenRole.CONSUME]), await tokens.make("b", [TokenRole.CONSUME])
    await orders(mp, 1)
    async with talking(server.address, additional_headers=bearing(secret)) as talk:
        await talk.hello()
        await talk.take(1)
        async with talking(server.address, additional_headers=bearing(other)) as stays:
            await stays.hello()
            await (tokens.revoke("a") if how == "revoked" else expire_token(mp, "a"))
            await talk.ended("access", 1008)
            [delivery] = await stays.take(1)
            assert delivery["attempt"] == 1


# The server stops


async def test_a_stop_lets_what_is_open_be_settled(mp: Milepost, serve: Serve) -> None:
    server = await serve(grace=20)
    await orders(mp, 3)
    async with consuming(server.address) as idle:
        deliveries = await idle.take(3)
        async with consuming(server.address) as talk:
            server.stop()
            await talk.ended("going away", 1001)
        await orders(mp, 1, first=3)
        await idle.is_dry()
        await idle.say("settle", ref=1, ack=[each["id"] for each in deliveries[:2]])
        await idle.expect("settled", ref=1, refused=[])
        await idle.say("settle", ref=2, ack=[deliveries[2]["id"]])
        await idle.expect("settled", ref=2, refused=[])
        end = await idle.ended("going away", 1001)
        assert end["to"] is None
    await server.end()
    with pytest.raises(OSError):  # noqa: PT011 - it listens no longer
        async with talking(server.address):
            pass
    await until(lambda: lags(mp, 1))


async def lags(mp: Milepost, positions: int) -> bool:
    info = await mp.manage("shipping").info()
    return info.lag.positions == positions and not any(lane.owner for lane in info.lanes)


async def test_after_the_grace_time_what_is_open_goes_back(mp: Milepost, serve: Serve) -> None:
    server, other = await serve(grace=0.3), await serve()
    await until(lambda: are_listed(mp, server, other))
    await orders(mp, 2)
    async with consuming(server.address) as talk:
        await talk.take(2)
        server.stop()
        end = await talk.ended("going away", 1001)
        assert end["to"] == other.address
    async with consuming(end["to"]) as there:
        assert [each["attempt"] for each in await there.take(2)] == [1, 1]


async def are_listed(mp: Milepost, *servers: Serving) -> bool:
    return {node.address for node in await mp.nodes()} == {server.address for server in servers}


# Coming back


async def test_who_comes_back_in_time_goes_on(mp: Milepost, server: Serving) -> None:
    await orders(mp, 3)
    async with consuming(server.address, routes=[{"capacity": 3}]) as talk:
        first, second, third = await talk.take(3)
        token = talk.welcome["resume"]
        await orders(mp, 1, first=3)
        talk.vanish()
    async with talking(server.address) as back:
        welcome = await back.hello(resume=token, open=[first["id"], second["id"]])
        assert (welcome["resumed"], welcome["open"]) == (True, [first["id"], second["id"]])
        assert welcome["consumer"] == talk.welcome["consumer"]
        # What did not arrive comes again, under another number and as no attempt.
        [again] = await back.take(1)
        assert (again["message"]["data"]["n"], again["attempt"]) == (2, 1)
        assert again["id"] > third["id"]
        await back.say("settle", ref=1, ack=[first["id"], second["id"], third["id"], again["id"]])
        settled = await back.expect("settled", ref=1, moved=[first["id"], second["id"], again["id"]])
        assert [each["id"] for each in settled["refused"]] == [third["id"]]
        assert [each["message"]["data"]["n"] for each in await back.take(1)] == [3]


async def test_who_is_away_gets_nothing_new(mp: Milepost, server: Serving) -> None:
    await orders(mp, 1)
    async with consuming(server.address, routes=[{"priority": 1}]) as talk, consuming(server.address) as other:
        [first] = await talk.take(1)
        token = talk.welcome["resume"]
        talk.vanish()
        await until(lambda: is_away(server))
        await orders(mp, 1, first=1)
        assert [each["message"]["data"]["n"] for each in await other.take(1)] == [1]
        async with talking(server.address) as back:
            welcome = await back.hello(resume=token)
            assert (welcome["resumed"], welcome["open"]) == (True, [first["id"]])
            await orders(mp, 1, first=2)
            assert [each["message"]["data"]["n"] for each in await back.take(1)] == [2]


def is_away(server: Serving) -> bool:
    return len(server.app.connections.kept_consumers) == 1


async def test_who_does_not_come_back_is_lost(mp: Milepost, server: Serving) -> None:
    server.app.connections.resume_seconds = 0.2
    await mp.manage("shipping").update(retry=retry_at_once())
    await orders(mp, 2)
    async with consuming(server.address, routes=[{"capacity": 2}]) as talk:
        taken = await talk.take(2)
        token = talk.welcome["resume"]
        await talk.say("settle", ref=1, ack=[taken[0]["id"]])
        await talk.expect("settled", ref=1)
        talk.vanish()
    async with consuming(server.address) as other:
        [delivery] = await other.take(1)
        assert (delivery["message"]["data"]["n"], delivery["attempt"]) == (1, 2)
        async with talking(server.address) as late:
            assert (await late.hello(resume=token))["resumed"] is False


def retry_at_once() -> object:
    from milepost import Retry

    return Retry(delay=0.01)


async def test_who_comes_back_is_told_what_was_lost_meanwhile(mp: Milepost, server: Serving) -> None:
    """Also what it was told before, and may not have heard."""
    await orders(mp, 2)
    async with consuming(server.address, routes=[{"capacity": 2}]) as talk:
        first, second = await talk.take(2)
        await talk.say("extend", ref=0, deliveries=[first["id"]], seconds=0.1)
        await talk.expect("settled", ref=0, moved=[first["id"]])
        await talk.expect("lost", deliveries=[{"id": first["id"], "reason": "timed out"}])
        await talk.say("extend", ref=1, deliveries=[second["id"]], seconds=1)
        await talk.expect("settled", ref=1, moved=[second["id"]])
        talk.vanish()
    await until(
        lambda: (
            not server.app.connections.kept_consumers[0].open if server.app.connections.kept_consumers else False
        )
    )
    async with talking(server.address) as back:
        welcome = await back.hello(resume=talk.welcome["resume"], open=[first["id"], second["id"]])
        assert (welcome["resumed"], welcome["open"]) == (True, [])
        lost = (await back.expect("lost"))["deliveries"]
        assert {each["id"] for each in lost} == {first["id"], second["id"]}
        await back.say("settle", ref=2, ack=[first["id"]])
        settled = (await back.hear_of("settled"))["refused"]
        assert settled == [{"id": first["id"], "reason": "timed out"}]


async def test_a_connection_that_is_half_dead_is_taken_over(mp: Milepost, server: Serving) -> None:
    await orders(mp, 1)
    async with consuming(server.address) as old, talking(server.address) as new:
        [delivery] = await old.take(1)
        welcome = await new.hello(resume=old.welcome["resume"])
        assert (welcome["resumed"], welcome["open"]) == (True, [delivery["id"]])
        await old.ended("resumed", 4006)
        await new.say("settle", ref=1, ack=[delivery["id"]])
        await new.expect("settled", ref=1, moved=[delivery["id"]])


@pytest.mark.parametrize("routes", [[{"where": "n =="}], [{"name": "a"}, {"name": "a"}]])
async def test_a_return_that_cannot_be_leaves_nothing_behind(
    mp: Milepost, server: Serving, routes: list[object]
) -> None:
    """A consumer without a client would get messages that nobody settles."""
    server.app.connections.resume_seconds = 0.5
    async with consuming(server.address) as talk, talking(server.address) as back:
        talk.vanish()
        await until(lambda: is_away(server))
        await back.say("hello", resume=talk.welcome["resume"], routes=routes)
        await back.expect("problem")
        await back.ended("refused", 4005)
        await until(lambda: not server.app.connections.kept_consumers)
    await orders(mp, 3)
    async with consuming(server.address) as other:
        assert [each["attempt"] for each in await other.take(3)] == [1, 1, 1]


async def test_nobody_else_comes_back_in_its_place(mp: Milepost, serve: Serve, tokens: TokenStore) -> None:
    server = await serve(access="tokens")
    await mp.create_subscription("other")
    mine, yours = await tokens.make("mine", [TokenRole.CONSUME]), await tokens.make("yours", [TokenRole.CONSUME])
    async with talking(server.address, additional_headers=bearing(mine)) as talk:
        await talk.hello()
        token = talk.welcome["resume"]
        async with talking(server.address, additional_headers=bearing(yours)) as thief:
            assert (await thief.hello(resume=token))["resumed"] is False
        async with talking(server.address, "default/other", additional_headers=bearing(mine)) as strayed:
            assert (await strayed.hello(resume=token))["resumed"] is False
        await answers(talk)


async def answers(talk: Talk) -> None:
    await talk.say("ping", ref="still there")
    await talk.expect("pong", ref="still there")
