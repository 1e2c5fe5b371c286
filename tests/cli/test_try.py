"""`milepost try` on a program in a file; as a process of its own where somebody answers or looks on."""

import os
import pty
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from cli.program import Outcome, Program, Run, Start
from milepost import Message, NewMessage, SyncMilepost
from milepost.engine.operate import dry_run
from support import MakeMilepost

SHOP = """
import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from milepost import (
    Context, Failed, Message, Milepost, NewMessage, Park, Retry, RetryLater, Skip, Transaction, by_function,
)

mp = Milepost(group="shop")

@mp.message("placed", properties=["amount"])
@dataclass
class Placed:
    order: int
    amount: int = 0
    how: str = ""

class Mailer:
    def send(self, text: str) -> None:
        print("mail:", text)

@mp.provide
async def mailer() -> Mailer:
    return Mailer()

@mp.subscription("balances", category="order", retry=Retry(attempts=2, jitter=0),
                 timeout=float(os.environ.get("TIMEOUT", "60")))
async def balance(event: Placed, tx: Transaction, context: Context) -> None:
    print(f"attempt {context.attempt} of {context.subscription} at {context.position}")
    await tx.execute("insert into balances values (%s, %s)", (event.order, event.amount))
    await tx.execute("update balances set amount = amount + 1")
    await tx.append(f"receipt-{event.order}", [NewMessage("due"), NewMessage("sent")])
    match event.how:
        case "fails":
            await tx.execute("select 1 / 0")
        case "hides":
            try:
                await tx.execute("select 1 / 0")
            except Exception:
                print("hidden")
        case "parks":
            raise Park("odd")
        case "skips":
            raise Skip("old")
        case "puts off":
            raise RetryLater(60, count=False, reason="closed")
        case "waits":
            Path("waits").touch()
            await asyncio.Event().wait()
        case "expects":
            await tx.append("order-1", NewMessage("due"), expected=7)
        case "defers":
            await tx.execute("set constraints all deferred")
            await tx.execute("insert into lines values (7)")
        case "commits":
            await tx.execute("commit")
        case "commits and begins":
            await tx.execute("commit")
            await tx.execute("begin")

@mp.subscription("mails", category="order", where="amount > 10", timeout=60)
def mail(event: Placed, mailer: Mailer, context: Context) -> None:
    context.logger.info("to order %d", event.order)
    mailer.send(f"order {event.order}")
    Path("mailed").touch()
    if event.how == "waits":
        while not Path("go").exists():
            time.sleep(0.01)

@mp.subscription("stops", category="order", timeout=0.05)
async def stop(event: Placed) -> None:
    breakpoint()
    await asyncio.sleep(0.2)  # longer than its time-out
    print("went on")

@mp.subscription("batches", category="order")
async def many(messages: list[Message[Any]], tx: Transaction) -> None:
    print(len(messages), "messages")
    raise Failed({messages[0].position: ValueError("first")})

several = mp.subscription("several", category="order")
@several.on
async def placed(event: Placed) -> None: ...
@mp.message("left")
@dataclass
class Left: ...
@several.on
async def left(event: Left) -> None: ...

@mp.subscription("new", start="now")
async def new(message: Message[Any]) -> None: ...

@mp.subscription("keyless", ordered_by=by_function(lambda message: None))
async def keyless(message: Message[Any], tx: Transaction) -> None: ...
"""
TABLES = """
create table {0}.balances (id integer, amount integer);
create table {0}.orders (id integer primary key);
create table {0}.lines (id integer references {0}.orders deferrable);
"""
WATCHED = ("messages", "subscriptions", "definitions", "cursors", "deliveries", "lanes", "workers", "balances")


@pytest.fixture
def log(make_mp: MakeMilepost) -> Iterator[SyncMilepost]:
    """An open log on the test's schema."""
    with make_mp().sync as log:
        yield log


