"""Appending a message by hand."""

import httpx
import pytest
from playwright.async_api import Page, expect

from console.reading import assert_accessible
from console.site import Site
from milepost import Milepost, NewMessage
from milepost.server.access.permissions import TokenRole
from milepost.server.access.tokens import TokenStore

pytestmark = pytest.mark.asyncio(loop_scope="session")

ACCESS = "tokens"


async def log_in(page: Page, site: Site, mp: Milepost, name: str, *roles: TokenRole) -> None:
    secret = await TokenStore(mp).make(name, list(roles))
    await page.goto(site.path("login"))
    await page.get_by_label("Token").fill(secret)
    await page.get_by_role("button", name="Log in").press("Enter")
    await page.wait_for_url(site.path())


async def test_a_message_is_appended_by_keyboard_alone(site: Site, page: Page, mp: Milepost) -> None:
    await log_in(page, site, mp, "writer", TokenRole.READ, TokenRole.APPEND)
    await page.goto(site.path("log"))
    await page.get_by_role("link", name="Append…").press("Enter")
    await assert_accessible(page)
    await page.get_by_label("Stream", exact=True).focus()
    await page.keyboard.type("order-1")
    await page.keyboard.press("Tab")
    await page.keyboard.type("order.placed")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Control+A")
    await page.keyboard.type('{"total": 12.50, "big": 12345678901234567890}')
    await page.keyboard.press("Tab")
    await page.keyboard.type('{"region": "EU"}')
    await page.keyboard.press("Tab")
    await page.keyboard.type('{"correlation_id": "7d1f"}')
    await page.get_by_role("button", name="Append").press("Enter")
    await expect(page.get_by_role("status")).to_have_text("Appended to order-1 as version 1, at position 1.")
    await expect(page).to_have_url(f"{site.path('log')}/1")
    [message] = [message async for message in mp.read("order-1")]
    assert message.raw == '{"big": 12345678901234567890, "total": 12.50}'
    assert (message.type, message.properties) == ("order.placed", {"region": "EU"})
    assert message.metadata["correlation_id"] == "7d1f"


@pytest.mark.shard("browser")
async def test_what_is_wrong_is_said_and_what_was_typed_is_kept(site: Site, page: Page, mp: Milepost) -> None:
    await log_in(page, site, mp, "careless", TokenRole.READ, TokenRole.APPEND)
    await mp.append("kept-1", [NewMessage("kept.a"), NewMessage("kept.a")])
    cases = [
        ("data", '{"a": 1,\n}', "data: this is no JSON: ", "line 2, column 1"),
        ("properties", '{"a": [1]}', "an integer, a string or a boolean is wanted", ""),
        ("properties", "7", "properties: an object is wanted", ""),
        ("metadata", "[]", "metadata: an object is wanted", ""),
        ("id", "7", "id: '7' is not a UUID", ""),
        ("stream", "-x", "has no category", ""),
        ("version", "3", 'choose "at this version" as well', ""),
    ]
    for field, text, words, more in cases:
        await page.goto(f"{site.path('log', 'append')}?stream=kept-1&type=kept.b")
        await page.locator(f"[name={field}]").fill(text)
        await page.get_by_role("button", name="Append").click()
        problem = page.get_by_role("alert")
        await expect(problem).to_contain_text(words)
        await expect(problem).to_contain_text(more)
        typed = page.locator(f"[name={field}]")
        await expect(typed).to_have_value(text)
        await expect(typed).to_have_attribute("aria-invalid", "true")
        await expect(typed).to_be_focused()
        await assert_accessible(page)
    assert await mp.last("kept-1") == 2


@pytest.mark.shard("browser")
async def test_an_expected_version_is_looked_at(site: Site, page: Page, mp: Milepost) -> None:
    await log_in(page, site, mp, "expecting", TokenRole.READ, TokenRole.APPEND)
    await mp.append("versions-1", NewMessage("a"))
    await page.goto(f"{site.path('log', 'append')}?stream=versions-1&type=b")
    expected = page.get_by_label("The stream has to be")
    await expected.select_option("new")
    await page.get_by_role("button", name="Append").click()
    await expect(page.get_by_role("alert")).to_contain_text("the stream versions-1 is at version 1")
    await expect(expected).to_have_value("no_stream")
    await expected.select_option("at this version:")
    await page.locator("[name=version]").fill("1")
    await page.get_by_role("button", name="Append").click()
    await expect(page.get_by_role("status")).to_contain_text("as version 2")
    await page.goto(f"{site.path('log', 'append')}?stream=versions-none&type=b")
    await expected.select_option("there already")
    await page.get_by_role("button", name="Append").click()
    await expect(page.get_by_role("alert")).to_contain_text("versions-none has no message yet")


