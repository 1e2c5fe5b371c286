"""Sessions, without a browser: on several servers, over TLS, and until they end."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from time import time

import httpx
import pytest

from console.test_pages import text_of
from milepost import Milepost
from milepost.console import Console, session
from milepost.server import create_app
from milepost.server.access import authentication
from milepost.server.access.permissions import TokenRole
from milepost.server.access.tokens import TokenStore
from support import MakeMilepost, expire_token


@pytest.fixture
async def mp(make_mp: MakeMilepost) -> AsyncIterator[Milepost]:
    async with make_mp() as mp:
        yield mp


@pytest.fixture
async def secret(mp: Milepost) -> str:
    return await TokenStore(mp).make("ada", [TokenRole.READ])


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
        monkeypatch.setattr(session, "time", lambda: now + session.SESSION_SECONDS - 10)
        assert (await client.get("/console")).status_code == 200
        monkeypatch.setattr(session, "time", lambda: now + session.SESSION_SECONDS + 10)
        assert (await client.get("/console")).headers["location"] == "/console/login?next=%2Fconsole"


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_it_ends_with_its_token(
    mp: Milepost, secret: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(authentication, "TOKENS_FRESH_SECONDS", 0.0)
    async with client_of(mp) as client:
        await logged_in(client, secret)
        assert (await client.get("/console")).status_code == 200
        tokens = TokenStore(mp)
        await (tokens.revoke("ada") if how == "revoked" else expire_token(mp, "ada"))
        assert (await client.get("/console")).status_code == 303
        # What was sent is not lost without a word.
        assert (await client.post("/console/logout", data={})).status_code == 403


async def logged_out(client: httpx.AsyncClient) -> httpx.Response:
    page = await client.get("/console")
    csrf = page.text.split('name="csrf" value="')[1].split('"')[0]
    return await client.post("/console/logout", data={"csrf": csrf})


async def test_a_copy_of_its_cookie_is_worth_nothing_after_logging_out(
    mp: Milepost, make_mp: MakeMilepost, secret: str
) -> None:
    async with client_of(mp) as client, client_of(mp) as other_browser:
        await logged_in(client, secret)
        await logged_in(other_browser, secret)
        cookie = client.cookies["milepost_session"]
        answer = await logged_out(client)
        assert answer.headers["location"] == "/console/login"
        assert "Max-Age=0" in answer.headers["set-cookie"]
        # At once on this server, for this session alone.
        client.cookies.set("milepost_session", cookie, domain="milepost.example", path="/console")
        assert (await client.get("/console")).status_code == 303
        assert (await client.get("/console", headers={"accept": "text/event-stream"})).status_code == 401
        assert (await other_browser.get("/console")).status_code == 200
        # The token itself goes on, for a new session too.
        assert (await logged_in(client, secret)).status_code == 303
        assert (await client.get("/console")).status_code == 200
    # On a server that starts later too.
    async with make_mp() as again, client_of(again, milepost_session=cookie) as later:
        assert (await later.get("/console")).status_code == 303


async def test_logging_out_ends_the_session_on_other_servers_that_know_it(
    mp: Milepost, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(mp) as here:
        await logged_in(here, secret)
        cookie = here.cookies["milepost_session"]
        async with client_of(mp, milepost_session=cookie) as there:
            assert (await there.get("/console")).status_code == 200
            await logged_out(here)
            # What is known there serves for two seconds: this is later.
            monkeypatch.setattr(authentication, "TOKENS_FRESH_SECONDS", 0.0)
            assert (await there.get("/console")).status_code == 303


async def test_an_ended_session_is_remembered_until_its_cookie_is_over(mp: Milepost, secret: str) -> None:
    tokens = TokenStore(mp)
    [token] = (await tokens.in_force()).tokens
    await tokens.end_session(token.id, b"over", -1)
    await tokens.end_session(token.id, b"long", session.ENDED_SESSION_SECONDS)
    assert (await tokens.in_force()).ended_sessions == {b"long"}
    await tokens.end_session(token.id, b"long", session.ENDED_SESSION_SECONDS)
    stored = f"select nonce from {mp.settings['schema'].value}.ended_sessions"
    assert await mp.log.database.execute(stored, {}) == [(b"long",)]


async def test_one_sees_until_when_the_token_lasts(mp: Milepost, secret: str) -> None:
    tokens = TokenStore(mp)
    lasting = await tokens.make(
        "contractor", [TokenRole.READ, TokenRole.OPERATE], expires=timedelta(days=3, minutes=30)
    )
    await tokens.make("gone", [TokenRole.READ])
    await tokens.revoke("gone")
    await tokens.make("past", [TokenRole.READ])
    await expire_token(mp, "past")
    async with client_of(mp) as client:
        await logged_in(client, secret)
        assert "expires" not in (await client.get("/console")).text
        assert (await client.get("/console/tokens")).status_code == 403
    async with client_of(mp) as client:
        await logged_in(client, lasting)
        page = text_of((await client.get("/console")).text)
        assert "token expires in 3 d contractor · log out" in page
        page = text_of((await client.get("/console/tokens")).text)
        assert re.search(r"ada read all all in force [\dms ]+ ago never ", page)
        assert re.search(r"contractor operate read all all in force [\dms ]+ ago in 3 d ", page)
        assert re.search(r"gone read all all revoked [\dms ]+ ago ", page)
        assert re.search(r"past read all all expired [\dms ]+ ago ", page)


async def test_whoever_has_only_the_database_cannot_make_one(mp: Milepost, secret: str) -> None:
    [token] = (await TokenStore(mp).in_force()).tokens
    for guess in (token.hash.hex(), "", "mp_" + "A" * 43):
        forged = session.seal_session(token, guess)
        async with client_of(mp, milepost_session=forged) as client:
            assert (await client.get("/console")).status_code == 303
    async with client_of(mp, milepost_session=session.seal_session(token, secret)) as client:
        assert (await client.get("/console")).status_code == 200


@pytest.mark.parametrize("cookie", ["", "x", "A" * 128, "=" * 128, "ü" * 4, "A" * 5000])
async def test_what_is_no_session_is_none(mp: Milepost, secret: str, cookie: str) -> None:
    async with client_of(mp) as client:
        headers = {b"cookie": f"milepost_session={cookie}".encode()}
        assert (await client.get("/console", headers=headers)).status_code == 303


@pytest.mark.timeout(30)
async def test_a_long_cookie_does_not_hold_up_the_server(mp: Milepost, secret: str) -> None:
    """A parser whose time grows with the square of its length needs about a minute for it."""
    async with client_of(mp) as client:
        for cookie in (b'milepost_session="' + b"\\1" * 30_000 + b'"', b"a=1;" * 15_000, b";" * 60_000):
            assert (await client.get("/console", headers={b"cookie": cookie})).status_code == 303


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
