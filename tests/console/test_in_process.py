"""What keeps foreign text and foreign pages out, without a browser and without a process."""

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator

import httpx
import pytest

from engine.consuming.taking import until
from milepost import Milepost, NewMessage
from milepost.console import Console
from milepost.console.session import FLASH_COOKIE
from milepost.server import create_app
from milepost.server.access.permissions import TokenRole
from milepost.server.access.tokens import TokenStore
from milepost.server.limits import Limits
from support import MakeMilepost

HOSTILE = "<script>document.title='hacked'</script>\"'&"


@pytest.fixture
async def mp(make_mp: MakeMilepost) -> AsyncIterator[Milepost]:
    async with make_mp() as mp:
        yield mp


@pytest.fixture
async def browser(mp: Milepost) -> AsyncIterator[httpx.AsyncClient]:
    """What only keeps cookies and knows no scripts, before a server that asks for a token."""
    transport = httpx.ASGITransport(create_app(mp, pages=Console))
    async with httpx.AsyncClient(transport=transport, base_url="https://milepost.example") as browser:
        browser.headers["accept"] = "text/html"
        yield browser


@pytest.fixture
async def secret(mp: Milepost) -> str:
    return await TokenStore(mp).make("ada", [TokenRole.READ])


async def csrf_of(browser: httpx.AsyncClient) -> str:
    form = await browser.get("/console/login")
    return form.text.split('name="csrf" value="')[1].split('"')[0]


async def log_in(browser: httpx.AsyncClient, secret: str, **fields: str) -> httpx.Response:
    return await browser.post("/console/login", data={"csrf": await csrf_of(browser), "token": secret, **fields})


async def test_foreign_text_is_only_text(browser: httpx.AsyncClient, mp: Milepost, secret: str) -> None:
    message = NewMessage(
        HOSTILE.replace(">", ""), {"text": HOSTILE}, properties={"p": HOSTILE}, metadata={"m": HOSTILE}
    )
    position = (await mp.append(f"a-{HOSTILE}", message)).position
    await log_in(browser, secret)
    for path in ("log", f"log/{position}"):
        answer = await browser.get(f"/console/{path}")
        assert answer.status_code == 200
        assert "&lt;script&gt;" in answer.text
        assert "<script>document" not in answer.text


async def test_a_link_from_another_site_asks_again_with_the_cookies(
    browser: httpx.AsyncClient, secret: str
) -> None:
    """A browser sends none with what another site leads to, and all with what this page then leads to."""
    await log_in(browser, secret)
    cookies = dict(browser.cookies)
    browser.cookies.clear()
    asked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    answer = await browser.get("/console/log?q=a", headers=asked)
    assert 'content="0; url=/console/log?q=a"' in answer.text
    browser.cookies.update(cookies)
    assert "ada" in (await browser.get("/console/log?q=a", headers=asked)).text


async def test_a_form_brings_the_token_of_its_page(browser: httpx.AsyncClient, secret: str) -> None:
    csrf = await csrf_of(browser)
    for wrong in ("", csrf[:-2], f"{csrf}x"):
        answer = await browser.post("/console/login", data={"token": secret, "csrf": wrong})
        assert answer.status_code == 403, wrong
    assert "milepost_session" not in browser.cookies
    assert (await log_in(browser, secret)).status_code == 303


async def test_a_stranger_sends_little(browser: httpx.AsyncClient, mp: Milepost, secret: str) -> None:
    csrf = await csrf_of(browser)
    for path in ("login", "logout", "log/append"):
        answer = await browser.post(f"/console/{path}", data={"csrf": csrf, "token": "x" * 10_000})
        assert answer.status_code == 413, path
    assert (await log_in(browser, secret)).status_code == 303
    csrf = (await browser.get("/console/log/append")).text.split('name="csrf" value="')[1].split('"')[0]
    answer = await browser.post("/console/log/append", data={"csrf": csrf, "data": "x" * 100_000})
    assert answer.status_code not in (413, 303)


