"""The overview."""

import asyncio
import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from console.reading import assert_accessible, assert_readable
from console.site import Site
from milepost import Message, Milepost, NewMessage, Park, Retry

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.shard("browser")
async def test_an_empty_log_says_what_to_do(site: Site, page: Page) -> None:
    await page.goto(site.address)
    await expect(page).to_have_url(site.path())
    await expect(page.get_by_text("Nothing needs attention")).to_be_visible()
    await expect(page.get_by_text("Nobody follows the log yet")).to_be_visible()
    await assert_accessible(page)


async def test_what_happens_arrives_without_a_reload(site: Site, page: Page, mp: Milepost) -> None:
    await mp.create_subscription("arriving", category="arriving", start="now")
    await page.goto(site.path())
    await page.evaluate("window.wasHere = true")
    row = page.locator("tr", has_text="arriving")
    await expect(row.locator("td").nth(1)).to_have_text("0")
    for number in range(3):
        await mp.append(f"arriving-{number}", NewMessage("a"))
    await expect(row.locator("td").nth(1)).to_have_text("3")
    await expect(page.locator("#attention")).to_contain_text(
        "default/arriving is served by nobody, with 3 positions"
    )
    await mp.create_subscription("later")
    await expect(page.locator("tr", has_text="default/later")).to_be_visible()
    assert await page.evaluate("window.wasHere")
    await mp.manage("arriving").delete()
    await expect(row).to_have_count(0)


@pytest.mark.shard("browser")
async def test_who_holds_the_horizon_is_named_while_that_lasts(site: Site, page: Page, mp: Milepost) -> None:
    """It comes without a reload, on a page that follows and on one that does not."""
    await page.goto(site.path())
    await expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    banner = page.locator("#horizon-held")
    await expect(banner).to_be_hidden()
    async with mp.log.database.connection() as holder, holder.transaction():
        await mp.append("order-1", NewMessage("a"), connection=holder)
        await mp.append("order-2", NewMessage("a"))
        await expect(banner).to_contain_text("2 positions are held back by pid")
        pid = holder.info.backend_pid
        await expect(banner.locator("code")).to_have_text(f"select pg_terminate_backend({pid})")
        await assert_accessible(page)
        await assert_readable(page)
        await page.goto(site.path("log"))
        await expect(banner).to_contain_text(f"pid {pid}")
        await page.goto(site.path())
    await expect(banner).to_be_hidden()


@pytest.mark.shard("browser")
async def test_what_needs_attention_comes_first(site: Site, page: Page) -> None:
    program = site.milepost(group="shop")

    @program.subscription("failing", category="failing", retry=Retry(attempts=1), on_park="block")
    async def failing(message: Message[Any]) -> None:
        raise ValueError("no such customer")

    async with program:
        await program.append("failing-1", [NewMessage("a"), NewMessage("a")])
        await program.run_until_idle(errors="park")
        await page.goto(site.path())
        remark = page.locator("#attention li", has_text="shop/failing")
        await expect(remark.first).to_contain_text("has 1 parked message; 1 waits behind another")
        await expect(
            page.locator("tr", has_text="shop/failing").get_by_role("link", name="1", exact=True)
        ).to_be_visible()
        async with program.running():
            await expect(page.locator("#workers tbody tr")).to_have_count(1)
            await expect(page.locator("tr", has_text="shop/failing").locator(".status")).to_have_text("running")


@pytest.mark.shard("browser")
async def test_every_number_of_a_subscription_is_in_its_row(site: Site, page: Page) -> None:
    program, go_on = site.milepost(group="shop"), asyncio.Event()

    @program.subscription("counted", category="counted", lanes=2, retry=Retry(delay=600), timeout=600)
    async def count(message: Message[Any]) -> None:
        if message.type == "waits":
            await go_on.wait()
        raise Park("no") if message.type == "parks" else ValueError("not now")

    async with program, program.running(only=["counted"]):
        for number, kind in enumerate(("parks", "fails", "waits")):
            await program.append(f"counted-{number}", NewMessage(kind))
        await page.goto(site.path())
        row = page.locator("#subscriptions tr", has_text="shop/counted")
        await expect(row.locator("td").nth(8)).to_have_text("2 / 2")
        [owner] = (await program.manage("counted").info()).owners
        # Status, lag, behind, rate, the last minutes, in flight, retrying, parked, lanes, owners.
        for at, words in {0: "running", 1: "1", 5: "1", 6: "1", 7: "1", 9: owner}.items():
            await expect(row.locator("td").nth(at)).to_have_text(words)
        await expect(row.locator("td").nth(2)).to_contain_text("s")
        await expect(row.locator("td").nth(3)).to_have_text(re.compile(r"\d"))
        await expect(row.get_by_role("img")).to_have_count(1)
        await page.get_by_role("link", name="shop/counted").last.click()
        for name in ("Lag", "Throughput", "Handling time"):
            await expect(page.get_by_role("figure", name=name)).to_contain_text("now")
        go_on.set()


