"""The filter playground."""

from urllib.parse import urlencode

import httpx
import pytest
from playwright.async_api import Page, expect

from console.reading import assert_accessible, assert_readable
from console.site import Site
from milepost import Milepost, NewMessage

pytestmark = pytest.mark.asyncio(loop_scope="session")


def address(site: Site, **query: object) -> str:
    return f"{site.path('filter')}?{urlencode(query)}"


async def test_an_expression_is_explained_as_one_types_and_the_address_goes_along(site: Site, page: Page) -> None:
    await page.goto(site.path("filter"))
    result = page.locator("#result")
    await expect(result).to_contain_text("Nothing to explain yet")
    await assert_accessible(page)
    # By keyboard alone: the first field has the focus.
    await page.keyboard.type('total > 100 && region == "EU"')
    await expect(result).to_contain_text("can be used")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    await page.keyboard.type('{"total": 120, "region": "UK"}')
    await expect(result.locator("h2")).to_have_text("no match")
    await expect(result.locator(".tree li")).to_have_count(5)
    await expect(result.locator(".part")).to_have_text(
        [
            'total > 100 && region == "EU" false',
            "total > 100 true",
            "total 120",
            'region == "EU" false',
            'region "UK"',
        ]
    )
    copied = page.url
    await page.goto(site.path())
    await page.goto(copied)
    await expect(result.locator("h2")).to_have_text("no match")
    await page.locator("[name=properties]").fill('{"total": 120, "region": "EU"}')
    await expect(result.locator("h2")).to_have_text("match")


@pytest.mark.shard("browser")
async def test_a_real_message_is_taken_by_position_or_id(site: Site, page: Page, mp: Milepost) -> None:
    known = "8f6e1f60-3a3c-4a58-9c0b-8a1b8b9f2d11"
    appended = await mp.append("tried-1", NewMessage("tried.a", properties={"total": 7}, id=known))
    await page.goto(address(site, where="total == 7"))
    result = page.locator("#result")
    for wanted in (known, str(appended.position)):
        await page.locator("[name=message]").fill(wanted)
        await expect(result.locator("h2")).to_have_text("match")
        await expect(result).to_contain_text(f"Properties of tried.a at {appended.position}")
    await assert_readable(page)
    await page.get_by_role("link", name="Change them").click()
    await expect(page.locator("[name=properties]")).to_have_value('{\n  "total": 7\n}')
    await expect(result.locator("h2")).to_have_text("match")
    await page.get_by_role("link", name="On the newest message").press("Enter")
    await expect(page.locator("[name=message]")).to_have_value(str(appended.position))
    await expect(result).to_contain_text("Properties of tried.a")


@pytest.mark.shard("browser")
@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"where": "a == "}, "found the end (character 5)"),
        ({"where": "a = 1 nad b"}, 'did you mean "and"?'),
        ({"where": '1 == "a"'}, "cannot be used"),
        ({"where": "a", "properties": "{"}, "Properties: this is no JSON"),
        ({"where": "a", "properties": "[1]"}, "Properties: an object is wanted"),
        ({"where": "a", "properties": '{"a": [1]}'}, "an integer, a string or a boolean is wanted"),
        ({"where": "a", "message": "9999999"}, "Message: there is no message 9999999"),
        ({"where": "a", "message": "<b>"}, "Message: a position such as 81,244 is wanted"),
        ({"where": "a == EU", "properties": '{"a": "EU"}'}, 'did you mean "EU"? Without quotes it is a property'),
        ({"where": "a" * 4097}, "4,097 bytes, more than 4,096"),
        ({"where": "a", "properties": " " * 5990 + '{"a": "12345"}'}, "over the limit of 6,000"),
    ],
)
async def test_what_is_wrong_is_said_in_words(site: Site, page: Page, query: dict[str, str], words: str) -> None:
    await page.goto(address(site, **query))
    await expect(page.locator("#result")).to_contain_text(words)
    await assert_readable(page)


@pytest.mark.shard("browser")
async def test_text_is_shown_as_text(site: Site, page: Page) -> None:
    hostile = '"<img src=x onerror=window.broken=1>"'
    await page.goto(address(site, where=f"a == {hostile}", properties=f'{{"a": {hostile}}}'))
    await expect(page.locator("#result h2")).to_have_text("match")
    await page.goto(address(site, where="<script>window.broken=1</script>"))
    await expect(page.locator("#result mark")).to_have_text("<")
    assert await page.evaluate("window.broken") is None


async def test_the_longest_filter_is_explained(site: Site) -> None:
    deep = "+".join(["a"] * 250) + " > 0"
    async with httpx.AsyncClient(base_url=site.address) as client:
        answer = await client.get("/console/filter", params={"where": deep, "properties": '{"a": 1}'})
        assert answer.status_code == 200
        assert answer.text.count("<li>") > 250
        assert answer.text.count("<ul>") == answer.text.count("</ul>")


@pytest.mark.shard("browser")
async def test_an_address_that_would_be_too_long_is_said(site: Site, page: Page) -> None:
    await page.goto(address(site, where="a == 1"))
    await page.locator("[name=properties]").fill('{"a": "' + "€" * 5900 + '"}')
    await expect(page.locator("#result")).to_have_text(
        "It is too long for an address: shorten it, or name a message instead."
    )
