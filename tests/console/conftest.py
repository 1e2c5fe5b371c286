"""One browser for all tests, a server for each module."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect
from psycopg import sql

from conftest import absent
from console.site import CHROMIUM, Site
from milepost import Milepost

expect.set_options(timeout=30_000)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where it is."""
    if not Path(CHROMIUM).exists():
        absent("Chromium")
    return CHROMIUM


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """Debian's Chromium, without a window."""
    arguments = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        await browser.close()


@pytest.fixture(scope="module")
def module_schema(embedded_url: str) -> Iterator[str]:
    """A schema that a module's tests share."""
    name = f"t_{uuid4().hex[:12]}"
    yield name
    with psycopg.connect(embedded_url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def site(embedded_url: str, module_schema: str, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A server on it. A module that sets `OPTIONS` starts it with them."""
    Milepost(embedded_url, schema=module_schema).sync.__enter__().__exit__(None, None, None)
    site = Site(embedded_url, module_schema, *getattr(request.module, "OPTIONS", ()))
    yield site
    site.end()


@pytest_asyncio.fixture(loop_scope="session")
async def mp(site: Site) -> AsyncIterator[Milepost]:
    """A program on the same schema."""
    async with site.milepost() as mp:
        yield mp


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, site: Site, request: pytest.FixtureRequest) -> AsyncIterator[Page]:
    """A page of a reader of its own; a script that fails, or anything that the policy forbids, fails the test.

    So does an answer that the server owes to a fault of its own, unless a module sets `MAY_FAIL`.
    """
    async with await browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page = await context.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        yield page
        usual = ("status of 4", "status of 503") if hasattr(request.module, "MAY_FAIL") else ("status of 4",)
        assert [each for each in complaints if not any(word in each for word in usual)] == []
