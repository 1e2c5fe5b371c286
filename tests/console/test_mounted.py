"""The console within another application, and without a browser."""

import re
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from milepost import Milepost, NewMessage
from milepost.console import Console
from milepost.server import create_app
from support import MakeMilepost


@pytest.fixture
async def mp(make_mp: MakeMilepost) -> AsyncIterator[Milepost]:
    async with make_mp() as mp:
        yield mp


@pytest.fixture
async def client(mp: Milepost) -> AsyncIterator[httpx.AsyncClient]:
    app = Starlette(routes=[Mount("/milepost", app=create_app(mp, access="open", pages=Console))])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_its_addresses_and_cookies_are_below_the_mount(client: httpx.AsyncClient) -> None:
    first = await client.get("/milepost/", headers={"accept": "text/html"})
    assert first.headers["location"] == "/milepost/console"
    page = await client.get("/milepost/console")
    assert page.status_code == 200
    assert 'href="/milepost/console/trace"' in page.text
    assert "Path=/milepost/console;" in page.headers["set-cookie"]
    style = page.text.split('rel="stylesheet" href="')[1].split('"')[0]
    answer = await client.get(style)
    assert answer.headers["content-type"].startswith("text/css")
    assert "immutable" in answer.headers["cache-control"]


async def test_a_program_that_asks_for_nothing_is_not_led_to_it(client: httpx.AsyncClient) -> None:
    assert (await client.get("/milepost/")).status_code == 404


async def test_no_file_but_its_own_is_served(client: httpx.AsyncClient) -> None:
    for name in ("app.py", "..%2Fapp.py", "nothing.css"):
        assert (await client.get(f"/milepost/console/static/x/{name}")).status_code == 404


async def test_a_name_with_a_slash_has_a_page(client: httpx.AsyncClient, mp: Milepost) -> None:
    await mp.create_subscription("a%2Fb c")
    page = await client.get("/milepost/console")
    address = page.text.split('<th scope="row"><a href="')[1].split('"')[0]
    assert address.endswith("/subscriptions/default/a%252Fb%20c")
    shown = await client.get(address)
    assert shown.status_code == 200
    assert "a%2Fb c" in shown.text


async def test_without_pages_there_are_none(mp: Milepost) -> None:
    transport = httpx.ASGITransport(create_app(mp, access="local"))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/console")).status_code == 404
        assert (await client.post("/console", data={"a": "b"})).status_code in (404, 415)


async def test_the_log_and_the_playground_lead_below_the_mount(client: httpx.AsyncClient, mp: Milepost) -> None:
    appended = await mp.append("order-1", NewMessage("order.placed"))
    for path in (
        "log",
        f"log/{appended.position}",
        "log/streams",
        "log/categories",
        "log/types",
        "log/append",
        "filter",
    ):
        page = await client.get(f"/milepost/console/{path}")
        assert page.status_code == 200, path
        addresses = re.findall(r'(?:href|src|action|data-check|data-tail)="(/[^"]*)"', page.text)
        assert [each for each in addresses if not each.startswith("/milepost/console")] == [], path


async def test_options_is_a_method_that_no_page_has(client: httpx.AsyncClient) -> None:
    for path in ("/milepost/console", "/milepost/console/trace", "/milepost/console/login"):
        assert (await client.options(path)).status_code == 405
