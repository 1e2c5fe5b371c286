"""`milepost subscriptions create` and `update`: subscriptions for consumers, and their settings."""

import asyncio
from typing import Any

import pytest

from cli.program import Run, Start
from milepost import Message, Milepost, NewMessage
from support import MakeMilepost

EVERY = {
    "--category": "order",
    "--stream": "order-1",
    "--type": "order.*",
    "--where": "n > 5",
    "--strategy": "pinned",
    "--ordered-by": "property:CustomerId",
    "--max-consumers": "4",
    "--window": "50",
    "--timeout": "0.5",
    "--attempts": "3",
    "--delay": "1",
    "--factor": "3",
    "--max-delay": "9",
    "--jitter": "0",
    "--on-park": "block",
    "--stall-after": "20",
    "--max-waiting": "30",
    "--max-unrouted": "40",
    "--keep-done": "60",
    "--lease": "5",
    "--checkpoint-seconds": "1",
    "--checkpoint-messages": "10",
}
STORED = {
    "category": ["order"],
    "stream": ["order-1"],
    "types": ["order.*"],
    "where": "n > 5",
    "ordered_by": "property CustomerId",
    "window": 50,
    "retry": {"attempts": 3, "delay": 1, "factor": 3, "max_delay": 9, "jitter": 0},
    "on_park": "block",
    "tracking": "failures",
    "timeout": 0.5,
    "checkpoint": {"seconds": 1, "messages": 10},
    "lease": 5,
    "stall_after": 20,
    "max_waiting": 30,
    "keep_done": 60,
    "strategy": "pinned",
    "max_consumers": 4,
    "max_unrouted": 40,
}
WORDS = [word for pair in EVERY.items() for word in pair]


def settings(run: Run, address: str = "shipping") -> dict[str, Any]:
    shown: dict[str, Any] = run("subscriptions", "show", address, "--json").done().json["settings"]
    return shown


def test_one_that_is_created_paused_waits_until_it_is_resumed(run: Run) -> None:
    assert "default/shipping, paused:" in run("subscriptions", "create", "shipping", "--paused").done().out
    run("subscriptions", "resume", "shipping").done()
    assert run("subscriptions", "show", "shipping", "--json").done().json["status"] == "waiting"


def test_every_option_is_shown_back(run: Run) -> None:
    created = run("subscriptions", "create", "shipping", *WORDS, "--start", "0", "--json").done().json
    assert created["settings"] == {**STORED, "start": 0}
    assert (created["group"], created["name"], created["status"]) == ("default", "shipping", "waiting")
    lines = run("subscriptions", "show", "shipping").done().out.splitlines()
    shown = [" ".join(line.split()) for line in lines]
    assert "consumers: 0" in shown
    assert "where n > 5" in shown
    assert "retry attempts 3, delay 1, factor 3, max_delay 9, jitter 0" in shown
    assert "max_unrouted 40" in shown


@pytest.mark.shard(
    "variants", fast=["--category", "--where", "--strategy", "--delay", "--keep-done", "--checkpoint-seconds"]
)
@pytest.mark.parametrize("option", EVERY)
def test_each_can_be_changed_and_the_others_stay(run: Run, option: str) -> None:
    before = run("subscriptions", "create", "shipping", "--json").done().json["settings"]
    after = run("subscriptions", "update", "shipping", option, EVERY[option], "--json").done().json["settings"]
    changed = {name for name, value in after.items() if value != before[name]}
    name = {"--type": "types"}.get(option, option.removeprefix("--").replace("-", "_"))
    part = name.removeprefix("checkpoint_")
    if name in before["retry"]:
        assert changed == {"retry"}
        assert after["retry"] == {**before["retry"], name: STORED["retry"][name]}  # type: ignore[index]
    elif part != name:
        assert changed == {"checkpoint"}
        assert after["checkpoint"] == {**before["checkpoint"], part: STORED["checkpoint"][part]}  # type: ignore[index]
    else:
        assert changed == {name}
        assert after[name] == STORED[name]


def test_back_to_none(run: Run) -> None:
    run("subscriptions", "create", "shipping", *WORDS).done()
    nothing = ["--category", "", "--stream", "", "--type", "", "--where", "", "--ordered-by", "none"]
    done = run("subscriptions", "update", "shipping", *nothing, "--max-consumers", "0", "--keep-done", "0").done()
    assert done.out.startswith("default/shipping:\n")
    names = ("category", "stream", "types", "where", "ordered_by", "max_consumers", "keep_done")
    assert {name: settings(run)[name] for name in names} == dict.fromkeys(names)


def test_several_of_a_kind_and_a_group(run: Run) -> None:
    words = ["--category", "order", "--category", "invoice", "--start", "now", "--ordered-by", "correlation"]
    run("subscriptions", "create", "billing/shipping", *words, "--tracking", "all").done()
    shown = settings(run, "billing/shipping")
    assert (shown["category"], shown["start"], shown["ordered_by"]) == (["invoice", "order"], "now", "correlation")
    [info] = run("subscriptions", "--json").done().json
    # Nobody has to run it: whoever pulls takes from it.
    assert (info["group"], info["status"]) == ("billing", "running")


