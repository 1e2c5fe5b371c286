"""`milepost subscriptions`: the list, and one of them."""

from time import sleep
from typing import Any

import psycopg
import pytest

from cli.program import Run
from milepost import Message, Milepost, NewMessage, Park
from milepost.cli.output import format_age
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
    lane = {"owner": None, "since": None, "stopped": None, "position": 3}
    assert info["lanes"] == [{"number": 0, **lane}, {"number": 1, **lane}]
    assert run("subscriptions", "show", "shop/invoices", "--json").done().json["name"] == "invoices"


def test_a_limit_that_is_reached(run: Run, make_mp: MakeMilepost) -> None:
    mp = make_mp(group="shop")

    @mp.subscription("letters", category="order", lanes=1, max_waiting=2)
    def write(message: Message[Any]) -> None:
        raise Park("no paper")

    with mp.sync as log, log.running():
        log.append("order-1", [NewMessage("placed") for _ in range(9)])
        while log.manage("letters").info().status != "stopped":
            sleep(0.02)
        [_, line] = run("subscriptions").done().out.splitlines()
        shown = run("subscriptions", "show", "shop/letters").done().out.splitlines()[0]
        lane = run("subscriptions", "show", "shop/letters", "--json").done().json["lanes"][0]
        outcome = run("doctor", "--json")
    why = "2 messages wait behind others (max_waiting=2); the next one is of key 'order-1'"
    assert line.split()[:2] == ["shop/letters", "stopped"]
    assert shown == f"shop/letters: stopped, {why}"
    assert (lane["stopped"]["limit"], lane["stopped"]["key"]) == ("max_waiting", "order-1")
    [found] = [found for found in outcome.json["checks"] if found["check"] == "status"]
    assert (outcome.status, found["verdict"], found["subject"]) == (1, "problem", "shop/letters")
    assert found["finding"].startswith(f"shop/letters reads no further: {why}. Mend what holds")
    assert "milepost parked shop/letters --state parked --state retrying" in found["finding"]


def test_who_holds_the_horizon(
    run: Run, shop: Milepost, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The log of the command names it as well then.
    monkeypatch.setattr("milepost.log.protocol.HOLDER_NAMED_SECONDS", 0.0)
    with psycopg.connect(database_url, application_name="checkout") as holder, shop.sync as log:
        pid = holder.info.backend_pid
        log.append("order-4", NewMessage("placed"), connection=holder)
        log.append("order-5", NewMessage("placed"))
        _, line, held = run("subscriptions").out.splitlines()
        shown = run("subscriptions", "show", "shop/invoices").out.splitlines()
        [info] = run("subscriptions", "--json").json
        holder.rollback()
    assert f"shop/invoices waiting, held by pid {pid} 1 " in " ".join(line.split())
    start = f"2 positions are held back by pid {pid} (checkout), idle in transaction, open for 0."
    assert held.startswith(start)
    assert held.endswith(f" s; this ends it: select pg_terminate_backend({pid})")
    assert shown[0] == f"shop/invoices: waiting, held by pid {pid}"
    assert shown[1].startswith(start)
    assert info["lag"]["held_positions"] == 2
    assert (info["held_by"]["pid"], info["held_by"]["ended_by"]) == (pid, f"select pg_terminate_backend({pid})")


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
    assert format_age(seconds) == text
