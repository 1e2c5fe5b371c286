"""`milepost try` as a process of its own, on a program in a file."""

import asyncio
import os
import pty
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from cli.program import Outcome, Program, Start
from milepost import Message, Milepost, NewMessage
from support import MakeMilepost, qualified

SHOP = """
import asyncio
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

@mp.subscription("balances", category="order", retry=Retry(attempts=2, jitter=0), timeout=3)
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
async def shop(
    mp: Milepost, database_url: str, tmp_path: Path, environment: None, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder of a program whose tables are in the test's schema."""
    schema = mp.settings["schema"].value
    monkeypatch.setenv("MILEPOST_URL", f"{database_url}&options={quote(f'-c search_path={schema}')}")
    async with mp.log.database.connection() as connection:
        await connection.execute(qualified(TABLES, mp))
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


async def place(mp: Milepost, how: str = "", amount: int = 0, type: str = "placed") -> int:
    """Appends an order; its position."""
    data = {"order": 1, "amount": amount, "how": how}
    appended = await mp.append("order-1", NewMessage(type, data, properties={"amount": amount}))
    return appended.position


async def contents(mp: Milepost) -> dict[str, Any]:
    """All that a trial must not change."""
    return {
        table: sorted(
            map(str, await mp.log.database.execute(qualified(f"select t::text from {{}}.{table} t", mp), {}))
        )
        for table in WATCHED
    }


class Try:
    """`milepost try` on the shop."""

    def __init__(self, start: Start, folder: Path) -> None:
        self._start = start
        self._folder = folder

    async def __call__(self, name: str, *words: object, stdin: bytes = b"") -> Outcome:
        program = self.started(name, *words)
        return await asyncio.to_thread(program.end, None, stdin)

    def started(self, name: str, *words: object, **options: Any) -> Program:
        return self._start("try", "shop:mp", name, *map(str, words), cwd=self._folder, **options)


@pytest.fixture
def tries(start: Start, shop: Path) -> Try:
    return Try(start, shop)


async def test_everything_is_told_and_rolled_back(mp: Milepost, tries: Try, shop: Path) -> None:
    position = await place(mp, amount=5)
    before = await contents(mp)
    outcome = (await tries("balances", position)).done()
    first, handler, *lines = outcome.out.splitlines()
    assert first.startswith(f"position {position}: order-1 version 1, placed, 20")
    assert handler.startswith(f"handler: balance ({shop / 'shop.py'}:")
    assert handler.endswith("), attempt 1")
    assert lines[0] == f"attempt 1 of balances at {position}"
    assert lines[1].startswith("returned after ")
    schema = mp.settings["schema"].value
    assert lines[2:] == [
        f"position {position} would be done",
        f"rows written: {schema}.balances 1 inserted, 1 updated",
        "appended to receipt-1: due, sent",
        "rolled back: all that went through its Transaction; anything else that it did stays",
    ]
    assert await contents(mp) == before


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("fails", 1, ["DivisionByZero: division by zero", "would be tried again in 5.0 s: DivisionByZero"]),
        ("hides", 1, ["but its transaction cannot be committed", "InFailedSqlTransaction"]),
        ("parks", 1, ["raised after", "would be parked: odd"]),
        ("skips", 0, ["would be skipped: old"]),
        ("puts off", 1, ["would be tried again in 60.0 s, and this counts as no attempt: closed"]),
        ("waits", 1, ["timed out after 3 s", "would be tried again in 5.0 s: TimedOut"]),
        ("expects", 1, ["its transaction cannot be committed", "WrongVersion: stream 'order-1' is at version 1"]),
        ("defers", 1, ["its transaction cannot be committed", "ForeignKeyViolation"]),
    ],
)
async def test_each_way_to_end(mp: Milepost, tries: Try, how: str, status: int, said: Sequence[str]) -> None:
    position = await place(mp, how)
    before = await contents(mp)
    outcome = await tries("balances", position)
    assert (outcome.status, outcome.err) == (status, "")
    for words in (*said, "balances 1 inserted, 1 updated", "rolled back: all"):
        assert words in outcome.out
    assert await contents(mp) == before


async def test_a_traceback_begins_in_the_program(mp: Milepost, tries: Try, shop: Path) -> None:
    outcome = await tries("balances", await place(mp, "fails"))
    lines = outcome.out.splitlines()
    trace = lines[lines.index("Traceback (most recent call last):") + 1]
    assert trace.startswith(f'  File "{shop / "shop.py"}", line ')
    assert "calls.py" not in outcome.out


@pytest.mark.parametrize("how", ["commits", "commits and begins"])
async def test_who_ends_the_transaction_is_told_so(mp: Milepost, tries: Try, how: str) -> None:
    outcome = await tries("balances", await place(mp, how))
    assert outcome.status == 1
    assert "NOT ROLLED BACK" in outcome.out
    assert "rolled back: all" not in outcome.out


