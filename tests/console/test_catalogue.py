"""Streams, categories and types; and that no page of them reads the whole log."""

from typing import Any

import pytest
from playwright.async_api import Page, expect

from console.reading import assert_readable
from console.site import Site
from milepost import Milepost, NewMessage
from milepost.console import search
from milepost.console.pages import message as message_page
from milepost.console.pages.catalogue import NAMES_PER_PAGE, LogCatalogue
from milepost.console.pages.message import FAR_POSITIONS, NEAR_POSITIONS, CausationFinder
from milepost.console.search import LogCriteria, LogSearch, message_at
from milepost.log import query
from milepost.postgres.statements import Statements
from milepost.server.access.permissions import UNLIMITED_SCOPE
from milepost.server.access.scope_guard import ScopeGuard

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAMES = ["a", "a!b-1", "a-1", "a-2", "a.b-1", "b", "b-1", "c-1", "c-1-2", "ca", "Ä-1", "\U0010ffff-1"]


async def test_every_category_is_there_once_whatever_its_name(mp: Milepost) -> None:
    for name in NAMES:
        await mp.append(name, NewMessage("odd.a"))
    catalogue = LogCatalogue(ScopeGuard(mp, UNLIMITED_SCOPE))
    found = await catalogue.categories("", "")
    assert [each.name for each in found.entries] == ["a!b", "a", "a.b", "b", "c", "ca", "Ä", "\U0010ffff"]
    assert [each.name for each in (await catalogue.categories("c", "")).entries] == ["c", "ca"]
    streams = await catalogue.streams("a", "")
    assert [each.name for each in streams.entries] == ["a", "a!b-1", "a-1", "a-2", "a.b-1"]


async def test_pages_follow_each_other_without_gap_or_repetition(mp: Milepost) -> None:
    wanted = [f"page{number:03}" for number in range(2 * NAMES_PER_PAGE + 7)]
    await mp.append_many({f"{name}-{of}": [NewMessage("paged.a")] for name in wanted for of in (1, 2)})
    catalogue = LogCatalogue(ScopeGuard(mp, UNLIMITED_SCOPE))
    categories, streams = [], []
    after: str | None = ""
    while after is not None:
        page = await catalogue.categories("page", after)
        categories += [each.name for each in page.entries]
        after = page.after
    after = ""
    while after is not None:
        names = await catalogue.streams("page", after)
        assert len(names.entries) <= NAMES_PER_PAGE
        streams += [each.name for each in names.entries]
        after = names.after
    assert categories == wanted
    assert streams == [f"{name}-{of}" for name in wanted for of in (1, 2)]


async def test_types_are_those_of_the_newest_messages(mp: Milepost) -> None:
    await mp.append("typed-1", [NewMessage("typed.b"), NewMessage("typed.a"), NewMessage("typed.b")])
    found = await LogCatalogue(ScopeGuard(mp, UNLIMITED_SCOPE)).types("typed", "")
    assert [(each.name, each.count) for each in found] == [("typed.a", 1), ("typed.b", 2)]
    assert [each.name for each in await LogCatalogue(ScopeGuard(mp, UNLIMITED_SCOPE)).types("", "typed")] == [
        "typed.a",
        "typed.b",
    ]
    assert await LogCatalogue(ScopeGuard(mp, UNLIMITED_SCOPE)).types("", "nothing") == []


@pytest.mark.shard("large")
async def test_no_statement_reads_more_than_it_shows(mp: Milepost) -> None:
    """With many streams and messages, each page touches few of them: a lost index is a failing test."""
    statements = Statements(mp.settings["schema"].value, "milepost.log.postgres")
    await mp.append_many({f"bulk-{number}": [NewMessage("bulk.a")] * 5 for number in range(2000)})
    async with mp.log.database.connection() as connection:
        await connection.execute(f'analyze "{statements.schema}".messages, "{statements.schema}".streams')
        pages: dict[str, dict[str, Any]] = {
            "catalogue_streams": {"low": "bulk", "high": "bulk~", "lows": [""], "highs": ["~"], "limit": 51},
            "catalogue_named_categories": {"categories": ["bulk", "other"]},
            "catalogue_categories": {"low": "", "high": "~", "limit": 51},
            "related": {
                "below": 3000,
                "above": 3000,
                "low": 2900,
                "high": 3100,
                "correlation": "x",
                "id": "x",
                "limit": 100,
            },
        }
        for name, parameters in pages.items():
            cursor = await connection.execute(
                "explain (analyze, buffers, format json) " + statements.get(name), parameters
            )
            row = await cursor.fetchone()
            assert row is not None
            plan = row[0][0]["Plan"]
            assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 1500, (name, plan)
            assert "Seq Scan" not in str(plan), (name, str(plan))


