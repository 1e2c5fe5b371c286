"""Sessions, without a browser: on several servers, over TLS, and until they end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import time

import httpx
import pytest

from milepost import Milepost
from milepost.console import Console, session
from milepost.server import create_app
from milepost.server.access import doorkeeper
from milepost.server.access.role import Role
from milepost.server.access.tokens import Tokens
from support import MakeMilepost


@pytest.fixture
async def mp(make_mp: MakeMilepost) -> AsyncIterator[Milepost]:
    async with make_mp() as mp:
        yield mp


@pytest.fixture
async def secret(mp: Milepost) -> str:
    return await Tokens(mp.log.database, mp.settings["schema"].value).make("ada", [Role.READ])


@asynccontextmanager
async def client_of(mp: Milepost, **cookies: str) -> AsyncIterator[httpx.AsyncClient]:
    """A browser before a server of its own, over TLS."""
    transport = httpx.ASGITransport(create_app(mp, pages=Console))
    async with httpx.AsyncClient(
        transport=transport, base_url="https://milepost.example", cookies=cookies
    ) as client:
        client.headers["accept"] = "text/html"
        yield client


async def logged_in(client: httpx.AsyncClient, secret: str) -> httpx.Response:
    form = await client.get("/console/login")
    csrf = form.text.split('name="csrf" value="')[1].split('"')[0]
    return await client.post("/console/login", data={"csrf": csrf, "token": secret})


async def test_its_cookie_travels_over_tls_alone_and_no_script_sees_it(mp: Milepost, secret: str) -> None:
    async with client_of(mp) as client:
        answer = await logged_in(client, secret)
    [cookie] = [each for each in answer.headers.get_list("set-cookie") if each.startswith("milepost_session=")]
    assert {"HttpOnly", "SameSite=Strict", "Secure", "Path=/console"} <= set(cookie.split("; "))
    assert secret not in cookie


async def test_any_server_of_the_log_knows_it(mp: Milepost, secret: str) -> None:
    async with client_of(mp) as first:
        await logged_in(first, secret)
        cookie = first.cookies["milepost_session"]
    async with client_of(mp, milepost_session=cookie) as second:
        assert (await second.get("/console")).status_code == 200


async def test_it_ends_in_time(mp: Milepost, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with client_of(mp) as client:
        await logged_in(client, secret)
        now = time()
        monkeypatch.setattr(session, "time", lambda: now + session.LASTS - 10)
        assert (await client.get("/console")).status_code == 200
        monkeypatch.setattr(session, "time", lambda: now + session.LASTS + 10)
        assert (await client.get("/console")).headers["location"] == "/console/login?next=%2Fconsole"


async def test_it_ends_with_its_token(mp: Milepost, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "FRESH", 0.0)
    async with client_of(mp) as client:
        await logged_in(client, secret)
        assert (await client.get("/console")).status_code == 200
        await Tokens(mp.log.database, mp.settings["schema"].value).revoke("ada")
        assert (await client.get("/console")).status_code == 303
        # What was sent is not lost without a word.
        assert (await client.post("/console/logout", data={})).status_code == 403


async def test_whoever_has_only_the_database_cannot_make_one(mp: Milepost, secret: str) -> None:
    [token] = await Tokens(mp.log.database, mp.settings["schema"].value).in_force()
    for guess in (token.hash.hex(), "", "mp_" + "A" * 43):
        forged = session.seal(token, guess)
        async with client_of(mp, milepost_session=forged) as client:
            assert (await client.get("/console")).status_code == 303
    async with client_of(mp, milepost_session=session.seal(token, secret)) as client:
        assert (await client.get("/console")).status_code == 200


@pytest.mark.parametrize("cookie", ["", "x", "A" * 128, "=" * 128, "ü" * 4, "A" * 5000])
async def test_what_is_no_session_is_none(mp: Milepost, secret: str, cookie: str) -> None:
    async with client_of(mp) as client:
        headers = {b"cookie": f"milepost_session={cookie}".encode()}
        assert (await client.get("/console", headers=headers)).status_code == 303


async def test_tokens_are_not_guessed_here_either(mp: Milepost, secret: str) -> None:
    async with client_of(mp) as client:
        answers = [(await logged_in(client, f"mp_{number}")).status_code for number in range(12)]
        assert answers[0] == 401
        assert answers[-1] == 429
        assert (await logged_in(client, secret)).status_code == 303


async def test_a_page_that_follows_is_told_to_log_in(mp: Milepost, secret: str) -> None:
    async with client_of(mp) as client:
        answer = await client.get("/console", headers={"accept": "text/event-stream"})
        assert answer.status_code == 401
