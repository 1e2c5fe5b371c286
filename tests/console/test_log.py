"""The log: reading, following, one message and what belongs to it."""

from uuid import uuid4

import httpx
import pytest
from playwright.async_api import Page, expect
from psycopg import sql

from console.reading import assert_accessible, assert_readable
from console.site import Site
from milepost import Milepost, NewMessage
from milepost.console.templating import MAX_SHOWN_CHARACTERS

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = "</pre></td><script>window.broken = true</script><img src=x onerror='window.broken = true'>"


async def fill_in(page: Page, **fields: str) -> None:
    for name, value in fields.items():
        await page.locator(f"#choice [name={name}]").fill(value)


async def assert_positions(page: Page, *positions: int) -> None:
    """These rows are shown, as soon as the page is there."""
    rows = page.locator("#entries tbody th.at")
    await expect(rows).to_have_text([f"{position:,}" for position in positions])


@pytest.mark.shard("browser")
async def test_an_empty_log_says_how_to_begin(site: Site, page: Page) -> None:
    await page.goto(site.path("log"))
    await expect(page.get_by_text("Nothing was appended yet")).to_be_visible()
    await assert_readable(page)


@pytest.mark.shard("browser")
async def test_messages_are_read_newest_first_and_in_pages(site: Site, page: Page, mp: Milepost) -> None:
    for number in range(3):
        last = await mp.append(f"paged-{number}", [NewMessage("paged.a", {"n": n}) for n in range(20)])
    await page.goto(f"{site.path('log')}?category=paged")
    first = range(last.position, last.position - 50, -1)
    await assert_positions(page, *first)
    await page.get_by_role("link", name="Older").click()
    await assert_positions(page, *range(last.position - 50, last.position - 60, -1))
    await page.get_by_role("link", name="← Newer").click()
    await assert_positions(page, *first)
    await page.locator("#choice [name=order]").select_option("oldest")
    await page.get_by_role("button", name="Read").click()
    await expect(page).to_have_url(f"{site.path('log')}?stream=&category=paged&type=&where=&order=oldest")
    await assert_positions(page, *range(last.position - 59, last.position - 9))
    await expect(page.locator("#entries tbody tr").first).to_contain_text(
        'paged-0 v1 {"n": 0}', use_inner_text=True
    )


@pytest.mark.shard("browser")
async def test_stream_category_type_and_filter_narrow_it(site: Site, page: Page, mp: Milepost) -> None:
    await mp.append("narrow-1", NewMessage("narrow.small", {}, properties={"total": 1}))
    large = await mp.append("narrow-1", NewMessage("narrow.large", {}, properties={"total": 100}))
    other = await mp.append("narrow-2", NewMessage("narrow.large", {}, properties={"total": 200}))
    await mp.append("narrowest-1", NewMessage("narrow.large", {}, properties={"total": 300}))
    await page.goto(site.path("log"))
    await fill_in(page, category="narrow", type="narrow.*", where="total >= 100")
    await page.locator("#choice [name=where]").press("Enter")
    await expect(page.locator("#entries tbody tr")).to_have_count(2)
    await assert_positions(page, other.position, large.position)
    await page.get_by_role("link", name="narrow-1", exact=True).click()
    await expect(page.locator("#choice [name=stream]")).to_have_value("narrow-1")
    await assert_positions(page, large.position, large.position - 1)


@pytest.mark.shard("browser")
async def test_a_filter_is_checked_and_explained_while_it_is_typed(site: Site, page: Page, mp: Milepost) -> None:
    await mp.append("typed-1", NewMessage("typed.a", {}, properties={"total": 5, "region": "EU"}))
    await page.goto(f"{site.path('log')}?category=typed")
    field, said = page.locator("#choice [name=where]"), page.locator("#checked")
    await field.press_sequentially("total > 3 & region")
    await expect(said).to_contain_text('did you mean "&&"?')
    await expect(said.locator("mark")).to_have_text("&")
    await expect(field).to_have_attribute("aria-invalid", "true")
    await field.fill("total > ")
    await expect(said.locator("mark")).to_have_text(" ")
    await field.fill('total > 3 && region == "EU"')
    await expect(said).to_contain_text("Matches 1 of the newest 1 message of what is chosen besides.")
    await expect(field).not_to_have_attribute("aria-invalid", "true")
    await said.locator("summary").press("Enter")
    await expect(said.locator(".tree")).to_contain_text('region == "EU" true', use_inner_text=True)
    await assert_readable(page)
    await field.fill("total > 3 && regin == 1")
    await expect(said).to_contain_text("Matches 0 of the newest 1 message")
    await expect(said).to_contain_text("None of them has regin.")
    await field.fill("")
    await expect(said).to_be_empty()