async def test_forms_of_strangers_use_up_nothing_of_others(mp: Milepost, secret: str) -> None:
    """Their budget is their own: the bodies of those who have a token do not wait for it."""
    limits = Limits(bodies_bytes=92_000, strangers_bytes=6000)
    app = create_app(mp, pages=Console, limits=limits)
    receiving = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"token=" + b"x" * 5000
        receiving.set()
        await asyncio.Event().wait()

    async with (
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://milepost.example") as client,
        asyncio.TaskGroup() as group,
    ):
        form = {"content-type": "application/x-www-form-urlencoded"}
        slow = group.create_task(client.post("/console/login", content=endless(), headers=form))
        await receiving.wait()
        token = await TokenStore(mp).make("bob", [TokenRole.APPEND])
        message = {"type": "a", "data": "x" * 90_000}
        answer = await client.post("/v1/streams/a-1", json=message, headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == 200
        slow.cancel()


async def test_a_slow_form_of_a_stranger_gives_way(mp: Milepost, secret: str) -> None:
    """The one that has been arriving for longest, until the others fit."""
    app = create_app(mp, pages=Console, limits=Limits(strangers_bytes=12_000))
    form = {"content-type": "application/x-www-form-urlencoded"}

    async def endless(receiving: asyncio.Event) -> AsyncIterator[bytes]:
        yield b"token=" + b"x" * 5000
        receiving.set()
        await asyncio.Event().wait()

    async with (
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://milepost.example") as client,
        asyncio.TaskGroup() as group,
    ):
        slow = []
        for _ in range(2):
            receiving = asyncio.Event()
            content = endless(receiving)
            slow.append(group.create_task(client.post("/console/login", content=content, headers=form)))
            await receiving.wait()
        csrf = await csrf_of(client)
        answer = await client.post("/console/login", data={"csrf": csrf, "token": secret, "next": "x" * 5000})
        assert answer.status_code == 303
        async with asyncio.timeout(60):
            assert (await slow[0]).status_code == 503
        assert not slow[1].done()
        slow[1].cancel()


async def test_what_a_form_that_gave_way_took_is_free_again(mp: Milepost) -> None:
    app = create_app(mp, pages=Console, limits=Limits(strangers_bytes=12_000))
    form = {"content-type": "application/x-www-form-urlencoded"}
    transport = httpx.ASGITransport(app)

    async def in_two(arrived: asyncio.Event, goes_on: asyncio.Event) -> AsyncIterator[bytes]:
        yield b"token=" + b"x" * 5000
        arrived.set()
        await goes_on.wait()
        yield b"x"

    async with httpx.AsyncClient(transport=transport, base_url="https://milepost.example") as client:
        for _ in range(3):
            goes_on = asyncio.Event()
            slow = []
            for _ in range(5):
                arrived = asyncio.Event()
                content = in_two(arrived, goes_on)
                slow.append(asyncio.create_task(client.post("/console/login", content=content, headers=form)))
                # It has arrived, or was refused.
                await until(lambda: arrived.is_set() or slow[-1].done())  # noqa: B023
            goes_on.set()
            # The newest two fit, and are refused for another reason: they bring no token of their page.
            found = [answer.status_code for answer in await asyncio.gather(*slow)]
            assert found == [503, 503, 503, 403, 403]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "https://["},
        {"sec-fetch-site": "cross-site"},
    ],
    ids=["origin", "null", "no address", "site"],
)
async def test_a_form_of_another_site_is_refused(
    browser: httpx.AsyncClient, secret: str, headers: dict[str, str]
) -> None:
    data = {"csrf": await csrf_of(browser), "token": secret}
    assert (await browser.post("/console/login", data=data, headers=headers)).status_code == 403


async def test_logging_in_leads_to_no_other_site(browser: httpx.AsyncClient, secret: str) -> None:
    for goal in ("//evil.example", "https://evil.example/console", "/console\\@evil.example", "/consolation"):
        assert (await log_in(browser, secret, next=goal)).headers["location"] == "/console", goal
        browser.cookies.clear()
    assert (await log_in(browser, secret, next="/console/log?q=a")).headers["location"] == "/console/log?q=a"


async def test_a_cookie_that_nests_deeply_is_none(browser: httpx.AsyncClient) -> None:
    """Also for somebody who has not logged in."""
    words = urlsafe_b64encode(b'{"x":' + b"[" * 20_000).decode()
    answer = await browser.get("/console/login", headers={"cookie": f"{FLASH_COOKIE}={words}"})
    assert answer.status_code == 200
