"""Logging in with a token, and what one without a role is not offered."""

import httpx
import pytest
from playwright.async_api import Page, expect

from console.reading import assert_accessible, assert_readable
from console.site import Site
from milepost import Milepost
from milepost.server.access.permissions import TokenRole
from milepost.server.access.tokens import TokenStore
from support import expire_token

pytestmark = pytest.mark.asyncio(loop_scope="session")

ACCESS = "tokens"


def tokens(mp: Milepost) -> TokenStore:
    return TokenStore(mp)


async def log_in(page: Page, secret: str) -> None:
    await page.get_by_label("Token").fill(secret)
    await page.get_by_role("button", name="Log in").press("Enter")


async def test_where_one_goes_after_logging_in_is_always_here(site: Site, mp: Milepost) -> None:
    secret = await tokens(mp).make("led", [TokenRole.READ])
    goals = {
        "/console/trace?q=a": "/console/trace?q=a",
        "//evil.example": "/console",
        "/console\\@evil.example": "/console",
        "https://evil.example/console": "/console",
        "/consolation": "/console",
    }
    for goal, wanted in goals.items():
        async with httpx.AsyncClient(base_url=site.address) as client:
            form = await client.get("/console/login")
            csrf = form.text.split('name="csrf" value="')[1].split('"')[0]
            data = {"csrf": csrf, "token": secret, "next": goal}
            assert (await client.post("/console/login", data=data)).headers["location"] == wanted


async def test_a_token_opens_it_and_its_revocation_ends_the_session(site: Site, page: Page, mp: Milepost) -> None:
    secret = await tokens(mp).make("reader", [TokenRole.READ])
    await page.goto(site.path())
    await expect(page).to_have_url(f"{site.path('login')}?next=%2Fconsole")
    await assert_accessible(page)
    await log_in(page, "mp_wrong")
    await expect(page.get_by_role("alert")).to_have_text("This is no token in force: ask for another.")
    await log_in(page, secret)
    await expect(page).to_have_url(site.path())
    await expect(page.locator("#pulse")).to_have_text("live")
    [cookie] = [each for each in await page.context.cookies() if each["name"] == "milepost_session"]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert secret not in cookie["value"]
    await tokens(mp).revoke("reader")
    await expect(page).to_have_url(f"{site.path('login')}?next=%2Fconsole")


@pytest.mark.parametrize("how", ["logged out", "expired"])
@pytest.mark.parametrize("path", ["", "/log/tail"])
async def test_the_end_of_a_session_ends_pages_that_are_open(
    site: Site, mp: Milepost, path: str, how: str
) -> None:
    secret = await tokens(mp).make("leaves", [TokenRole.READ])
    async with httpx.AsyncClient(base_url=site.address) as client:
        form = await client.get("/console/login")
        csrf = form.text.split('name="csrf" value="')[1].split('"')[0]
        await client.post("/console/login", data={"csrf": csrf, "token": secret})
        stream = client.stream("GET", f"/console{path}", headers={"accept": "text/event-stream"})
        async with stream as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "retry: 2000"
            page = await client.get("/console")
            csrf = page.text.split('name="csrf" value="')[1].split('"')[0]
            if how == "expired":
                await expire_token(mp, "leaves")
            else:
                assert (await client.post("/console/logout", data={"csrf": csrf})).status_code == 303
            assert "event: ended" in [line async for line in lines]


@pytest.mark.shard("browser")
async def test_whoever_comes_back_to_a_page_without_a_session_logs_in(
    site: Site, page: Page, mp: Milepost
) -> None:
    secret = await tokens(mp).make("expiring", [TokenRole.READ, TokenRole.OPERATE])
    await page.goto(site.path())
    await log_in(page, secret)
    await expect(page.locator("#pulse")).to_have_text("live")
    await page.get_by_role("button", name="Create…").click()
    await expect(page.locator("#pulse")).to_have_text("paused")
    await page.context.clear_cookies(name="milepost_session")
    await page.keyboard.press("Escape")
    await expect(page.get_by_label("Token")).to_be_visible()


@pytest.mark.shard("browser")
async def test_one_can_log_out(site: Site, page: Page, mp: Milepost) -> None:
    secret = await tokens(mp).make("leaving", [TokenRole.READ])
    await page.goto(site.path())
    await log_in(page, secret)
    await page.get_by_role("button", name="log out").click()
    await expect(page).to_have_url(site.path("login"))
    await page.goto(site.path())
    await expect(page.get_by_label("Token")).to_be_visible()