@pytest.mark.shard("browser")
async def test_what_cannot_be_read_is_said(site: Site, page: Page) -> None:
    for query, words in {
        "stream=-x": "has no category",
        "where=a+%3D%3D": "The filter cannot be used",
        "before=soon": "a position is wanted, not 'soon'",
        "type=a.b*": "* and > stand for whole parts",
    }.items():
        answer = await page.goto(f"{site.path('log')}?{query}")
        assert answer is not None
        assert answer.status == 400
        await expect(page.get_by_role("alert")).to_contain_text(words)
        await assert_readable(page)


@pytest.mark.shard("browser")
async def test_what_is_appended_arrives_and_nothing_else_does(site: Site, page: Page, mp: Milepost) -> None:
    await mp.append("tail-1", NewMessage("tail.before", {}, properties={"total": 9}))
    await page.goto(f"{site.path('log')}?category=tail")
    await fill_in(page, where="total > 3")
    await expect(page.locator("#checked")).to_contain_text("Matches 1")
    follow = page.get_by_role("button", name="Follow")
    await follow.press("Enter")
    await expect(page.locator("#tail-state")).to_have_text("Live.")
    await expect(follow).to_have_attribute("aria-pressed", "true")
    rows = page.locator("#entries tbody tr")
    await mp.append("tail-1", NewMessage("tail.small", {}, properties={"total": 1}))
    await mp.append("other-1", NewMessage("tail.elsewhere", {}, properties={"total": 100}))
    await mp.append("tail-2", NewMessage("tail.large", {"a": HOSTILE}, properties={"total": 100}))
    await expect(rows.first).to_contain_text("tail.large")
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("<script>window.broken")
    assert await page.evaluate("window.broken") is None
    # Another filter that can be used is taken over; one that cannot changes nothing.
    await fill_in(page, where="total > ")
    await expect(page.locator("#checked mark")).to_be_visible()
    await mp.append("tail-2", NewMessage("tail.again", {}, properties={"total": 50}))
    await expect(rows.first).to_contain_text("tail.again")
    await fill_in(page, where="total > 99")
    await expect(rows).to_have_count(1)
    await expect(page.locator("#tail-state")).to_have_text("Live.")
    await fill_in(page, where="total > 1000")
    await expect(rows).to_have_count(0)
    await fill_in(page, where="total > 0")
    await expect(rows).to_have_count(4)
    await expect(rows.first).to_be_visible()
    await assert_accessible(page)
    await follow.press("Enter")
    await expect(page.locator("#tail-state")).to_have_text("Not followed any more.")


@pytest.mark.shard("browser")
async def test_the_tail_holds_back_what_comes_while_a_row_is_read(site: Site, page: Page, mp: Milepost) -> None:
    await mp.append("held-1", NewMessage("held.first"))
    await page.goto(f"{site.path('log')}?category=held&follow=1")
    await expect(page.locator("#tail-state")).to_have_text("Live.")
    rows = page.locator("#entries tbody tr")
    await rows.first.get_by_role("link").first.focus()
    await mp.append("held-1", NewMessage("held.second"))
    show = page.get_by_role("button", name="Show 1 new")
    await expect(show).to_be_visible()
    await expect(rows).to_have_count(1)
    await show.press("Enter")
    await expect(rows).to_have_count(2)
    await page.locator("h1").click()
    await rows.last.hover()
    await mp.append("held-1", NewMessage("held.third"))
    await expect(show).to_be_visible()
    await page.mouse.move(1, 1)
    await expect(rows).to_have_count(3)
    await expect(show).to_be_hidden()
    await expect(rows.first).to_contain_text("held.third")