@pytest.mark.shard("browser")
async def test_the_same_id_is_written_once(site: Site, page: Page, mp: Milepost) -> None:
    await log_in(page, site, mp, "repeating", TokenRole.READ, TokenRole.APPEND)
    for words in ("Appended to once-1", "It was there already"):
        await page.goto(f"{site.path('log', 'append')}?stream=once-1&type=b")
        await page.locator("[name=id]").fill("8f6e1f60-3a3c-4a58-9c0b-8a1b8b9f2d11")
        await page.get_by_role("button", name="Append").click()
        await expect(page.get_by_role("status")).to_contain_text(words)
    assert await mp.last("once-1") == 1


@pytest.mark.shard("browser")
async def test_who_may_only_read_is_not_offered_it_and_refused(site: Site, page: Page, mp: Milepost) -> None:
    await log_in(page, site, mp, "looking", TokenRole.READ)
    appended = await mp.append("looked-1", NewMessage("a"))
    for path in ("log", f"log/{appended.position}"):
        await page.goto(site.path(path))
        await expect(page.get_by_role("link", name="Append")).to_have_count(0)
    answer = await page.goto(site.path("log", "append"))
    assert answer is not None
    assert answer.status == 403
    await expect(page.get_by_text("This takes a token with the role append")).to_be_visible()
    cookies = {each["name"]: each["value"] for each in await page.context.cookies()}
    csrf = await page.locator("[name=csrf]").first.get_attribute("value")
    async with httpx.AsyncClient(base_url=site.address, cookies=cookies) as client:
        sent = {"csrf": csrf, "stream": "looked-1", "type": "b", "data": "{}", "expected": "any"}
        refused = await client.post("/console/log/append", data=sent)
        assert refused.status_code == 403
        assert "This takes a token with the role append" in refused.text
    assert await mp.last("looked-1") == 1


@pytest.mark.shard("browser")
async def test_a_form_without_its_token_appends_nothing(site: Site, page: Page, mp: Milepost) -> None:
    await log_in(page, site, mp, "forged", TokenRole.READ, TokenRole.APPEND)
    cookies = {each["name"]: each["value"] for each in await page.context.cookies()}
    async with httpx.AsyncClient(base_url=site.address, cookies=cookies) as client:
        sent = {"stream": "forged-1", "type": "b", "data": "{}", "expected": "any"}
        assert (await client.post("/console/log/append", data=sent)).status_code == 403
    assert await mp.last("forged-1") == 0


@pytest.mark.shard("browser")
async def test_whoever_may_append_but_not_read_stays_with_the_form(site: Site, page: Page, mp: Milepost) -> None:
    secret = await TokenStore(mp).make("blind", [TokenRole.APPEND])
    await page.goto(site.path("login"))
    await page.get_by_label("Token").fill(secret)
    await page.get_by_role("button", name="Log in").press("Enter")
    await page.goto(f"{site.path('log', 'append')}?stream=blind-1&type=b")
    await page.get_by_role("button", name="Append").click()
    await expect(page.get_by_role("status")).to_contain_text("Appended to blind-1 as version 1")
    for path in ("log", "log/1", "log/streams", "filter"):
        answer = await page.goto(site.path(path))
        assert answer is not None
        assert answer.status == 403, path


@pytest.mark.shard("browser")
async def test_a_tail_ends_when_its_token_is_revoked(site: Site, page: Page, mp: Milepost) -> None:
    await log_in(page, site, mp, "following", TokenRole.READ)
    await page.goto(f"{site.path('log')}?follow=1")
    await expect(page.locator("#tail-state")).to_have_text("Live.")
    await TokenStore(mp).revoke("following")
    await expect(page.get_by_label("Token")).to_be_visible()


async def test_the_log_and_the_playground_ask_who_it_is(site: Site) -> None:
    async with httpx.AsyncClient(base_url=site.address) as client:
        for path in ("", "/check", "/tail", "/find", "/streams", "/categories", "/types", "/append", "/1"):
            assert (await client.get(f"/console/log{path}")).status_code == 401, path
        assert (await client.get("/console/filter")).status_code == 401
