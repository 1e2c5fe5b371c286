"""`milepost subscriptions pause`, `resume`, `move`, `replay`, `update`, `delete`."""

from typing import Any

import pytest

from cli.program import Run
from milepost import Context, Message, Milepost, NewMessage, Park
from support import MakeMilepost

Seen = list[tuple[int, bool]]


@pytest.fixture
def seen() -> Seen:
    return []


@pytest.fixture
def shop(make_mp: MakeMilepost, seen: Seen) -> Milepost:
    """A program that has handled nine messages and parked the tenth."""
    mp = make_mp(group="shop")

    @mp.subscription("invoices", category="order", lanes=2)
    def invoice(message: Message[Any], context: Context) -> None:
        if message.position == 10:
            raise Park("odd")
        seen.append((message.position, context.replay))

    with mp.sync as log:
        for number in range(10):
            log.append(f"order-{number}", NewMessage("placed"))
        log.run_until_idle()
    seen.clear()
    return mp


def test_pause_and_resume(run: Run, shop: Milepost, seen: Seen) -> None:
    assert "shop/invoices is paused" in run("subscriptions", "pause", "shop/invoices").done().out
    assert run("subscriptions", "show", "shop/invoices", "--json").done().json["status"] == "paused"
    with shop.sync as log:
        log.append("order-1", NewMessage("placed"))
        log.run_until_idle()
        assert seen == []
        assert "goes on" in run("subscriptions", "resume", "shop/invoices").done().out
        log.run_until_idle()
    assert seen == [(11, False)]


def test_by_force(run: Run, shop: Milepost, seen: Seen) -> None:
    run("subscriptions", "pause", "shop/invoices", "--force").done()
    run("subscriptions", "resume", "shop/invoices").done()
    run("subscriptions", "move", "shop/invoices", "beginning", "--force", "--yes").done()
    run("subscriptions", "replay", "shop/invoices", "beginning", "--force", "--yes").done()
    with shop.sync as log:
        log.run_until_idle()
    assert len(seen) == 9
    run("subscriptions", "delete", "shop/invoices", "--force", "--yes").done()


def test_a_move_says_beforehand_what_it_touches(run: Run, shop: Milepost, seen: Seen) -> None:
    refused = run("subscriptions", "move", "shop/invoices", "beginning")
    refused.refused(
        "it goes on after position 0; at most 10 messages come again; deliveries that are forgotten: 1 parked"
    )
    run("subscriptions", "move", "shop/invoices", "4", "--yes").done()
    with shop.sync as log:
        log.run_until_idle()
    assert [position for position, _ in sorted(seen)] == [5, 6, 7, 8, 9]


def test_a_replay(run: Run, shop: Milepost, seen: Seen) -> None:
    run("subscriptions", "replay", "shop/invoices", "2", "--end", "8").refused("at most 6 messages come again")
    done = run("subscriptions", "replay", "shop/invoices", "2", "--end", "8", "--yes").done()
    assert "12 positions are being repeated" not in done.out
    assert "6 positions are being repeated" in done.out
    with shop.sync as log:
        log.run_until_idle()
    assert sorted(seen) == [(position, True) for position in range(3, 9)]


@pytest.mark.shard("variants", fast=["yesterday", "1.5"])
@pytest.mark.parametrize("place", ["yesterday", "-1", "1.5", "99999999999999999999"])
def test_to_nowhere(run: Run, shop: Milepost, place: str) -> None:
    refused = run("subscriptions", "move", "shop/invoices", "--yes", "--", place)
    refused.refused("is wanted")
    assert "fault" not in refused.err


def test_a_time_as_the_help_says_it(run: Run, shop: Milepost, seen: Seen) -> None:
    for place in ("3h ago", "3h"):
        run("subscriptions", "move", "shop/invoices", place).refused("goes on after position 0")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["move", "shop/invoices", "11", "--yes"], "the log ends at position 10, before 11"),
        (["replay", "shop/invoices", "8", "--end", "2", "--yes"], "has nothing in it"),
    ],
)
def test_places_that_make_no_sense(run: Run, shop: Milepost, words: list[str], said: str) -> None:
    refused = run("subscriptions", *words)
    refused.refused(said)
    assert "fault" not in refused.err


def test_a_limit(run: Run, shop: Milepost) -> None:
    assert "at most 2 at once" in run("subscriptions", "update", "shop/invoices", "--concurrency", "2").done().out
    done = run("subscriptions", "update", "shop/invoices", "--concurrency", "0").done()
    assert "as its program says" in done.out


def test_deleted(run: Run, shop: Milepost) -> None:
    run("subscriptions", "delete", "shop/invoices").refused("its progress and 1 deliveries are forgotten")
    assert "is deleted" in run("subscriptions", "delete", "shop/invoices", "--yes").done().out
    assert run("subscriptions", "--json").done().json == []
    run("subscriptions", "delete", "shop/invoices", "--yes").refused("there is no subscription")