@pytest.mark.shard("browser")
async def test_the_tail_goes_on_after_a_pause_without_a_gap(site: Site, page: Page, mp: Milepost) -> None:
    await page.goto(f"{site.path('log')}?category=gap&follow=1")
    state = page.locator("#tail-state")
    await expect(state).to_have_text("Live.")
    await page.evaluate("document.body.appendChild(document.createElement('dialog')).showModal()")
    await expect(state).to_have_text("Paused.")
    for number in range(3):
        await mp.append(f"gap-{number}", NewMessage("gap.meanwhile"))
    await page.evaluate("document.querySelector('dialog').close()")
    await expect(page.locator("#entries tbody tr")).to_have_count(3)
    await expect(state).to_have_text("Live.")


@pytest.mark.shard("browser")
async def test_more_than_can_be_read_is_counted_and_not_sent(site: Site, page: Page, mp: Milepost) -> None:
    await page.goto(f"{site.path('log')}?category=many&follow=1")
    await expect(page.locator("#tail-state")).to_have_text("Live.")
    last = await mp.append("many-1", [NewMessage("many.a")] * 500)
    await expect(page.locator("#tail-state")).to_have_text("Live. 450 came too fast to be shown.")
    await assert_positions(page, *range(last.position, last.position - 50, -1))


@pytest.mark.shard("browser")
async def test_a_message_is_shown_with_all_it_has(site: Site, page: Page, mp: Milepost) -> None:
    first = await mp.append("shown-1", NewMessage("shown.first"))
    appended = await mp.append(
        "shown-1",
        NewMessage(
            "shown.<b second&lt;",
            {"text": HOSTILE, "turned": "\u202eabc", "number": 1.5, "deep": {"list": [1, 2]}},
            properties={"note": HOSTILE, "total": 12},
            metadata={"trace": HOSTILE},
        ),
    )
    await page.goto(f"{site.path('log')}/{appended.position}")
    await expect(page.get_by_role("heading", level=1)).to_have_text("shown.<b second&lt;")
    payload = page.get_by_role("region", name="Payload")
    await expect(payload).to_contain_text('"list": [\n      1,\n      2\n    ]', use_inner_text=True)
    await expect(payload).to_contain_text("</pre></td><script>window.broken")
    await expect(payload).to_contain_text("\\u202eabc")
    await expect(page.get_by_role("region", name="Properties")).to_contain_text("</pre></td><script>")
    await expect(page.get_by_role("region", name="Metadata")).to_contain_text("</pre></td><script>")
    assert await page.evaluate("window.broken") is None
    await assert_accessible(page)
    await page.get_by_role("link", name="← Version 1").click()
    await expect(page).to_have_url(f"{site.path('log')}/{first.position}")
    await page.get_by_role("link", name="Version 2 →").click()
    await expect(page).to_have_url(f"{site.path('log')}/{appended.position}")
    await page.get_by_role("link", name="Try a filter on it").click()
    await expect(page).to_have_url(f"{site.path('filter')}?message={appended.position}")


@pytest.mark.shard("browser")
async def test_a_payload_that_is_nested_very_deeply_is_shown_as_it_is(
    site: Site, page: Page, mp: Milepost
) -> None:
    # As deep as the database lets in, to within some.
    deep = "[" * 450 + "]" * 450
    statement = sql.SQL("select ({}.append('deep-1', 'deep.a', %s::jsonb)).position")
    async with mp.log.database.connection() as connection:
        cursor = await connection.execute(statement.format(sql.Identifier(site.schema)), [deep])
        row = await cursor.fetchone()
    assert row is not None
    await page.goto(f"{site.path('log')}/{row[0]}")
    await expect(page.get_by_role("region", name="Payload")).to_contain_text("[ " * 40)
    await page.goto(f"{site.path('log')}?category=deep")
    await expect(page.locator("#entries tbody tr")).to_have_count(1)


@pytest.mark.shard("browser")
async def test_a_large_payload_is_shown_in_part_until_all_is_asked_for(
    site: Site, page: Page, mp: Milepost
) -> None:
    appended = await mp.append("large-1", NewMessage("large.a", ["x" * 100] * 3000))
    await page.goto(f"{site.path('log')}/{appended.position}")
    payload = page.get_by_role("region", name="Payload")
    assert len(await payload.text_content() or "") == MAX_SHOWN_CHARACTERS
    await page.get_by_role("link", name="more characters").click()
    await expect(page.get_by_role("link", name="more characters")).to_have_count(0)
    assert len(await payload.text_content() or "") > 300_000


