"""The database is away for a while: every page says so, and goes on by itself."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.async_api import Page, expect

from console.reading import assert_accessible
from console.site import Site
from milepost import Milepost, NewMessage
from servers import Server, embedded_binaries

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(400)]

MAY_FAIL = True
LONG = 90_000
"""Milliseconds: connections are tried for ten seconds, and then at growing intervals."""
AWAY = "The database cannot be reached"
PATHS = (
    "",
    "subscriptions/default/orders",
    "parked",
    "parked/default/orders",
    "trace?q=order-1",
    "log",
    "log/1",
    "log/categories",
    "log/streams",
    "log/types",
    "log/append",
    "filter",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A PostgreSQL of its own, which a test may stop."""
    server = Server(embedded_binaries()).create()
    yield server
    server.remove()


@contextmanager
def away(server: Server) -> Iterator[None]:
    """Within this block it is not there."""
    server.stop()
    try:
        yield
    finally:
        server.start()


@pytest.fixture
def database_url(server: Server) -> str:
    return server.url()


async def append(site: Site, type: str) -> None:
    """From a program whose connections are new."""
    async with site.milepost() as mp:
        await mp.append("order-1", NewMessage(type))


async def test_pages_that_follow_say_that_they_are_stale_and_go_on(
    site: Site, server: Server, page: Page, mp: Milepost
) -> None:
    await mp.create_subscription("followed", category="order")
    await page.goto(site.path())
    await page.evaluate("window.wasHere = true")
    pulse, stale = page.locator("#pulse"), page.locator("#stale")
    row = page.locator("tr", has_text="default/followed")
    await expect(pulse).to_have_text("live")
    await expect(stale).to_be_hidden()
    top = await row.bounding_box()
    with away(server):
        await expect(stale).to_contain_text(f"{AWAY}. What you see is how it was", timeout=LONG)
        await expect(pulse).to_have_text("connection lost")
        # What was there is still there, where it was.
        await expect(row).to_be_visible()
        assert await row.bounding_box() == top
        await assert_accessible(page)
    await expect(pulse).to_have_text("live", timeout=LONG)
    await expect(stale).to_be_hidden()
    await append(site, "placed")
    await expect(row.locator("td").nth(1)).to_have_text("1", timeout=LONG)
    assert await page.evaluate("window.wasHere")


@pytest.mark.shard("browser")
async def test_every_page_says_it_in_words_and_comes_back(
    site: Site, server: Server, page: Page, mp: Milepost
) -> None:
    await mp.create_subscription("orders", category="order")
    await mp.append("order-1", NewMessage("placed"))
    pages = [await page.context.new_page() for _ in PATHS]
    headings = [each.get_by_role("heading", name=AWAY) for each in pages]
    with away(server):
        await asyncio.gather(
            *(each.goto(site.path(path), timeout=LONG) for each, path in zip(pages, PATHS, strict=True))
        )
        # Those that were asked for first may not have needed it yet.
        for each in pages:
            await each.reload(timeout=LONG)
        for heading in headings:
            await expect(heading).to_be_visible(timeout=LONG)
        await assert_accessible(pages[0])
    for heading in headings:
        await expect(heading).to_have_count(0, timeout=LONG)
    for each in pages:
        await expect(each.locator("main h1")).to_be_attached()
        await each.close()


@pytest.mark.shard("browser")
async def test_a_dialog_says_why_nobody_knows(site: Site, server: Server, page: Page, mp: Milepost) -> None:
    await mp.create_subscription("asked", category="order")
    await page.goto(site.path("subscriptions", "default", "asked"))
    await expect(page.get_by_role("button", name="Pause…")).to_be_visible(timeout=LONG)
    with away(server):
        await page.get_by_role("button", name="Pause…").click()
        asked = page.locator("dialog[open]")
        await expect(asked.locator("output")).to_contain_text("The database", timeout=LONG)
        await expect(asked.get_by_role("button", name="Pause", exact=True)).to_be_disabled()


@pytest.mark.shard("browser")
async def test_a_tail_that_cannot_begin_tries_again(site: Site, server: Server, page: Page, mp: Milepost) -> None:
    await mp.append("order-1", NewMessage("before"))
    await page.goto(site.path("log"))
    follow, said = page.locator("#follow"), page.locator("#tail-state")
    await expect(follow).to_be_visible(timeout=LONG)
    with away(server):
        await follow.click()
        await expect(said).to_contain_text("trying again", timeout=LONG)
    await expect(said).to_have_text("Live.", timeout=LONG)


@pytest.mark.shard("browser")
async def test_the_tail_goes_on(site: Site, server: Server, page: Page, mp: Milepost) -> None:
    await mp.append("order-1", NewMessage("before"))
    await page.goto(site.path("log?follow=1"))
    said = page.locator("#tail-state")
    await expect(said).to_have_text("Live.", timeout=LONG)
    with away(server):
        await expect(said).to_contain_text("trying again", timeout=LONG)
    await expect(said).to_have_text("Live.", timeout=LONG)
    await append(site, "afterwards")
    await expect(page.locator("#entries")).to_contain_text("afterwards", timeout=LONG)