async def places(page: Page) -> list[list[float]]:
    """Where the figures and the rows begin, below the banner. A status that says more makes its column wider."""
    return await page.evaluate(  # type: ignore[no-any-return]
        """() => {
            const top = document.querySelector("main").getBoundingClientRect().y;
            return [...document.querySelectorAll("#log dt, #subscriptions tr th:first-child")]
                .map(each => [each.getBoundingClientRect().x, each.getBoundingClientRect().y - top]);
        }"""
    )


@pytest.mark.shard("browser")
async def test_whoever_holds_the_horizon_is_named_and_nothing_moves(site: Site, page: Page, mp: Milepost) -> None:
    await mp.create_subscription("waiting", category="held")
    await page.goto(site.path())
    await expect(page.locator("#log")).to_contain_text("horizon and head")
    await expect(page.locator("tr", has_text="default/waiting")).to_be_visible()
    await expect(page.locator("#pulse")).to_have_text("live")
    before = await places(page)
    async with mp.log.database.connection() as connection, connection.transaction():
        await mp.append("held-1", NewMessage("a"), connection=connection)
        await expect(page.locator("#log")).to_contain_text(f"pid {connection.info.backend_pid} milepost,")
        await expect(page.locator("#log")).to_contain_text("drawn")
        assert await places(page) == before
    await expect(page.locator("#log")).to_contain_text("nobody")
    await mp.manage("waiting").delete()


@pytest.mark.shard("browser")
async def test_it_is_paused_while_a_dialog_is_open_or_nobody_looks(site: Site, page: Page, mp: Milepost) -> None:
    await page.goto(site.path())
    pulse = page.locator("#pulse")
    await expect(pulse).to_have_text("live")
    await page.get_by_role("button", name="Create…").click()
    await expect(pulse).to_have_text("paused")
    await mp.create_subscription("meanwhile")
    await page.keyboard.press("Escape")
    await expect(pulse).to_have_text("live")
    await expect(page.locator("tr", has_text="default/meanwhile")).to_be_visible()
    for is_hidden, words in ((True, "paused"), (False, "live")):
        await page.evaluate(
            """isHidden => {
                Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
                document.dispatchEvent(new Event("visibilitychange"));
            }""",
            is_hidden,
        )
        await expect(pulse).to_have_text(words)


@pytest.mark.shard("browser")
async def test_each_page_is_accessible_in_both_themes_and_fits_a_phone(
    site: Site, page: Page, mp: Milepost
) -> None:
    await mp.create_subscription("a" * 200)
    await page.goto(site.path())
    await assert_readable(page)
    await page.get_by_role("button", name="Light or dark").click()
    # A browser may keep a cookie a moment after it was told to; reading it waits for that.
    await page.wait_for_function("document.cookie.includes('milepost_theme=dark')")
    await page.reload()
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
    await mp.manage("a" * 200).delete()


@pytest.mark.shard("browser")
async def test_a_search_box_stays_in_force_while_subscriptions_come(site: Site, page: Page, mp: Milepost) -> None:
    for number in range(9):
        await mp.create_subscription(f"sought-{number}")
    await page.goto(site.path())
    await page.get_by_label("Show only subscriptions").fill("SOUGHT-3")
    shown = page.locator("#subscriptions > tbody > tr:visible")
    await expect(shown).to_have_count(1)
    await mp.create_subscription("sought-33")
    await expect(shown).to_have_count(2)
    await expect(page.get_by_label("Show only subscriptions")).to_have_value("SOUGHT-3")
    await page.get_by_label("Show only subscriptions").fill("nothing like it")
    await expect(page.get_by_text("No subscription has that in its name or status")).to_be_visible()
    for number in (*range(9), 33):
        await mp.manage(f"sought-{number}").delete()


@pytest.mark.shard("browser")
async def test_the_focus_stays_where_it_is_while_subscriptions_come_and_go(
    site: Site, page: Page, mp: Milepost
) -> None:
    for name in ("focus-b", "focus-d"):
        await mp.create_subscription(name)
    await page.goto(site.path())
    link = page.locator("#subscriptions").get_by_role("link", name="default/focus-d")
    await link.focus()
    await mp.create_subscription("focus-c")
    await expect(page.locator("tr", has_text="focus-c")).to_be_visible()
    await expect(link).to_be_focused()
    await mp.manage("focus-b").delete()
    await expect(page.locator("tr", has_text="focus-b")).to_have_count(0)
    await expect(link).to_be_focused()
    rows = await page.locator("#subscriptions tbody th").all_inner_texts()
    assert rows == sorted(rows)
    for name in ("focus-c", "focus-d"):
        await mp.manage(name).delete()


@pytest.mark.shard("browser")
async def test_a_search_box_that_goes_leaves_nothing_hidden(site: Site, page: Page, mp: Milepost) -> None:
    others = len(await mp.subscriptions())
    for number in range(9 - others):
        await mp.create_subscription(f"few-{number}")
    await page.goto(site.path())
    box, rows = page.get_by_label("Show only subscriptions"), page.locator("#subscriptions > tbody > tr:visible")
    await box.fill("few-0")
    await expect(rows).to_have_count(1)
    await mp.manage("few-0").delete()
    await expect(box).to_have_count(0)
    await expect(rows).to_have_count(8)
    for number in range(1, 9 - others):
        await mp.manage(f"few-{number}").delete()