@pytest.mark.shard("browser")
async def test_what_belongs_together_is_a_tree_of_causes(site: Site, page: Page, mp: Milepost) -> None:
    root, child = uuid4(), uuid4()
    same = {"correlation_id": "checkout-7"}
    await mp.append("chain-1", NewMessage("chain.root", metadata=same, id=root))
    await mp.append("unrelated-1", NewMessage("chain.unrelated", metadata={"correlation_id": "checkout-8"}))
    await mp.append("chain-2", NewMessage("chain.child", metadata={**same, "causation_id": str(root)}, id=child))
    last = await mp.append("chain-3", NewMessage("chain.leaf", metadata={"causation_id": str(child)}))
    await mp.append("chain-4", NewMessage("chain.beside", metadata={**same, "causation_id": str(root)}))
    await mp.append("chain-5", NewMessage("chain.alone", metadata=same))
    await page.goto(f"{site.path('log')}/{last.position}")
    links = page.locator("section:has(#chain-title) tbody tr")
    # It has no correlation id itself: its causes are found by their ids, and nothing beside them.
    await expect(links.locator("th a")).to_have_text(["chain.root", "chain.child", "chain.leaf"])
    await links.nth(1).get_by_role("link").click()
    await expect(links.locator("th a")).to_have_text(
        ["chain.root", "chain.child", "chain.leaf", "chain.beside", "chain.alone"]
    )
    assert [await each.get_attribute("class") for each in await links.locator("th").all()] == [
        f"depth d{depth}" for depth in (0, 1, 2, 1, 0)
    ]
    await expect(links.nth(1)).to_have_attribute("aria-current", "true")
    await assert_readable(page)


@pytest.mark.shard("browser")
async def test_messages_that_cause_each_other_do_not_go_in_circles(site: Site, page: Page, mp: Milepost) -> None:
    one, other = uuid4(), uuid4()
    await mp.append("circle-1", NewMessage("circle.one", metadata={"causation_id": str(other)}, id=one))
    last = await mp.append("circle-2", NewMessage("circle.other", metadata={"causation_id": str(one)}, id=other))
    await page.goto(f"{site.path('log')}/{last.position}")
    links = page.locator("section:has(#chain-title) tbody tr th a")
    await expect(links).to_have_text(["circle.one", "circle.other"])


@pytest.mark.shard("browser")
async def test_one_gets_from_a_message_to_where_it_is_and_back(site: Site, page: Page, mp: Milepost) -> None:
    appended = await mp.append("there-1", NewMessage("there.a"))
    await page.goto(f"{site.path('log')}/{appended.position}")
    await page.get_by_role("link", name="Where is it?").click()
    await expect(page.get_by_role("heading", level=2)).to_contain_text("there-1")
    await page.get_by_role("link", name=f"position {appended.position}").click()
    await expect(page).to_have_url(f"{site.path('log')}/{appended.position}")


@pytest.mark.shard("browser")
async def test_a_message_is_found_by_its_position_or_its_id(site: Site, page: Page, mp: Milepost) -> None:
    known = uuid4()
    appended = await mp.append("found-1", NewMessage("found.a", id=known))
    for wanted in (f"{appended.position:,}", str(known)):
        await page.goto(site.path("log"))
        await page.get_by_label("Position or id of a message").fill(wanted)
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{site.path('log')}/{appended.position}")
    for wanted, words in {str(uuid4()): "No message has this id.", "nothing": "a position such as"}.items():
        await page.goto(site.path("log"))
        await page.get_by_label("Position or id of a message").fill(wanted)
        await page.get_by_role("button", name="Open").press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text(words)
    answer = await page.goto(f"{site.path('log')}/123456789")
    assert answer is not None
    assert answer.status == 404
    await expect(page.get_by_text("There is no message at position 123,456,789")).to_be_visible()


async def test_a_tail_with_a_filter_that_is_wrong_is_refused(site: Site) -> None:
    async with httpx.AsyncClient(base_url=site.address) as client:
        answer = await client.get("/console/log/tail?where=a+%3D%3D")
        assert answer.status_code == 400
