"""Pulling and settling over HTTP."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from engine.consuming.taking import until
from milepost import Milepost, NewMessage
from milepost.server import Server
from milepost.server.access import authentication
from milepost.server.access.permissions import TokenRole
from milepost.server.access.tokens import TokenStore
from milepost.server.problems import GOING_AWAY, INVALID, NOT_POSSIBLE, UNAUTHENTICATED, UNKNOWN_SUBSCRIPTION
from server.answers import done, problem
from server.websocket.conftest import Serve
from support import expire_token, qualified

PULL = "/v1/subscriptions/default/emails/pull"


@pytest.fixture
async def emails(client: httpx.AsyncClient) -> None:
    """A subscription to pull from."""
    done(await client.post("/v1/subscriptions", json={"name": "emails", "category": "mail", "tracking": "all"}))


async def sleeps(mp: Milepost, count: int) -> bool:
    """Whether so many wait: whoever is about to says so first."""
    return len(await mp.log.database.execute(qualified("select until from {}.sleeps", mp), {})) >= count


async def append(mp: Milepost, count: int) -> None:
    for number in range(count):
        await mp.append(f"mail-{number}", NewMessage("mail", number))


@pytest.mark.usefixtures("emails")
async def test_take_and_settle(mp: Milepost, client: httpx.AsyncClient) -> None:
    await append(mp, 5)
    first = done(await client.post(PULL, params={"limit": 3, "timeout": 300}))
    assert [each["message"]["data"] for each in first["deliveries"]] == [0, 1, 2]
    assert [each["attempt"] for each in first["deliveries"]] == [1, 1, 1]
    assert first["more"] is True
    expires = datetime.fromisoformat(first["deliveries"][0]["expires"])
    assert timedelta(seconds=250) < expires - datetime.now(UTC) < timedelta(seconds=310)
    one, two, three = (each["token"] for each in first["deliveries"])
    body = {"ack": [one], "retry": {two: "no printer"}, "skip": [three], "after": 3600}
    settled = done(await client.post("/v1/settle", json=body))
    assert settled == {"moved": [one, two, three], "refused": []}
    [waiting] = done(await client.get("/v1/subscriptions/default/emails/deliveries?state=retrying"))["deliveries"]
    assert waiting["reason"] == "no printer"
    again = done(await client.post("/v1/settle", json={"ack": [one], "park": [two]}))
    assert again == {"moved": [], "refused": [one, two]}


@pytest.mark.usefixtures("emails")
async def test_what_is_no_token_is_refused(client: httpx.AsyncClient) -> None:
    tokens = ["", "x", "1-1-" + "0" * 32, "'; drop table deliveries; --", "1-1", "9" * 1000, "\0", "ü"]
    assert done(await client.post("/v1/settle", json={"ack": tokens})) == {"moved": [], "refused": tokens}


@pytest.mark.usefixtures("emails")
async def test_more_time(mp: Milepost, client: httpx.AsyncClient) -> None:
    await append(mp, 1)
    [delivery] = done(await client.post(PULL))["deliveries"]
    token = delivery["token"]
    settled = done(await client.post("/v1/settle", json={"extend": [token], "timeout": 600}))
    assert settled["moved"] == [token]
    assert done(await client.post("/v1/settle", json={"ack": [token]}))["moved"] == [token]


@pytest.mark.usefixtures("emails")
async def test_waiting_for_the_first_one(mp: Milepost, client: httpx.AsyncClient) -> None:
    assert done(await client.post(PULL)) == {"deliveries": [], "more": False}
    waiting = asyncio.create_task(client.post(PULL, params={"wait": 30}))
    await until(lambda: sleeps(mp, 1))
    await append(mp, 1)
    assert len(done(await waiting)["deliveries"]) == 1


@pytest.mark.usefixtures("emails")
async def test_who_waits_is_told_at_the_end(mp: Milepost, app: Server, client: httpx.AsyncClient) -> None:
    waiting = asyncio.create_task(client.post(PULL, params={"wait": 60}))
    await until(lambda: sleeps(mp, 1))
    app.shutdown.begin()
    problem(await waiting, GOING_AWAY)


async def test_nothing_is_claimed_for_who_has_gone(mp: Milepost, serve: Serve) -> None:
    for name in ("emails", "witness"):
        await mp.create_subscription(name, category="mail", tracking="all")
    server = await serve()
    async with server.client() as client:
        gone = asyncio.create_task(client.post(PULL, params={"wait": 60}))
        await until(lambda: sleeps(mp, 1))
        gone.cancel()
        await asyncio.wait([gone])
    await until(lambda: server.app.traffic.connections == 0)
    async with server.client() as client:
        # Whoever waits at the same time tells when those who wait have been woken.
        witness = asyncio.create_task(client.post(PULL.replace("emails", "witness"), params={"wait": 30}))
        await until(lambda: sleeps(mp, 1))
        await append(mp, 1)
        assert len(done(await witness)["deliveries"]) == 1
        assert len(done(await client.post(PULL))["deliveries"]) == 1


@pytest.mark.usefixtures("emails")
@pytest.mark.parametrize(
    "params",
    [{"limit": 0}, {"limit": 1001}, {"wait": -1}, {"wait": 61}, {"wait": "nan"}, {"timeout": 0}, {"x": 1}],
)
async def test_what_cannot_be_pulled(client: httpx.AsyncClient, params: dict[str, Any]) -> None:
    problem(await client.post(PULL, params=params), INVALID)


@pytest.mark.usefixtures("emails")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"after": -1}, "at least 0"),
        ({"timeout": 0}, "more than 0"),
        ({"after": 10**10}, "a hundred years"),
        ({"acknowledge": []}, "no field 'acknowledge'"),
        ({"ack": [1]}, "Expected `str`"),
        ({"ack": "a"}, "Expected `object | array`"),
        ({"retry": {"a": 1}}, "Expected `str | object`"),
        ({"ack": ["1-1-" + "0" * 32], "skip": ["1-1-" + "0" * 32]}, "is in ack and skip"),
    ],
)
async def test_what_cannot_be_settled(client: httpx.AsyncClient, body: dict[str, Any], words: str) -> None:
    problem(await client.post("/v1/settle", json=body), INVALID, words)


async def test_where_nothing_can_be_pulled(mp: Milepost, client: httpx.AsyncClient) -> None:
    problem(await client.post(PULL), UNKNOWN_SUBSCRIPTION)
    await mp.create_subscription("emails")
    problem(await client.post(PULL), NOT_POSSIBLE)


@pytest.mark.usefixtures("emails")
async def test_hostile_reasons(mp: Milepost, client: httpx.AsyncClient) -> None:
    for reason in ("a\0b", "'; drop table x; --", "x" * 100_000, "\U0010ffff"):
        await append(mp, 1)
        [delivery] = done(await client.post(PULL))["deliveries"]
        answer = await client.post("/v1/settle", json={"park": [delivery["token"]], "reason": reason})
        assert answer.status_code in (200, 400), answer.text


async def test_one_that_waits_ends_with_its_token(
    mp: Milepost, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "TOKENS_FRESH_SECONDS", 0.05)
    monkeypatch.setattr(authentication, "ACCESS_RECHECK_SECONDS", 0.02)
    await mp.create_subscription("emails", category="mail", tracking="all")
    tokens = TokenStore(mp)
    secret = await tokens.make("worker", {TokenRole.CONSUME}, expires=timedelta(hours=1))
    async with (await serve(access="tokens")).client(headers={"authorization": f"Bearer {secret}"}) as client:
        pulling = asyncio.create_task(client.post(PULL, params={"wait": 60}))
        await until(lambda: sleeps(mp, 1))
        await expire_token(mp, "worker")
        problem(await pulling, UNAUTHENTICATED, "has expired")