@pytest.fixture
def shop(
    log: SyncMilepost,
    database_url: str,
    schema: str,
    tmp_path: Path,
    environment: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The folder of a program whose tables are in the test's schema."""
    monkeypatch.setenv("MILEPOST_URL", f"{database_url}&options={quote(f'-c search_path={schema}')}")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(TABLES.format(schema).encode())
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def place(log: SyncMilepost, how: str = "", amount: int = 0, type: str = "placed") -> int:
    """Appends an order; its position."""
    data = {"order": 1, "amount": amount, "how": how}
    return log.append("order-1", NewMessage(type, data, properties={"amount": amount})).position


Contents = Callable[[], dict[str, list[str]]]


@pytest.fixture
def contents(database_url: str, schema: str) -> Iterator[Contents]:
    """Gives all that a trial must not change."""
    with psycopg.connect(database_url, autocommit=True) as connection:

        def contents() -> dict[str, list[str]]:
            return {
                table: sorted(
                    row[0] for row in connection.execute(f"select t::text from {schema}.{table} t".encode())
                )
                for table in WATCHED
            }

        yield contents


Try = Callable[..., Outcome]
Started = Callable[..., Program]


@pytest.fixture
def tries(run: Run, shop: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Try]:
    """Runs `milepost try` on the shop, which is imported anew each time."""
    monkeypatch.chdir(shop)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def tries(name: str, *words: object, stdin: bytes = b"") -> Outcome:
        sys.modules.pop("shop", None)
        return run("try", "shop:mp", name, *map(str, words), stdin=stdin)

    yield tries
    sys.modules.pop("shop", None)


@pytest.fixture
def started(start: Start, shop: Path) -> Started:
    """Starts `milepost try` on the shop as a process of its own."""

    def started(name: str, *words: object, **options: Any) -> Program:
        return start("try", "shop:mp", name, *map(str, words), cwd=shop, **options)

    return started


def test_everything_is_told_and_rolled_back(
    log: SyncMilepost, tries: Try, contents: Contents, shop: Path, schema: str
) -> None:
    position = place(log, amount=5)
    before = contents()
    outcome = tries("balances", position).done()
    first, handler, *lines = outcome.out.splitlines()
    assert first.startswith(f"position {position}: order-1 version 1, placed, 20")
    assert handler.startswith(f"handler: balance ({shop / 'shop.py'}:")
    assert handler.endswith("), attempt 1")
    assert lines[0] == f"attempt 1 of balances at {position}"
    assert lines[1].startswith("returned after ")
    assert lines[2:] == [
        f"position {position} would be done",
        f"rows written: {schema}.balances 1 inserted, 1 updated",
        "appended to receipt-1: due, sent",
        "rolled back: all that went through its Transaction; anything else that it did stays",
    ]
    assert contents() == before


@pytest.mark.shard("variants", fast=["fails-1-said0", "parks-1-said2", "puts off-1-said4", "expects-1-said6"])
@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("fails", 1, ["DivisionByZero: division by zero", "would be tried again in 5.0 s: DivisionByZero"]),
        ("hides", 1, ["but its transaction cannot be committed", "InFailedSqlTransaction"]),
        ("parks", 1, ["raised after", "would be parked: odd"]),
        ("skips", 0, ["would be skipped: old"]),
        ("puts off", 1, ["would be tried again in 60.0 s, and this counts as no attempt: closed"]),
        ("waits", 1, ["timed out after 600 s", "would be tried again in 5.0 s: TimedOut"]),
        ("expects", 1, ["its transaction cannot be committed", "WrongVersion: stream 'order-1' is at version 1"]),
        ("defers", 1, ["its transaction cannot be committed", "ForeignKeyViolation"]),
    ],
)
def test_each_way_to_end(
    log: SyncMilepost,
    tries: Try,
    contents: Contents,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    status: int,
    said: Sequence[str],
) -> None:
    if how == "waits":
        monkeypatch.setenv("TIMEOUT", "600")
        # Its time is up as soon as it does.
        monkeypatch.setattr(dry_run, "monotonic", lambda: monotonic() + 601 * Path("waits").exists())
    position = place(log, how)
    before = contents()
    outcome = tries("balances", position)
    assert (outcome.status, outcome.err) == (status, "")
    for words in (*said, "balances 1 inserted, 1 updated", "rolled back: all"):
        assert words in outcome.out
    assert contents() == before