async def test_a_session_cannot_be_forged_or_prolonged(site: Site, mp: Milepost) -> None:
    secret = await tokens(mp).make("forged", [TokenRole.READ])
    async with httpx.AsyncClient(base_url=site.address) as client:
        form = await client.get("/console/login")
        csrf = form.text.split('name="csrf" value="')[1].split('"')[0]
        answer = await client.post("/console/login", data={"csrf": csrf, "token": secret})
        assert answer.status_code == 303
        assert (await client.get("/console")).status_code == 200
        good = client.cookies["milepost_session"]
    for at in range(0, len(good), 5):
        other = "A" if good[at] != "A" else "B"
        async with httpx.AsyncClient(base_url=site.address) as client:
            cookies = {"cookie": f"milepost_session={good[:at]}{other}{good[at + 1 :]}", "accept": "text/html"}
            assert (await client.get("/console", headers=cookies)).status_code == 303, at


async def test_a_form_without_its_token_or_from_another_site_is_refused(site: Site) -> None:
    async with httpx.AsyncClient(base_url=site.address) as client:
        form = await client.get("/console/login")
        csrf = form.text.split('name="csrf" value="')[1].split('"')[0]
        assert (await client.post("/console/login", data={"token": "mp_x"})).status_code == 403
        assert (await client.post("/console/login", data={"token": "mp_x", "csrf": csrf[:-2]})).status_code == 403
        for other in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
            answer = await client.post("/console/login", data={"token": "mp_x", "csrf": csrf}, headers=other)
            assert answer.status_code == 403, other
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert (await client.post("/console/login", data={"token": "mp_x", "csrf": csrf})).status_code == 401
        # Only pages take forms.
        assert (await client.post("/v1/streams/a-1", data={"type": "a"})).status_code == 415


async def test_every_page_asks_who_it_is(site: Site) -> None:
    async with httpx.AsyncClient(base_url=site.address) as client:
        for path in ("", "/nowhere-else"):
            answer = await client.get(f"/console{path}", headers={"accept": "text/html"})
            assert answer.status_code in (303, 404), path
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy


@pytest.mark.shard("browser")
async def test_what_one_may_not_do_is_not_offered_and_refused(site: Site, page: Page, mp: Milepost) -> None:
    await mp.create_subscription("guarded")
    reader = await tokens(mp).make("only-reads", [TokenRole.READ])
    await page.goto(site.path("subscriptions", "default", "guarded"))
    await log_in(page, reader)
    await expect(page.get_by_role("heading", name="default/guarded")).to_be_visible()
    await expect(page.get_by_role("button", name="…")).to_have_count(0)
    await expect(page.locator("dialog")).to_have_count(0)
    for path in ("pause", "resume", "move", "replay", "settings", "delete"):
        answer = await page.evaluate(POST, site.path("subscriptions", "default", "guarded", path))
        assert answer == [403, True], path
    for path in ("retry", "skip"):
        assert await page.evaluate(POST, site.path("parked", "default", "guarded", path)) == [403, True]
    assert await page.evaluate(POST, site.path("subscriptions")) == [403, True]
    assert (await mp.manage("guarded").info()).status == "waiting"


@pytest.mark.shard("browser")
async def test_whoever_may_only_operate_does_not_see_it(site: Site, page: Page, mp: Milepost) -> None:
    secret = await tokens(mp).make("only-operates", [TokenRole.OPERATE])
    await page.goto(site.path())
    await log_in(page, secret)
    await expect(page.get_by_text("This takes a token with the role read; yours has operate")).to_be_visible()


POST = """async (address) => {
    const body = new URLSearchParams({ csrf: document.querySelector("[name=csrf]").value, scope: "all" });
    const answer = await fetch(address, { method: "POST", body, redirect: "manual" });
    return [answer.status, (await answer.text()).includes("role operate")];
}"""


@pytest.mark.shard("browser")
async def test_a_link_from_another_site_finds_one_logged_in(site: Site, page: Page, mp: Milepost) -> None:
    secret = await tokens(mp).make("linked", [TokenRole.READ])
    await page.goto(site.path())
    await log_in(page, secret)
    await expect(page.locator("#pulse")).to_have_text("live")
    link = f'<a href="{site.path("trace")}?q=order-1&amp;subscription=%22">there</a>'
    await page.route("http://chat.example/", lambda route: route.fulfill(body=link, content_type="text/html"))
    await page.goto("http://chat.example/")
    await page.get_by_role("link", name="there").click()
    await expect(page.get_by_label("Stream or id")).to_have_value("order-1")
    await page.goto(site.path())
    await expect(page.locator("#pulse")).to_have_text("live")


@pytest.mark.shard("browser")
async def test_the_form_is_readable(site: Site, page: Page) -> None:
    await page.goto(site.path("login"))
    await assert_readable(page)
