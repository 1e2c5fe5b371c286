"""Every page reads well: in both themes, on a phone, and for those who do not see it."""

from typing import Any

import pytest
from playwright.async_api import Page, expect

from console.reading import assert_readable
from console.site import Site
from milepost import Message, NewMessage, Retry

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.shard("browser")]

PATHS = (
    "",
    "subscriptions/default/failing",
    "parked",
    "parked/default/failing",
    "parked/default/failing/1",
    "trace",
    "trace?q=order-1",
    "log",
    "log?category=order&where=amount+%3E+3&follow=1",
    "log/2",
    "log/streams?prefix=order",
    "log/categories?prefix=or",
    "log/types?category=order",
    "log/append",
    "filter",
    "tokens",
    "filter?where=amount+%3E+3+%26%26+region+%3D%3D+1&properties=%7B%22amount%22%3A5%2C%22region%22%3A2%7D",
)


@pytest.mark.parametrize("path", PATHS)
async def test_a_page(site: Site, page: Page, path: str) -> None:
    program = site.milepost()

    @program.subscription("failing", category="order", retry=Retry(attempts=1), on_park="block")
    async def fail(message: Message[Any]) -> None:
        raise ValueError("no address")

    async with program:
        for number in range(2):
            metadata = {"correlation_id": f"c-{number}"}
            message = NewMessage("<b a&lt;", {"a": 1}, properties={"amount": 5}, metadata=metadata)
            await program.append("order-1", message)
        await program.run_until_idle(errors="park")
    await page.goto(site.path(path))
    await expect(page.locator("main h1").first).to_be_attached()
    await assert_readable(page)