async def test_the_attempt_is_the_next_one(mp: Milepost, make_mp: MakeMilepost, tries: Try) -> None:
    other = make_mp(group="shop")

    @other.subscription("balances", category="order")
    async def fail(message: Message[Any]) -> None:
        raise ValueError("no")

    position = await place(mp, "fails")
    with pytest.raises(ValueError, match="no"):
        await other.run_until_idle()
    before = await contents(mp)
    outcome = await tries("balances", position)
    assert "  retrying after 1 attempt: ValueError: no\n" in outcome.out
    assert "), attempt 2\n" in outcome.out
    assert "would be parked: DivisionByZero" in outcome.out
    assert await contents(mp) == before


async def test_a_handler_without_a_transaction_runs_only_when_told_to(
    mp: Milepost, tries: Try, shop: Path
) -> None:
    position = await place(mp, amount=20)
    (await tries("mails", position)).refused("mail takes no Transaction", "really happens", "say --yes")
    assert not (shop / "mailed").exists()
    outcome = await tries("mails", position, "--yes")
    assert outcome.status == 0
    assert "mail: order 1\n" in outcome.out
    assert "rolled back" not in outcome.out
    assert outcome.err == "milepost: to order 1\n"
    assert (shop / "mailed").exists()


@pytest.mark.parametrize(("answer", "runs"), [(b"n\n", False), (b"y\n", True)])
async def test_a_person_is_asked(mp: Milepost, tries: Try, shop: Path, answer: bytes, runs: bool) -> None:
    terminal, stdin = pty.openpty()
    program = tries.started("mails", await place(mp, amount=20), stdin=stdin)
    os.write(terminal, answer)
    outcome = await asyncio.to_thread(program.end)
    os.close(terminal)
    os.close(stdin)
    assert "really happens; run it?" in outcome.err
    assert outcome.status == (0 if runs else 2)
    assert (shop / "mailed").exists() is runs


async def test_what_it_prints_is_shown_when_it_does(mp: Milepost, tries: Try, shop: Path) -> None:
    program = tries.started("mails", await place(mp, "waits", amount=20), "--yes")
    async with asyncio.timeout(40):
        while await asyncio.to_thread(program.line) != "mail: order 1\n":
            pass
    (shop / "go").touch()
    assert (await asyncio.to_thread(program.end)).status == 0


@pytest.mark.parametrize(
    ("name", "type", "why"),
    [
        ("mails", "placed", "amount > 10 is false (amount is 3)"),
        ("mails", "left", "it takes type placed, not left"),
        ("keyless", "placed", "it would be parked at once: no key"),
    ],
)
async def test_a_message_that_would_not_come(mp: Milepost, tries: Try, name: str, type: str, why: str) -> None:
    position = await place(mp, amount=3, type=type)
    (await tries(name, position, "--yes")).refused(f"position {position} would not reach {name}: {why}", "--force")
    outcome = await tries(name, position, "--yes", "--force")
    assert f"  would not reach {name}: {why}" in outcome.out
    assert f"position {position} would be" in outcome.out


async def test_a_batch(mp: Milepost, tries: Try) -> None:
    positions = [await place(mp) for _ in range(3)]
    outcome = await tries("batches", *reversed(positions))
    assert outcome.status == 1
    assert "3 messages\n" in outcome.out
    assert f"position {positions[0]} would be tried again in 5.0 s: ValueError: first\n" in outcome.out
    assert f"position {positions[1]} would be run again at once" in outcome.out
    assert "rows written before that: none\n" in outcome.out
    assert "1 messages\n" in (await tries("batches", positions[0])).out


async def test_json(mp: Milepost, tries: Try) -> None:
    position = await place(mp, "fails", amount=5)
    outcome = await tries("balances", position, "--json")
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
    done = await tries("balances", await place(mp), "--json")
    assert done.json["appends"] == [{"stream": "receipt-1", "types": ["due", "sent"]}]


async def test_the_debugger_opens_where_it_failed(mp: Milepost, tries: Try) -> None:
    position = await place(mp, "fails", amount=5)
    outcome = await tries("balances", position, "--pdb", stdin=b"up 3\nquit\n")
    assert outcome.status == 1
    assert "rolled back: all" in outcome.out
    assert "(Pdb)" in outcome.out
    done = await tries("balances", await place(mp), "--pdb")
    assert "(Pdb)" not in done.done().out


async def test_a_breakpoint_and_no_time_out(mp: Milepost, tries: Try) -> None:
    position = await place(mp, amount=41)
    outcome = await tries("stops", position, "--pdb", "--yes", stdin=b"p event.amount + 1\ncontinue\n")
    assert "(Pdb) 42\n" in outcome.out
    assert "went on\n" in outcome.out
    assert outcome.status == 0


async def test_a_schema_is_left_as_it_is(tries: Try, monkeypatch: pytest.MonkeyPatch, mp: Milepost) -> None:
    monkeypatch.setenv("MILEPOST_SCHEMA", f"{mp.settings['schema'].value}_none")
    (await tries("balances", 1)).refused("milepost schema migrate")
    rows = await mp.log.database.execute("select from pg_namespace where nspname like '%%\\_none'", {})
    assert not rows


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
async def test_what_cannot_be_tried(mp: Milepost, tries: Try, words: list[str], said: str) -> None:
    await place(mp)
    await place(mp, type="left")
    if "3" in words:
        await place(mp, type="other")
    (await tries(*words)).refused(said)
