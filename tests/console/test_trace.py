"""Where is my message."""

from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Page, expect

from console.reading import assert_accessible
from console.site import Site
from milepost import Message, NewMessage, Retry

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_what_became_of_each_message_for_every_subscription(site: Site, page: Page) -> None:
    program = site.milepost()

    @program.subscription("failing", category="order", retry=Retry(attempts=1))
    async def fail(message: Message[Any]) -> None:
        raise ValueError("no address")

    @program.subscription("large", category="order", where="amount > 100")
    async def large(message: Message[Any]) -> None: ...

    async with program:
        for _ in range(2):
            await program.append("order-42", NewMessage("order.placed", properties={"amount": 5}))
        await program.run_until_idle(errors="park")
        await page.goto(site.path("trace"))
        await assert_accessible(page)
        await page.get_by_label("Stream or id").fill("order-42")
        await page.keyboard.press("Enter")
        newest, oldest = page.locator(".traced").nth(0), page.locator(".traced").nth(1)
        await expect(newest.locator("tr", has_text="default/failing")).to_contain_text("behind order-42 version 1")
        await expect(oldest.locator("tr", has_text="default/failing")).to_contain_text(
            "after 1 attempt: ValueError"
        )
        await expect(oldest.locator("tr", has_text="default/large")).to_contain_text("amount > 100")

        await oldest.get_by_role("link", name="parked").click()
        await expect(page.locator("pre.error")).to_contain_text("no address")

        [message] = [m async for m in program.read("order-42", limit=1)]
        await page.goto(f"{site.path('trace')}?q={message.id}&subscription=default/large")
        await expect(page.locator(".traced")).to_have_count(1)
        await expect(page.locator(".traced tbody tr")).to_have_count(1)


@pytest.mark.shard("browser")
async def test_a_long_stream_is_read_in_pages(site: Site, page: Page) -> None:
    async with site.milepost() as program:
        await program.append("long-1", [NewMessage("a") for _ in range(23)])
    await page.goto(f"{site.path('trace')}?q=long-1")
    await expect(page.locator(".traced")).to_have_count(20)
    await page.get_by_role("link", name="Older messages").click()
    await expect(page.locator(".traced")).to_have_count(3)


@pytest.mark.shard("browser")
async def test_what_is_not_there_and_what_cannot_be(site: Site, page: Page) -> None:
    hostile = "<b>order</b>-\"1' & 2"
    await page.goto(f"{site.path('trace')}?q={quote(hostile)}")
    await expect(page.locator(".empty")).to_contain_text(f"There is no message in stream {hostile}")
    await expect(page.get_by_label("Stream or id")).to_have_value(hostile)
    await page.goto(f"{site.path('trace')}?q=order-42&before_version=x")
    await expect(page.get_by_role("alert")).to_contain_text("a version is wanted, not 'x'")
    answer = await page.goto(f"{site.path('trace')}?q=a%00b")
    assert answer is not None
    assert answer.status == 400
