"""`milepost trace`: where each message is, for a person and for a program."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cli.program import Run
from milepost import Message, Milepost, NewMessage, Park
from support import MakeMilepost, qualified


@pytest.fixture
def shop(make_mp: MakeMilepost) -> Milepost:
    """A program that has handled a message, passed one by its filter, parked one and holds one behind that."""
    mp = make_mp(group="shop")

    @mp.subscription("invoices", category="order", where="amount >= 10", lanes=2)
    def invoice(message: Message[Any]) -> None:
        if message.data == "odd":
            raise Park("odd")

    @mp.subscription("payments", category="payment")
    def pay(message: Message[Any]) -> None: ...

    with mp.sync as log:
        for data, amount in (("even", 10), ("even", 5), ("odd", 10), ("even", 10)):
            log.append("order-1", NewMessage("placed", data, properties={"amount": amount}))
        log.run_until_idle()
    return mp


def words(line: str) -> str:
    return " ".join(line.split())


def test_for_a_person(run: Run, shop: Milepost) -> None:
    lines = run("trace", "order-1").done().out.splitlines()
    assert len(lines) == 12
    assert lines[0].startswith("order-1 version 1: placed, position 1, ")
    assert words(lines[1]) == "shop/invoices done"
    assert words(lines[2]) == "shop/payments not selected: it takes category payment, not order"
    assert words(lines[4]) == "shop/invoices filtered out: amount >= 10 is false (amount is 5)"
    assert words(lines[7]).startswith("shop/invoices parked since ")
    assert lines[7].endswith(" after 1 attempt: odd, 1 waits behind it, first order-1 version 4 (position 4)")
    assert words(lines[10]) == "shop/invoices waiting behind order-1 version 3 (position 3), which is parked"
    assert all(line.startswith("  ") for line in lines if "shop/" in line)


def test_for_a_program(run: Run, shop: Milepost) -> None:
    found = run("trace", "order-1", "--subscription", "invoices", "--json").done().json
    assert [each["version"] for each in found["messages"]] == [1, 2, 3, 4]
    assert [each["state"] for each in found["traced"]] == ["done", "filtered", "parked", "waiting"]
    filtered, parked, waiting = found["traced"][1:]
    assert filtered["parts"] == [
        {"text": "amount >= 10", "value": False, "error": None, "properties": {"amount": 5}}
    ]
    assert (parked["group"], parked["subscription"], parked["reason"]) == ("shop", "invoices", "odd")
    assert waiting["waiting_behind"] == {"position": 3, "state": "parked", "stream": "order-1", "version": 3}
    assert waiting["message"]["type"] == "placed"
    assert found["before_version"] is None


def test_some_of_it(run: Run, shop: Milepost) -> None:
    def addresses(*options: str) -> list[str]:
        lines = run("trace", "order-1", "--limit", "1", *options).out.splitlines()
        return [line.split()[0] for line in lines[1:]]

    assert addresses() == ["shop/invoices", "shop/payments"]
    assert addresses("--group", "shop") == ["shop/invoices", "shop/payments"]
    assert addresses("--subscription", "payments") == ["shop/payments"]
    assert addresses("--subscription", "shop/invoices") == ["shop/invoices"]
    run("trace", "order-1", "--subscription", "shop/invioces").refused("did you mean 'shop/invoices'?")
    run("trace", "order-1", "--group", "nowhere").refused("there is no subscription 'nowhere/*'")
    newest = run("trace", "order-1", "--limit", "2", "--subscription", "invoices")
    assert [line.split(":")[0] for line in newest.out.splitlines()[::2]] == [
        "order-1 version 3",
        "order-1 version 4",
    ]
    assert newest.err == "milepost: older messages: --before-version 3\n"
    older = run("trace", "order-1", "--before-version", "3", "--subscription", "invoices").done()
    assert [line.split(":")[0] for line in older.out.splitlines()[::2]] == [
        "order-1 version 1",
        "order-1 version 2",
    ]
    run("trace", "order-1", "--before-version", "1").refused("no message in stream 'order-1' before version 1")


def test_a_message_by_its_id(run: Run, shop: Milepost) -> None:
    found = run("trace", "order-1", "--json").done().json
    id_ = found["messages"][2]["id"]
    assert UUID(id_)
    [message] = run("trace", id_, "--json").done().json["messages"]
    assert message["version"] == 3


def test_what_is_not_there(run: Run, shop: Milepost) -> None:
    run("trace", "order-2").refused("there is no message in stream 'order-2', nor one of that id")
    run("trace", "").refused("stream")
    run("trace", "order-1", "--limit", "0").refused("--limit")


@pytest.mark.usefixtures("no_log")
def test_a_log_that_nobody_follows(run: Run) -> None:
    run("trace", "order-1").refused("milepost schema migrate")
    run("append", "order-1", "placed", "{}").done()
    lines = run("trace", "order-1").done().out.splitlines()
    assert words(lines[1]) == "nobody follows the log"


def test_what_a_terminal_would_obey_is_spelled_out(run: Run, make_mp: MakeMilepost) -> None:
    mp = make_mp(group="sh\x1b[31mop")

    @mp.subscription("in\u202evoices")
    def invoice(message: Message[Any]) -> None:
        raise Park("\x1b[2Jgone")

    with mp.sync as log:
        log.append("order-\x1b[1m", NewMessage("pla\x07ced"))
        log.run_until_idle()
    out = run("trace", "order-\x1b[1m").done().out
    assert "order-\\x1b[1m version 1: pla\\x07ced" in out
    assert "sh\\x1b[31mop/in\\u202evoices" in out
    assert "\\x1b[2Jgone" in out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)


PROGRAM = """
from milepost import Message, Milepost, by_function

mp = Milepost()


@mp.subscription("functional", ordered_by=by_function(lambda message: message.version), lanes=3, window=1)
def handle(message: Message) -> None: ...
"""


BACK = """
    insert into {0}.cursors (subscription, lane, revision, epoch, released, "position")
    select c.subscription, 0, c.revision + 1, c.epoch, true, 1
    from {0}.cursors c join {0}.subscriptions s on s.id = c.subscription
    where s.name = 'functional' and c.lane = 0 order by c.revision desc limit 1
"""
"""As if the owner of a lane had been slow."""


def test_the_program_that_has_the_function(
    run: Run, shop: Milepost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traced_shop.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    mp = import_module("traced_shop").mp
    monkeypatch.delitem(sys.modules, "traced_shop")
    with mp.sync as log:
        log.run_until_idle()
        log._run(lambda: mp.log.database.execute(qualified(BACK, mp), {}))
    options = ("trace", "order-1", "--subscription", "functional", "--json")
    without = run(*options).done().json
    assert [each["state"] for each in without["traced"]] == ["done", "unsure", "unsure", "unsure"]
    assert "lanes stand between positions 1 and 4" in without["traced"][1]["why"]
    found = run(*options, "--program", "traced_shop:mp").done().json
    assert {each["state"] for each in found["traced"]} == {"done", "not reached"}
    run(*options, "--program", "traced_shop:mp", "--schema", "other").refused("leave --url and --schema out")
    run(*options, "--program", "traced_shop:pm").refused("it has mp")
