"""How a page reads for those who do not see it, or see it on a phone."""

from typing import Literal

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page


async def assert_accessible(page: Page) -> None:
    """None of the rules of axe is broken."""
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


async def assert_readable(page: Page) -> None:
    """In both themes, and without scrolling sideways at the width of a phone."""
    before = page.viewport_size
    themes: tuple[Literal["dark", "light"], ...] = ("dark", "light")
    for theme in themes:
        await page.emulate_media(color_scheme=theme)
        await assert_accessible(page)
    await page.set_viewport_size({"width": 360, "height": 700})
    assert await page.evaluate("document.documentElement.scrollWidth") == 360
    await assert_accessible(page)
    if before is not None:
        await page.set_viewport_size(before)