def test_a_traceback_begins_in_the_program(log: SyncMilepost, tries: Try, shop: Path) -> None:
    outcome = tries("balances", place(log, "fails"))
    lines = outcome.out.splitlines()
    trace = lines[lines.index("Traceback (most recent call last):") + 1]
    assert trace.startswith(f'  File "{shop / "shop.py"}", line ')
    assert "calls.py" not in outcome.out


@pytest.mark.parametrize("how", ["commits", "commits and begins"])
def test_who_ends_the_transaction_is_told_so(log: SyncMilepost, tries: Try, how: str) -> None:
    outcome = tries("balances", place(log, how))
    assert outcome.status == 1
    assert "NOT ROLLED BACK" in outcome.out
    assert "rolled back: all" not in outcome.out


def test_the_attempt_is_the_next_one(
    log: SyncMilepost, make_mp: MakeMilepost, tries: Try, contents: Contents
) -> None:
    other = make_mp(group="shop")

    @other.subscription("balances", category="order")
    async def fail(message: Message[Any]) -> None:
        raise ValueError("no")

    position = place(log, "fails")
    with other.sync, pytest.raises(ValueError, match="no"):
        other.sync.run_until_idle()
    before = contents()
    outcome = tries("balances", position)
    assert "  retrying after 1 attempt: ValueError: no\n" in outcome.out
    assert "), attempt 2\n" in outcome.out
    assert "would be parked: DivisionByZero" in outcome.out
    assert contents() == before


def test_a_handler_without_a_transaction_runs_only_when_told_to(log: SyncMilepost, tries: Try, shop: Path) -> None:
    position = place(log, amount=20)
    tries("mails", position).refused("mail takes no Transaction", "really happens", "say --yes")
    assert not (shop / "mailed").exists()
    outcome = tries("mails", position, "--yes")
    assert outcome.status == 0
    assert "mail: order 1\n" in outcome.out
    assert "rolled back" not in outcome.out
    assert outcome.err == "milepost: to order 1\n"
    assert (shop / "mailed").exists()


@pytest.mark.parametrize(
    ("answer", "runs"),
    [pytest.param(b"n\n", False, marks=pytest.mark.shard("processes")), (b"y\n", True)],
)
def test_a_person_is_asked(log: SyncMilepost, started: Started, shop: Path, answer: bytes, runs: bool) -> None:
    terminal, stdin = pty.openpty()
    program = started("mails", place(log, amount=20), stdin=stdin)
    os.write(terminal, answer)
    outcome = program.end()
    os.close(terminal)
    os.close(stdin)
    assert "really happens; run it?" in outcome.err
    assert outcome.status == (0 if runs else 2)
    assert (shop / "mailed").exists() is runs


def test_what_it_prints_is_shown_when_it_does(log: SyncMilepost, started: Started, shop: Path) -> None:
    program = started("mails", place(log, "waits", amount=20), "--yes")
    while line := program.line():
        if line == "mail: order 1\n":
            break
    assert line
    (shop / "go").touch()
    assert program.end().status == 0


@pytest.mark.shard("variants", fast=["mails-placed-amount > 10 is false (amount is 3)"])
@pytest.mark.parametrize(
    ("name", "type", "why"),
    [
        ("mails", "placed", "amount > 10 is false (amount is 3)"),
        ("mails", "left", "it takes type placed, not left"),
        ("keyless", "placed", "it would be parked at once: no key"),
    ],
)
def test_a_message_that_would_not_come(log: SyncMilepost, tries: Try, name: str, type: str, why: str) -> None:
    position = place(log, amount=3, type=type)
    tries(name, position, "--yes").refused(f"position {position} would not reach {name}: {why}", "--force")
    outcome = tries(name, position, "--yes", "--force")
    assert f"  would not reach {name}: {why}" in outcome.out
    assert f"position {position} would be" in outcome.out


