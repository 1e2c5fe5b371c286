"""`milepost read`: selecting, printing, following."""

import json
import os
import pty
import re
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from itertools import product
from time import sleep

import psycopg
import pytest
from psycopg import sql

from cli.program import COMMAND, Run, Shell, Start


@pytest.fixture
def filled(run: Run) -> None:
    """Nine messages of two categories, three streams and three types."""
    kinds = product(("placed", "payment.received", "payment.refund.sent"), ("order-1", "order-2", "orderline-1"))
    text = [
        {"stream": stream, "type": kind, "data": {"n": n}, "properties": {"n": n}}
        for n, (kind, stream) in enumerate(kinds)
    ]
    run("append", "--batch", "1", stdin="\n".join(map(json.dumps, text)).encode()).done()


@pytest.mark.shard(
    "variants",
    fast=[
        "words0-positions0",
        "words2-positions2",
        "words5-positions5",
        "words8-positions8",
        "words11-positions11",
        "words14-positions14",
        "words17-positions17",
        "words20-positions20",
    ],
)
@pytest.mark.parametrize(
    ("words", "positions"),
    [
        ([], [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (["order-1"], [1, 4, 7]),
        (["order-1", "order-2"], [1, 2, 4, 5, 7, 8]),
        (["order-9"], []),
        (["--category", "order"], [1, 2, 4, 5, 7, 8]),
        (["--category", "order", "--category", "orderline", "--limit", "3"], [1, 2, 3]),
        (["--type", "placed"], [1, 2, 3]),
        (["--type", "payment.*"], [4, 5, 6]),
        (["--type", "payment.>", "--type", "placed", "--category", "orderline"], [3, 6, 9]),
        (["--where", "n >= 6 && n != 7"], [7, 9]),
        (["order-1", "--where", "n > 0"], [4, 7]),
        (["--after", "7"], [8, 9]),
        (["--after", "999999"], []),
        (["order-1", "--after-version", "1"], [4, 7]),
        (["--backwards", "--limit", "2"], [9, 8]),
        (["order-2", "--backwards"], [8, 5, 2]),
        (["--limit", "0"], []),
        (["--limit", "9" * 30], [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (["--since", "2020-01-01"], [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (["--since", "1h"], [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (["--since", "2999-01-01T00:00:00Z"], []),
    ],
)
def test_what_is_selected(run: Run, filled: None, words: list[str], positions: list[int]) -> None:
    assert [line["position"] for line in run("read", "--json", *words).done().lines] == positions


def test_since_a_moment(run: Run) -> None:
    run("append", "a-1", "t", "1").done()
    moment = run("read", "--json").lines[0]["time"]
    run("append", "a-1", "t", "2").done()
    assert len(run("read", "--json", "--since", moment).lines) == 2
    later = (datetime.fromisoformat(moment) + timedelta(microseconds=1)).astimezone(UTC).isoformat()
    assert [line["version"] for line in run("read", "--json", "--since", later).lines] == [2]


@pytest.mark.shard(
    "variants",
    fast=[
        "words0---after",
        "words3---follow",
        "words4-one stream",
        "words6---since",
        "words8---limit",
        "words10-exclude",
        "words12-empty",
        "words16-surrogate",
        "words18-filter, at character 4",
        "words19-did you mean",
    ],
)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--after", "x"], "--after"),
        (["--after", "-1"], "--after"),
        (["--after", "9" * 30], "--after"),
        (["--after", "now"], "--follow"),
        (["--after-version", "1"], "one stream"),
        (["a-1", "b-1", "--after-version", "1"], "one stream"),
        (["--since", "yesterday"], "--since"),
        (["--since", "999999999d"], "--since"),
        (["--limit", "-1"], "--limit"),
        (["--limit", "x"], "--limit"),
        (["--follow", "--backwards"], "exclude"),
        (["--type", "a.>.b"], ">"),
        (["--type", ""], "empty"),
        (["--category", ""], "empty"),
        ([""], "empty"),
        (["--", "-1"], "category"),
        (["a-\udcff"], "surrogate"),
        (["x" * 513], "512"),
        (["--where", "n ="], "filter, at character 4"),
        (["--where", "n == 'x'"], "did you mean"),
        (["--where", "x" * 5000], "4,096"),
        (["--colour"], "--help"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(run: Run, filled: None, words: list[str], said: str) -> None:
    run("read", *words).refused(said)


def test_lines_for_a_person(run: Run) -> None:
    run("append", "order-1", "placed", '{"a": 1}', "--property", "ok=true", "--property", "region=EU").done()
    (line,) = run("read").done().out.splitlines()
    assert re.fullmatch(
        r" +1 \d{4}-\d\d-\d\d \d\d:\d\d:\d\d order-1 +1 placed +{\"a\": 1} ok=true region=EU", line
    )


def test_a_terminal_is_not_obeyed_to_what_messages_say(run: Run) -> None:
    hostile = "a-\x1b]0;owned\x07\x1b[31m\u202e[red]"
    line = {"stream": hostile, "type": "\x1b[2J", "data": {"\x1b": "\x9b31m"}, "properties": {"p": "\x1b[1m"}}
    run("append", stdin=json.dumps(line).encode()).done()
    printed = run("read").done().out
    assert printed.count("\n") == 1
    assert printed.rstrip("\n").isprintable()
    assert r"a-\x1b]0;owned\x07\x1b[31m\u202e[red]" in printed
    assert run("read", "--json").lines[0]["stream"] == hostile


def test_what_is_read_can_be_appended_elsewhere(run: Run, filled: None, schema: str, database_url: str) -> None:
    run("append", "a-1", "t", '{"big": 12345678901234567, "exact": 0.10000000000000000000001}').done()
    run("append", "ünï-1", "t", '"☃\\"\\\\\\n"', "--metadata", "correlation_id=7", "--property", "s=\u2028").done()
    copy = f"{schema}_copy"
    original = run("read", "--json").done().out
    try:
        run("append", "--schema", copy, "--batch", "1", stdin=original.encode()).done()
        copied = run("read", "--json", "--schema", copy).done().out
        without_time = re.compile(r'"time":"[^"]*",')
        assert without_time.sub("", copied) == without_time.sub("", original)
    finally:
        drop(database_url, copy)


@pytest.mark.shard("processes")
def test_a_copy_through_a_pipe(shell: Shell, run: Run, schema: str, database_url: str, filled: None) -> None:
    copy = f"{schema}_copy"
    try:
        outcome = shell(f"milepost read --json | milepost append --schema {copy}")
        assert outcome.done().out == "appended 9\n"
        assert len(run("read", "--json", "--schema", copy).lines) == 9
    finally:
        drop(database_url, copy)


@pytest.mark.parametrize(
    "form", ["", pytest.param("--json", marks=pytest.mark.shard("processes"))], ids=["lines", "json"]
)
def test_a_reader_that_has_enough(shell: Shell, run: Run, form: str) -> None:
    text = "\n".join(json.dumps({"stream": "a-1", "type": "t", "data": "x" * 200}) for _ in range(5000))
    run("append", stdin=text.encode()).done()
    outcome = shell(f"milepost read {form} | head -n 1; echo ${{PIPESTATUS[0]}}")
    assert outcome.err == ""
    assert outcome.out.splitlines()[1] == "141"


def test_following_until_control_c(start: Start, run: Run, filled: None) -> None:
    program = start("read", "--follow", "--json", "--category", "order", "--after", "7")
    assert json.loads(program.line())["position"] == 8
    for n in range(10, 13):
        run("append", "order-1", "t", str(n)).done()
        assert json.loads(program.line())["data"] == n
    outcome = program.interrupt()
    assert (outcome.status, outcome.out, outcome.err) == (130, "", "")


@pytest.mark.shard("processes")
def test_following_ends_with_sigterm(start: Start, run: Run, filled: None) -> None:
    program = start("read", "--follow")
    program.line()
    outcome = program.end(signal.SIGTERM)
    assert (outcome.status, outcome.err) == (143, "")


def test_following_what_is_new(start: Start, run: Run, filled: None) -> None:
    program = start("read", "--follow", "--json", "--after", "now", "--limit", "1")
    # It has begun once it sees something; what came before that is not new.
    while program.process.poll() is None:
        run("append", "a-1", "t", "1").done()
        sleep(0.05)
    assert json.loads(program.line())["position"] > 9
    assert program.end().status == 0


def test_following_with_the_other_conditions(run: Run, filled: None) -> None:
    follow = ["read", "--follow", "--json", "--limit", "2"]
    assert [line["position"] for line in run(*follow, "order-1", "--after-version", "1").lines] == [4, 7]
    assert [line["position"] for line in run(*follow, "--type", "payment.*", "--where", "n > 3").lines] == [5, 6]
    moment = run("read", "--json", "--after", "5", "--limit", "1").lines[0]["time"]
    assert [line["position"] for line in run(*follow, "--since", moment).lines] == [6, 7]
    assert run(*follow[:-1], "0").done().out == ""


@pytest.mark.usefixtures("no_log")
def test_a_follower_may_come_before_the_log(start: Start, run: Run) -> None:
    program = start("read", "--follow", "--json")
    assert "has no log yet: waiting" in program.complaint()
    run("append", "a-1", "t", '"first"').done()
    assert json.loads(program.line())["data"] == "first"
    assert program.interrupt().status == 130


@pytest.mark.usefixtures("no_log")
def test_reading_makes_no_log(run: Run) -> None:
    run("read").refused("milepost schema migrate")
    assert run("schema", "status", "--json").json["number"] == 0


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({}, True), pytest.param({"NO_COLOR": "1"}, False, marks=pytest.mark.shard("processes"))],
)
def test_a_terminal(run: Run, variables: dict[str, str], coloured: bool) -> None:
    run("append", "order-1", "placed", json.dumps("x" * 200)).done()
    terminal, inner = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **variables}
    subprocess.run([*COMMAND, "read"], stdout=inner, env=environment, timeout=60, check=True)
    os.close(inner)
    heading, line = os.read(terminal, 65536).decode().splitlines()
    os.close(terminal)
    assert "POSITION" in heading
    assert ("\x1b[36m" in line) is coloured
    assert len(re.sub(r"\x1b\[[0-9;]*m", "", line)) == 100
    assert "…" in line


def drop(url: str, schema: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(schema)))
