"""One browser for all tests, a server in the test's own process for each."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from conftest import absent
from console.site import CHROMIUM, Site, a_site
from milepost import Milepost
from milepost.console import poller

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


@pytest_asyncio.fixture(loop_scope="session")
async def site(
    database_url: str, schema: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Site]:
    """A console on the test's schema. A module that sets `ACCESS_REASON` says who may come.

    It must have nothing to complain about, unless a module sets `MAY_FAIL`.
    """
    # Often, and on a busy machine too: there a look takes long, and would be made less often.
    monkeypatch.setattr(poller, "WATCHED_PACE", poller.PollPace(0.3, 0, 0.3))
    async with a_site(database_url, schema, access=getattr(request.module, "ACCESS", "local")) as site:
        yield site
    complaints = site.complaints
    assert not (complaints.faults if hasattr(request.module, "MAY_FAIL") else complaints.lines)


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