def test_a_batch(log: SyncMilepost, tries: Try) -> None:
    positions = [place(log) for _ in range(3)]
    outcome = tries("batches", *reversed(positions))
    assert outcome.status == 1
    assert "3 messages\n" in outcome.out
    assert f"position {positions[0]} would be tried again in 5.0 s: ValueError: first\n" in outcome.out
    assert f"position {positions[1]} would be run again at once" in outcome.out
    assert "rows written before that: none\n" in outcome.out
    assert "1 messages\n" in (tries("batches", positions[0])).out


def test_json(log: SyncMilepost, tries: Try) -> None:
    position = place(log, "fails", amount=5)
    outcome = tries("balances", position, "--json")
    assert outcome.status == 1
    assert outcome.err == f"attempt 1 of balances at {position}\n"
    [message] = outcome.json["messages"]
    assert message["prospect"] == {
        "state": "retrying",
        "reason": "DivisionByZero: division by zero",
        "after": 5.0,
        "counts": True,
    }
    assert (message["position"], message["attempt"], message["unreached"]) == (position, 1, None)
    assert outcome.json["writes"][0]["inserted"] == 1
    assert outcome.json["appends"] == []
    assert outcome.json["error"].endswith("DivisionByZero: division by zero\n")
    done = tries("balances", place(log), "--json")
    assert done.json["appends"] == [{"stream": "receipt-1", "types": ["due", "sent"]}]


def test_the_debugger_opens_where_it_failed(log: SyncMilepost, tries: Try) -> None:
    position = place(log, "fails", amount=5)
    outcome = tries("balances", position, "--pdb", stdin=b"up 3\nquit\n")
    assert outcome.status == 1
    assert "rolled back: all" in outcome.out
    assert "(Pdb)" in outcome.out
    done = tries("balances", place(log), "--pdb")
    assert "(Pdb)" not in done.done().out


def test_a_breakpoint_and_no_time_out(log: SyncMilepost, started: Started) -> None:
    program = started("stops", place(log, amount=41), "--pdb", "--yes")
    outcome = program.end(stdin=b"p event.amount + 1\ncontinue\n")
    assert "(Pdb) 42\n" in outcome.out
    assert "went on\n" in outcome.out
    assert outcome.status == 0


def test_a_schema_is_left_as_it_is(
    tries: Try, monkeypatch: pytest.MonkeyPatch, database_url: str, schema: str
) -> None:
    monkeypatch.setenv("MILEPOST_SCHEMA", f"{schema}_none")
    tries("balances", 1).refused("milepost schema migrate")
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("select from pg_namespace where nspname like '%\\_none'").fetchall()
    assert not rows


@pytest.mark.shard(
    "variants",
    fast=[
        "words0-did you mean 'balances'?",
        "words2-there is no message at position 99; the log ends at 2",
        "words3-POSITION",
        "words6-the debugger is for a person",
        "words8-none of its 2 handlers takes type 'other'",
    ],
)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["balance", "1"], "did you mean 'balances'?"),
        (["billing/balances", "1"], "this program has the handlers of group 'shop' alone"),
        (["shop/balances", "99"], "there is no message at position 99; the log ends at 2"),
        (["balances", str(2**63)], "POSITION"),
        (["balances", "0"], "POSITION"),
        (["balances", "1", "2"], "balance takes one message and no batch"),
        (["balances", "1", "--json", "--pdb"], "the debugger is for a person"),
        (["several", "1", "2", "--force"], "for different handlers"),
        (["several", "3", "--force"], "none of its 2 handlers takes type 'other'"),
    ],
)
def test_what_cannot_be_tried(log: SyncMilepost, tries: Try, words: list[str], said: str) -> None:
    place(log)
    place(log, type="left")
    if "3" in words:
        place(log, type="other")
    tries(*words).refused(said)