def test_one_that_is_there(run: Run) -> None:
    run("subscriptions", "create", "shipping", "--timeout", "3").done()
    run("subscriptions", "create", "shipping").refused("default/shipping exists already")
    run("subscriptions", "create", "shipping", "--if-exists", "ignore").done()
    assert settings(run)["timeout"] == 3
    run("subscriptions", "create", "shipping", "--if-exists", "update").done()
    assert settings(run)["timeout"] == 30
    run("subscriptions", "create", "shipping", "--if-exists", "replace").refused('"update", "error" or "ignore"')


@pytest.mark.shard(
    "variants",
    fast=[
        "words0-timeout: a number of seconds, more than 0, is wanted, not 0.0",
        "words4-factor is a number from 1 to 1,000,000, not 0.5",
        "words7-none, stream, correlation or property:NAME is wanted",
        "words9-a time such as 2026-03-01T12:00:00Z is wanted",
        "words10-filter, at character 4",
        "words12---timeout",
    ],
)
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--timeout", "0"], "timeout: a number of seconds, more than 0, is wanted, not 0.0"),
        (["--timeout", "nan"], "timeout: a number of seconds, more than 0, is wanted, not nan"),
        (["--window", "9999999999999999999999"], "window: a whole number from 1 to 2,147,483,647 is wanted"),
        (["--attempts", "0"], "attempts counts the first one too: from 1 to 2,147,483,647, not 0"),
        (["--factor", "0.5"], "factor is a number from 1 to 1,000,000, not 0.5"),
        (["--checkpoint-messages", "0"], "Checkpoint: messages: a whole number from 1"),
        (["--strategy", "random"], '"round_robin" or "dispatch_to_single"'),
        (["--ordered-by", "customer"], "none, stream, correlation or property:NAME is wanted"),
        (["--ordered-by", "property:a b"], "--ordered-by: "),
        (["--start", "yesterday"], "a time such as 2026-03-01T12:00:00Z is wanted"),
        (["--where", "n >"], "filter, at character 4"),
        (["--tracking", "some"], 'tracking: "failures" or "all" is wanted'),
        (["--time-out", "3"], "--timeout"),
    ],
)
def test_what_cannot_be(run: Run, words: list[str], problem: str) -> None:
    run("subscriptions", "create", "shipping", *words).refused(problem)
    run("subscriptions", "create", "shipping").done()
    if "--start" not in words and "--tracking" not in words:
        run("subscriptions", "update", "shipping", *words).refused(problem)


def test_an_update_that_cannot_be(run: Run) -> None:
    run("subscriptions", "create", "shipping").done()
    run("subscriptions", "update", "shipping").refused("nothing to update")
    run("subscriptions", "update", "shipping", "--concurrency", "2").refused("is for subscriptions with handlers")
    run("subscriptions", "update", "shipping", "--tracking", "all").refused("create another subscription")
    run("subscriptions", "update", "shipping", "--start", "now").refused(
        "milepost subscriptions move shipping now"
    )
    run("subscriptions", "update", "shiping", "--timeout", "3").refused("did you mean 'default/shipping'?")


def test_with_handlers(run: Run, make_mp: MakeMilepost) -> None:
    mp = make_mp()

    @mp.subscription("invoices")
    def invoice(message: Message[Any]) -> None: ...

    with mp.sync as log:
        log.run_until_idle()
    run("subscriptions", "update", "invoices", "--timeout", "3").refused("timeout is declared by its program")
    run("subscriptions", "create", "invoices").refused("is declared by a program, with handlers")
    assert (
        run("subscriptions", "update", "invoices", "--concurrency", "2", "--json").done().json["settings"] is None
    )


@pytest.mark.shard("processes")
async def test_consumers_go_on_while_it_changes(run: Run, start: Start, mp: Milepost) -> None:
    run("subscriptions", "create", "shipping", "--where", "n == 1").done()
    async with mp.consumer("shipping") as consumer:
        await mp.append("order-1", NewMessage("placed", properties={"n": 1}))
        await (await anext(consumer)).ack()
        update = start("subscriptions", "update", "shipping", "--where", "n == 2")
        (await asyncio.to_thread(update.end)).done()
        await mp.append("order-1", NewMessage("placed", properties={"n": 1}))
        await mp.append("order-1", NewMessage("placed", properties={"n": 2}))
        assert (await anext(consumer)).position == 3


@pytest.mark.shard("processes")
async def test_who_stands_by_is_shown(start: Start, mp: Milepost, make_mp: MakeMilepost) -> None:
    await mp.create_subscription("shipping")
    async with make_mp() as other, mp.consumer("shipping"), other.consumer("shipping") as second:
        assert second.standby
        async with asyncio.timeout(30):
            while not (info := await mp.manage("shipping").info()).standby:
                await asyncio.sleep(0.01)
        done = (await asyncio.to_thread(start("subscriptions", "show", "shipping").end)).done()
        assert f"consumers: 2; stand by: {info.standby[0]}" in done.out
