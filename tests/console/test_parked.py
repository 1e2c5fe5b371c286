"""Messages that need attention of their own, and what a person decides about them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Page, expect

from console.reading import assert_accessible, assert_readable
from console.site import Site
from milepost import Message, Milepost, NewMessage, Retry

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = "<script>document.title='hacked'</script>\"'`{{ 7*7 }}\u202eevil\u2028\x1b[31m"


@asynccontextmanager
async def parked(site: Site, name: str, messages: Sequence[NewMessage]) -> AsyncIterator[Milepost]:
    """A program whose messages all fail, each in a stream of its own unless it says otherwise."""
    program = site.milepost()

    @program.subscription(name, category=name, retry=Retry(attempts=1), on_park="block")
    async def fail(message: Message[Any]) -> None:
        raise ValueError(f"no customer {message.data}")

    async with program:
        for number, message in enumerate(messages):
            await program.append(f"{name}-{message.metadata.get('stream', number)}", message)
        await program.run_until_idle(errors="park", only=[name])
        yield program


def some(count: int) -> list[NewMessage]:
    return [NewMessage("order.placed", number) for number in range(count)]


async def states(program: Milepost, name: str) -> dict[str, int]:
    found: dict[str, int] = {}
    async for delivery in program.manage(name).deliveries():
        found[delivery.state.value] = found.get(delivery.state.value, 0) + 1
    return found


async def decide(page: Page, button: str, words: str) -> None:
    """Presses a button, reads what would happen, and confirms."""
    await page.get_by_role("button", name=button, exact=True).click()
    dialog = page.locator("dialog[open]")
    await expect(dialog.locator("output")).to_contain_text(words)
    if button.startswith("Skip all"):
        await assert_accessible(page)
    await dialog.locator("[data-do]").click()


@pytest.mark.shard("browser")
async def test_everything_about_a_message_is_shown(site: Site, page: Page) -> None:
    same = {"stream": "same", "correlation_id": "c-1"}
    properties: dict[str, str | bool] = {"region": "EU", "express": False}
    messages = [NewMessage("order.placed", {"customer": "Ada"}, properties=properties, metadata=same)] * 3
    async with parked(site, "shown", messages) as program:
        await page.goto(site.path("parked"))
        await assert_readable(page)
        await page.locator("tr", has_text="default/shown").get_by_role("link", name="1", exact=True).click()
        row = page.locator("table.deliveries > tbody > tr").first
        await expect(row).to_contain_text("ValueError: no customer {'customer': 'Ada'}")
        await expect(row.locator("td").last).to_have_text("2")
        await row.locator("[data-expand]").press("Enter")
        more = page.locator("tr.more")
        await expect(more).to_contain_text("Traceback (most recent call last)")
        await expect(more).to_contain_text('"customer": "Ada"')
        await expect(more).to_contain_text('region = "EU", express = false')
        await expect(more).to_contain_text('correlation_id = "c-1"')
        await assert_readable(page)
        await more.get_by_role("link", name="2 messages wait").click()
        await expect(page.locator("table.deliveries > tbody > tr")).to_have_count(2)
        [position] = [d.position async for d in program.manage("shown").deliveries(state="parked")]
        await page.goto(site.path("parked", "default", "shown", str(position)))
        await expect(page.get_by_role("heading", name=f"Position {position}")).to_be_visible()
        await assert_readable(page)


async def test_retry_and_skip_of_one_and_of_several(site: Site, page: Page) -> None:
    async with parked(site, "chosen", some(5)) as program:
        await page.goto(site.path("parked", "default", "chosen"))
        await expect(page.get_by_role("button", name="Retry selected…")).to_be_disabled()
        boxes = page.locator("[data-select]")
        await boxes.nth(0).check()
        await boxes.nth(1).check()
        await decide(page, "Retry selected…", "2 messages are tried now")
        await expect(page.locator(".flash")).to_have_text("2 messages are tried again.")
        assert await states(program, "chosen") == {"parked": 3, "retrying": 2}
        await page.locator("[data-expand]").first.click()
        await decide(page, "Skip this…", "1 message is passed over for good")
        await expect(page.locator(".flash")).to_have_text("1 message is skipped.")
        assert await states(program, "chosen") == {"parked": 2, "retrying": 2, "skipped": 1}
        await page.get_by_label("Select all on this page").check()
        await decide(page, "Skip selected…", "2 messages are passed over")
        await expect(page.get_by_text("Nothing of it waits for a person")).to_be_visible()
        assert await states(program, "chosen") == {"retrying": 2, "skipped": 3}


@pytest.mark.shard("browser")
async def test_all_and_all_up_to_here(site: Site, page: Page) -> None:
    async with parked(site, "many", some(6)) as program:
        await page.goto(site.path("parked", "default", "many"))
        await page.locator("[data-expand]").nth(1).click()
        await decide(page, "Skip all up to here…", "2 messages are passed over for good")
        await expect(page.locator(".flash")).to_have_text("2 messages are skipped.")
        await decide(page, "Retry all…", "4 messages are tried now")
        await expect(page.locator(".flash")).to_have_text("4 messages are tried again.")
        assert await states(program, "many") == {"retrying": 4, "skipped": 2}


@pytest.mark.shard("browser")
async def test_search_by_reason_and_only_those_are_decided_about(site: Site, page: Page) -> None:
    async with parked(site, "sought", some(3)) as program:
        await page.goto(site.path("parked", "default", "sought"))
        await page.get_by_label("Reason has").fill("CUSTOMER 1")
        await page.keyboard.press("Enter")
        await expect(page.locator("table.deliveries > tbody > tr")).to_have_count(1)
        await decide(page, "Skip all that match…", "1 message is passed over for good")
        await expect(page.get_by_text("None of its parked messages is like that")).to_be_visible()
        assert await states(program, "sought") == {"parked": 2, "skipped": 1}


@pytest.mark.shard("browser")
async def test_search_by_key_and_only_those_are_decided_about(site: Site, page: Page) -> None:
    async with parked(site, "keyed", some(5)) as program:
        deliveries = [d async for d in program.manage("keyed").deliveries()]
        await page.goto(site.path("parked", "default", "keyed"))
        await page.get_by_label("Key").fill(str(deliveries[3].key))
        await page.keyboard.press("Enter")
        await expect(page.locator("table.deliveries > tbody > tr")).to_have_count(1)
        await decide(page, "Skip all that match…", "1 message is passed over for good")
        await expect(page.get_by_text("None of its parked messages is like that")).to_be_visible()
        assert await states(program, "keyed") == {"parked": 4, "skipped": 1}
        await page.get_by_label("Key").fill(str(deliveries[2].key))
        await page.keyboard.press("Enter")
        await page.locator("[data-expand]").click()
        await decide(page, "Skip all up to here…", "1 message is passed over for good")
        await expect(page.get_by_text("None of its parked messages is like that")).to_be_visible()
        assert await states(program, "keyed") == {"parked": 3, "skipped": 2}


@pytest.mark.shard("browser")
async def test_what_was_decided_meanwhile_is_said(site: Site, page: Page) -> None:
    async with parked(site, "late", some(2)) as program:
        await page.goto(site.path("parked", "default", "late"))
        await page.get_by_label("Select all on this page").check()
        position, _ = [d.position async for d in program.manage("late").deliveries()]
        await program.manage("late").skip([position])
        await decide(page, "Skip selected…", "2 messages")
        await expect(page.locator(".flash")).to_contain_text("1 message is skipped. Not so 1 other:")
        await expect(page.locator(".flash")).to_contain_text(f"{position}: it was skipped before")


@pytest.mark.shard("browser")
async def test_pages_follow_each_other_by_position(site: Site, page: Page) -> None:
    async with parked(site, "paged", some(53)):
        await page.goto(site.path("parked", "default", "paged"))
        await expect(page.locator("table.deliveries > tbody > tr")).to_have_count(50)
        await page.get_by_role("link", name="Next page").click()
        await expect(page.locator("table.deliveries > tbody > tr")).to_have_count(3)
        await page.get_by_role("link", name="First page").click()
        await expect(page.locator("table.deliveries > tbody > tr")).to_have_count(50)


@pytest.mark.shard("browser")
async def test_the_counts_follow_and_the_list_stands_still(site: Site, page: Page) -> None:
    async with parked(site, "moving", some(2)) as program:
        await page.goto(site.path("parked", "default", "moving"))
        await page.locator("[data-select]").first.check()
        await program.manage("moving").skip(all=True)
        await expect(page.get_by_role("link", name="parked 0")).to_be_visible()
        await expect(page.locator("table.deliveries > tbody > tr")).to_have_count(2)
        await expect(page.locator("[data-select]").first).to_be_checked()


@pytest.mark.shard("browser")
async def test_hostile_text_is_only_text(site: Site, page: Page) -> None:
    large = "x" * 1_000_000
    messages = [
        NewMessage(
            HOSTILE[:40].replace(">", ""),
            {"text": HOSTILE, "nul": "a\\u0000b"},
            properties={"p": HOSTILE},
            metadata={"m": HOSTILE},
        ),
        NewMessage("large", large),
    ]
    async with parked(site, "hostile", messages):
        await page.goto(site.path("parked", "default", "hostile"))
        for at in (1, 0):
            await page.locator("[data-expand]").nth(at).click()
            await expect(page.locator("tr.more")).to_have_count(2 - at)
        more = page.locator("tr.more")
        await expect(more.first).to_contain_text("<script>document.title='hacked'</script>")
        await expect(more.first).to_contain_text("\\u202eevil")
        await expect(more.first).to_contain_text("a\\\\u0000b")
        await expect(more.last).to_contain_text("more characters")
        await more.last.get_by_role("link", name="more characters").click()
        await expect(page.locator("pre").last).to_contain_text(large[:1000])
        assert len(await page.locator("pre").last.text_content() or "") > 1_000_000
        assert "hacked" not in await page.title()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.shard("browser")
async def test_what_cannot_be_is_explained(site: Site, page: Page) -> None:
    async with parked(site, "wrong", some(1)):
        await page.goto(f"{site.path('parked', 'default', 'wrong')}?state=lost")
        await expect(page.get_by_role("heading")).to_have_text("What was sent is not what is wanted")
        await page.goto(f"{site.path('parked', 'default', 'wrong')}?after=-1")
        await expect(page.get_by_text("a position is wanted, not '-1'")).to_be_visible()
        await page.goto(site.path("parked", "default", "wrong", "999999"))
        await expect(page.get_by_text("Position 999999 has no delivery")).to_be_visible()
        await page.goto(site.path("parked", "default", "unheard-of"))
        await expect(page.get_by_role("heading")).to_have_text("There is no such subscription")
