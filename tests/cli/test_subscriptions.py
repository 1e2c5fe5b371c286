"""`milepost subscriptions`: the list, and one of them."""

from typing import Any

import pytest

from cli.program import Run
from milepost import Message, Milepost, NewMessage, Park
from milepost.cli.age import age
from support import MakeMilepost


@pytest.fixture
def shop(make_mp: MakeMilepost) -> Milepost:
    """A program that has handled two messages and parked one; one came since."""
    mp = make_mp(group="shop")

    @mp.subscription("invoices", category="order", lanes=2)
    def invoice(message: Message[Any]) -> None:
        if message.data == "odd":
            raise Park("odd")

    with mp.sync as log:
        for number, data in enumerate(("even", "odd", "even")):
            log.append(f"order-{number}", NewMessage("placed", data))
        log.run_until_idle()
        log.append("order-3", NewMessage("placed"))
    return mp


def test_the_list(run: Run, shop: Milepost) -> None:
    heading, line = run("subscriptions").done().out.splitlines()
    assert " ".join(heading.split()) == (
        "subscription status lag age rate in flight retrying waiting parked unrouted workers"
    )
    words = line.split()
    assert words[:3] == ["shop/invoices", "waiting", "1"]
    assert words[4:] == ["s", "0/s", "0", "0", "0", "1", "0", "0"]


def test_for_programs(run: Run, shop: Milepost) -> None:
    [info] = run("subscriptions", "--json").done().json
    assert (info["group"], info["name"], info["status"], info["stalled"]) == ("shop", "invoices", "waiting", None)
    assert info["lag"]["positions"] == 1
    assert info["lag"]["seconds"] > 0
    assert (info["retrying"], info["waiting"], info["parked"], info["unrouted"]) == (0, 0, 1, 0)
    assert info["owners"] == []
    lane = {"owner": None, "since": None, "position": 3}
    assert info["lanes"] == [{"number": 0, **lane}, {"number": 1, **lane}]
    assert run("subscriptions", "show", "shop/invoices", "--json").done().json["name"] == "invoices"


def test_one_of_them(run: Run, shop: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run("subscriptions", "show", "shop/invoices").done().out.splitlines()
    assert lines[0] == "shop/invoices: waiting"
    assert [line.split() for line in lines[3:]] == [
        ["lane", "position", "worker", "since"],
        ["0", "3"],
        ["1", "3"],
    ]
    run("subscriptions", "show", "invoices").refused("did you mean 'shop/invoices'?")
    monkeypatch.setenv("MILEPOST_GROUP", "shop")
    assert run("subscriptions", "show", "invoices").done().out.splitlines()[0] == lines[0]


@pytest.mark.usefixtures("no_log")
def test_nobody_follows(run: Run) -> None:
    run("subscriptions").refused("milepost schema migrate")
    run("schema", "migrate").done()
    assert len(run("subscriptions").done().out.splitlines()) == 1
    assert run("subscriptions", "--json").done().json == []
    run("subscriptions", "show", "invoices").refused("there is none at all")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (0.04, "0.0 s"), (119.0, "119.0 s"), (120.0, "2 min"), (7300.0, "2 h"), (864_000.0, "10 d")],
)
def test_ages(seconds: float, text: str) -> None:
    assert age(seconds) == text
