"""The page of a subscription, and what people do to one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from console.reading import assert_readable
from console.site import Site
from milepost import Context, Message, Milepost, NewMessage, Retry, UnknownSubscription

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def opened(site: Site, page: Page, name: str, action: str | None = None) -> Locator:
    """The page of a subscription; with an action, the dialog that asks, when it has said what would happen."""
    await page.goto(site.path("subscriptions", "default", name))
    if action is None:
        return page.locator("main")
    await page.get_by_role("button", name=f"{action}…").click()
    dialog = page.locator("dialog[open]")
    await expect(dialog.locator("[data-do]")).to_be_enabled()
    return dialog


@asynccontextmanager
async def handled(site: Site, name: str, messages: int) -> AsyncIterator[tuple[Milepost, list[bool]]]:
    """A program that has handled some messages; which of its calls were replays."""
    program = site.milepost()
    calls: list[bool] = []

    @program.subscription(name, category=name, lanes=1)
    async def handle(message: Message[Any], context: Context) -> None:
        calls.append(context.replay)

    async with program:
        for number in range(messages):
            await program.append(f"{name}-{number}", NewMessage("a"))
        await program.run_until_idle(only=[name])
        yield program, calls


async def test_pause_and_resume(site: Site, page: Page) -> None:
    async with handled(site, "pausing", 2) as (program, _), program.running():
        dialog = await opened(site, page, "pausing", "Pause")
        await expect(dialog.locator("output")).to_contain_text("of it runs, in any process, until somebody")
        await dialog.get_by_role("button", name="Pause").click()
        await expect(page.locator(".flash")).to_have_text("default/pausing is paused.")
        assert (await program.manage("pausing").info()).status == "paused"
        await page.get_by_role("button", name="Resume…").click()
        await page.locator("dialog[open]").get_by_role("button", name="Resume").click()
        await expect(page.locator(".flash")).to_have_text("default/pausing goes on.")
        await expect(page.locator(".head .status")).to_have_text("running")
        assert (await program.manage("pausing").info()).status == "running"


@pytest.mark.shard("browser")
async def test_a_move_says_how_many_come_again_or_never(site: Site, page: Page) -> None:
    async with handled(site, "moving", 5) as (program, calls):
        dialog = await opened(site, page, "moving", "Move")
        await expect(dialog.locator("output")).to_contain_text("Nothing comes again, and nothing is left out")
        await dialog.get_by_label("the beginning").check()
        await expect(dialog.locator("output")).to_contain_text("At most")
        await expect(dialog.locator("output")).to_contain_text("messages come again")
        lowest = (await program.manage("moving").info()).lanes[0].position
        await dialog.get_by_label("Go on after this position").fill(str(lowest - 2))
        await expect(dialog.locator("output")).to_contain_text("At most 2 messages come again")
        await dialog.get_by_role("button", name="Move").click()
        await expect(page.locator(".flash")).to_contain_text("default/moving was moved")
        await program.run_until_idle(only=["moving"])
        assert len(calls) == 7


@pytest.mark.shard("browser")
async def test_what_a_move_forgets_is_said_before(site: Site, page: Page, mp: Milepost) -> None:
    program = site.milepost()

    @program.subscription("forgetting", category="forgetting", retry=Retry(attempts=1))
    async def fail(message: Message[Any]) -> None:
        raise ValueError("no")

    async with program:
        await program.append("forgetting-1", [NewMessage("a"), NewMessage("a")])
        await program.run_until_idle(errors="park", only=["forgetting"])
    dialog = await opened(site, page, "forgetting", "Move")
    await dialog.get_by_label("the beginning").check()
    await expect(dialog.locator(".grave")).to_have_text("Deliveries that are forgotten: 1 parked, 1 waiting.")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Delete…").click()
    grave = page.locator("dialog[open] .grave")
    await expect(grave).to_have_text("Its progress and 2 deliveries are forgotten for good.")


@pytest.mark.shard("browser")
async def test_a_replay_is_marked_and_its_progress_shown(site: Site, page: Page) -> None:
    async with handled(site, "repeating", 4) as (program, calls):
        dialog = await opened(site, page, "repeating", "Replay")
        await expect(dialog.locator("output")).to_contain_text("marked as a replay")
        await dialog.get_by_role("button", name="Replay").click()
        await expect(page.locator(".flash")).to_contain_text("being repeated")
        await expect(page.get_by_label("Replay", exact=True)).to_be_visible()
        await program.run_until_idle(only=["repeating"])
        assert calls[4:] == [True] * 4
        await expect(page.get_by_label("Replay", exact=True)).to_have_count(0)


@pytest.mark.shard("browser")
async def test_the_progress_of_a_replay_is_that_of_the_whole(site: Site, page: Page) -> None:
    """Also for whoever comes when it has been under way for long."""
    program, go_on, calls = site.milepost(), asyncio.Event(), list[bool]()

    @program.subscription("long", category="long", lanes=1, concurrency=1, timeout=600)
    async def handle(message: Message[Any], context: Context) -> None:
        calls.append(context.replay)
        if calls.count(True) > 6:
            await go_on.wait()

    async with program:
        appended = await program.append_many({f"long-{number}": NewMessage("a") for number in range(10)})
        await program.run_until_idle(only=["long"])
        first = min(each.position for each in appended.values())
        await program.manage("long").replay(first - 1)
        async with program.running(only=["long"]):
            await opened(site, page, "long")
            await expect(page.locator("#head")).to_contain_text("60 %, 4 positions left")
            go_on.set()
            await expect(page.get_by_label("Replay", exact=True)).to_have_count(0)
    assert calls == [False] * 10 + [True] * 10


@pytest.mark.shard("browser")
async def test_a_replay_that_ends_before_it_begins_is_explained(site: Site, page: Page) -> None:
    async with handled(site, "reversed", 6):
        dialog = await opened(site, page, "reversed", "Replay")
        await dialog.get_by_label("From after this position").fill("5")
        await dialog.get_by_label("Up to this position").fill("3")
        await expect(dialog.locator("output")).to_contain_text("a replay from 5 to 3 has nothing in it")
        await expect(dialog.locator("[data-do]")).to_be_disabled()


@pytest.mark.shard("browser")
async def test_delete(site: Site, page: Page, mp: Milepost) -> None:
    await mp.create_subscription("leaving")
    dialog = await opened(site, page, "leaving", "Delete")
    await dialog.get_by_role("button", name="Delete for good").click()
    await expect(page.locator(".flash")).to_have_text("default/leaving is deleted.")
    with pytest.raises(UnknownSubscription):
        await mp.manage("leaving").info()
    answer = await page.goto(site.path("subscriptions", "default", "leaving"))
    assert answer is not None
    assert answer.status == 404
    await expect(page.get_by_role("heading", name="There is no such subscription")).to_be_visible()


@pytest.mark.shard("browser")
async def test_settings_change_and_a_wrong_one_is_explained(site: Site, page: Page, mp: Milepost) -> None:
    await mp.create_subscription("adjusted", category="adjusted", timeout=30)
    dialog = await opened(site, page, "adjusted", "Settings")
    await dialog.get_by_label("Filter").fill('region == "EU"')
    await dialog.get_by_label("Time-out").fill("45")
    await dialog.get_by_label("Attempts").fill("3")
    await dialog.get_by_role("button", name="Save").click()
    await expect(page.locator(".flash")).to_contain_text("retry, timeout, where changed")
    settings = (await mp.manage("adjusted").info()).settings
    assert settings is not None
    assert (settings["where"], settings["timeout"], settings["retry"]["attempts"]) == ('region == "EU"', 45, 3)
    assert settings["retry"]["delay"] == 5
    await expect(page.locator("#definition")).to_contain_text("45 s")

    await page.get_by_role("button", name="Settings…").click()
    await page.get_by_label("Filter").fill("region ==")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("alert")).to_contain_text("expected a value, found the end")
    assert (await mp.manage("adjusted").info()).settings == settings
    await expect(page.get_by_label("Filter")).to_have_value("region ==")
    await assert_readable(page)
    await page.get_by_label("Filter").fill('region == "UK"')
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".flash")).to_contain_text("where changed")
    await expect(page.locator("dialog[open]")).to_have_count(0)


@pytest.mark.shard("browser")
async def test_one_that_a_program_declares_is_limited(site: Site, page: Page) -> None:
    async with handled(site, "limited", 1):
        dialog = await opened(site, page, "limited", "Settings")
        await dialog.get_by_label("Messages at once").fill("2")
        await dialog.get_by_role("button", name="Save").click()
        await expect(page.locator(".flash")).to_have_text("At most 2 at once in a process.")
        await expect(page.locator("#definition")).to_contain_text("limited to 2 at once")
        await page.get_by_role("button", name="Settings…").click()
        await page.get_by_label("Messages at once").fill("many")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("alert")).to_contain_text("a number is wanted, not 'many'")


@pytest.mark.shard("browser")
async def test_create(site: Site, page: Page, mp: Milepost) -> None:
    await page.goto(site.path())
    await page.get_by_role("button", name="Create…").click()
    dialog = page.locator("dialog[open]")
    await assert_readable(page)
    await dialog.get_by_label("Name").fill("made")
    await dialog.get_by_label("Category").fill("order, payment")
    await dialog.get_by_label("Start").select_option("now")
    await dialog.get_by_role("button", name="Create").click()
    await expect(page).to_have_url(site.path("subscriptions", "default", "made"))
    settings = (await mp.manage("made").info()).settings
    assert settings is not None
    assert (list(settings["category"]), settings["start"]) == (["order", "payment"], "now")

    await page.goto(site.path())
    await page.get_by_role("button", name="Create…").click()
    await dialog.get_by_label("Name").fill("made")
    await dialog.get_by_label("Strategy").select_option("pinned")
    await dialog.get_by_role("button", name="Create").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("default/made exists already")
    await expect(dialog.get_by_label("Strategy")).to_have_value("pinned")
    await dialog.get_by_label("Name").fill("made-anew")
    await dialog.get_by_role("button", name="Create").click()
    await expect(page).to_have_url(site.path("subscriptions", "default", "made-anew"))


@pytest.mark.shard("browser")
async def test_consumers_with_their_routes_and_load(site: Site, page: Page, mp: Milepost) -> None:
    await mp.create_subscription("routed", category="routed")
    async with mp.consumer("routed", where='region == "EU"', priority=7, capacity=4) as consumer:
        await mp.append("routed-1", NewMessage("a", properties={"region": "EU"}))
        async with asyncio.timeout(60):
            delivery = await anext(aiter(consumer))
        await opened(site, page, "routed")
        row = page.locator("#consumers tbody tr")
        await expect(row).to_contain_text('region == "EU"')
        await expect(row).to_contain_text("1 / 4")
        await assert_readable(page)
        await delivery.ack()
        await expect(row).to_contain_text("0 / 4")
    await expect(page.locator("#consumers")).to_contain_text("No consumer is there")


@pytest.mark.shard("browser")
async def test_by_keyboard_alone(site: Site, page: Page, mp: Milepost) -> None:
    await mp.create_subscription("typed")
    await opened(site, page, "typed")
    await page.get_by_role("button", name="Pause…").focus()
    await page.keyboard.press("Enter")
    dialog = page.locator("dialog[open]")
    await expect(dialog.locator("[data-do]")).to_be_enabled()
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(page.get_by_role("button", name="Pause…")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(dialog.locator("[data-do]")).to_be_enabled()
    await page.keyboard.press("Tab")
    await expect(dialog.locator("[data-do]")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator(".flash")).to_have_text("default/typed is paused.")


@pytest.mark.shard("browser")
async def test_every_dialog_is_accessible(site: Site, page: Page, mp: Milepost) -> None:
    await mp.create_subscription("spoken")
    await opened(site, page, "spoken")
    for action in ("Pause", "Move", "Replay", "Settings", "Delete"):
        await page.get_by_role("button", name=f"{action}…").click()
        await expect(page.locator("dialog[open] [data-do]")).to_be_enabled()
        await assert_readable(page)
        await page.keyboard.press("Escape")


@pytest.mark.shard("browser")
async def test_a_name_is_only_text(site: Site, page: Page, mp: Milepost) -> None:
    name = "<img src=x onerror=alert(1)>\"'& %2F? 100%"
    await mp.create_subscription(name, where='region == "</script><script>alert(1)</script>"')
    await page.goto(site.path())
    await page.get_by_role("link", name=name).first.click()
    await expect(page.locator("h1")).to_contain_text(name)
    await expect(page.locator("#definition")).to_contain_text("</script><script>alert(1)</script>")
    await page.get_by_role("button", name="Pause…").click()
    await page.locator("dialog[open]").get_by_role("button", name="Pause").click()
    await expect(page.locator(".flash")).to_contain_text("is paused")