async def test_a_search_that_takes_long_ends_and_says_where(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (query, search):
        monkeypatch.setattr(module, "FIRST_SPAN_POSITIONS", 100)
    await mp.append("rare-1", NewMessage("rare.a", properties={"rare": True}))
    await mp.append_many({f"common-{number}": [NewMessage("common.a")] * 5 for number in range(200)})
    choice = LogCriteria(where="rare")
    seen, before = [], None
    for looks in range(1, 100):  # noqa: B007
        stretch = await LogSearch(mp, choice, seconds=0).backwards(before)
        seen += stretch.messages
        if stretch.older is None:
            break
        assert before is None or stretch.older < before
        before = stretch.older
    assert looks > 1
    assert [message.type for message in seen] == ["rare.a"]


@pytest.mark.shard("large")
async def test_a_chain_is_looked_for_in_rings_and_says_how_far(
    mp: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = {"correlation_id": "far"}
    first = await mp.append("far-1", NewMessage("far.first", metadata=same))
    for _ in range(4):
        await mp.append_many({f"filler-{number}": [NewMessage("filler.a")] * 5 for number in range(1500)})
    last = await mp.append("far-2", NewMessage("far.last", metadata=same))
    message = await message_at(ScopeGuard(mp, UNLIMITED_SCOPE), last.position)
    assert message is not None
    near = await CausationFinder(ScopeGuard(mp, UNLIMITED_SCOPE)).of(message)
    assert [link.type for link in near.links] == ["far.last"]
    assert (near.low, near.high, near.is_part) == (last.position - NEAR_POSITIONS, near.head, True)
    with monkeypatch.context() as hurry:
        hurry.setattr(message_page, "TREE_SEARCH_SECONDS", 0.0)
        hurried = await CausationFinder(ScopeGuard(mp, UNLIMITED_SCOPE)).of(message, FAR_POSITIONS)
    assert (hurried.low, hurried.is_part) == (last.position - NEAR_POSITIONS, True)
    far = await CausationFinder(ScopeGuard(mp, UNLIMITED_SCOPE)).of(message, FAR_POSITIONS)
    assert [link.position for link in far.links] == [first.position, last.position]
    assert (far.low, far.high, far.is_part) == (1, far.head, False)


async def test_an_empty_correlation_relates_nothing(mp: Milepost) -> None:
    await mp.append("one-1", NewMessage("one", metadata={"correlation_id": "", "causation_id": ""}))
    await mp.append("two-1", NewMessage("two", metadata={"correlation_id": ""}))
    message = await message_at(ScopeGuard(mp, UNLIMITED_SCOPE), 2)
    assert message is not None
    chain = await CausationFinder(ScopeGuard(mp, UNLIMITED_SCOPE)).of(message)
    assert (chain.correlation, [link.type for link in chain.links]) == (None, ["two"])


@pytest.mark.shard("browser")
async def test_one_finds_the_way_from_categories_to_a_message(site: Site, page: Page, mp: Milepost) -> None:
    await mp.append("way-1", NewMessage("way.<b a&lt;"))
    await page.goto(site.path("log"))
    await page.get_by_role("link", name="Categories").click()
    await page.get_by_label("Categories that begin with").fill("wa")
    await page.keyboard.press("Enter")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.get_by_role("link", name="Types of way").click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page.locator("tbody tr")).to_contain_text("way.<b a&lt;")
    await page.go_back()
    await page.get_by_role("link", name="Streams of way").click()
    await page.get_by_role("link", name="way-1", exact=True).click()
    await page.locator("#entries tbody th a").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("way.<b a&lt;")


@pytest.mark.shard("browser")
async def test_a_name_that_is_not_there_is_said(site: Site, page: Page) -> None:
    for part, words in {
        "streams": "No stream begins with that.",
        "categories": "No category begins with that.",
        "types": "None of the newest 20,000 messages has such a type.",
    }.items():
        await page.goto(f"{site.path('log', part)}?prefix=nowhere")
        await expect(page.locator(".empty")).to_have_text(words)
        await assert_readable(page)
