"""`milepost append` from standard input: in batches, exact about what is in the log."""

import json
import signal
import subprocess
from contextlib import suppress
from time import monotonic, sleep
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from cli.program import Program, Run, Start
from milepost.cli.commands import append as intake


def lines(count: int, *, ids: bool = False) -> list[bytes]:
    return [
        json.dumps(
            {"stream": f"order-{n % 7}", "type": "t", "data": {"n": n}, "properties": {"n": n}}
            | ({"id": str(UUID(int=n + 1))} if ids else {})
        ).encode()
        for n in range(count)
    ]


def stored(run: Run) -> list[int]:
    """The numbers of the messages in the log, sorted; each has to be there once."""
    numbers = [line["data"]["n"] for line in run("read", "--json").lines]
    assert len(set(numbers)) == len(numbers)
    return sorted(numbers)


def test_many_lines(run: Run) -> None:
    outcome = run("append", stdin=b"\n".join(lines(20_000)) + b"\n")
    assert outcome.done().out == "appended 20,000\n"
    found = run("read", "--json").lines
    assert sorted(line["data"]["n"] for line in found) == list(range(20_000))
    for stream in range(7):
        of_stream = [line["data"]["n"] for line in found if line["stream"] == f"order-{stream}"]
        assert of_stream == list(range(stream, 20_000, 7))


def test_one_line_at_a_time_keeps_the_order_across_streams(run: Run) -> None:
    run("append", "--batch", "1", stdin=b"\n".join(reversed(lines(20)))).done()
    assert [line["data"]["n"] for line in run("read", "--json").lines] == list(reversed(range(20)))


def test_the_same_input_again_writes_nothing(run: Run) -> None:
    text = b"\n".join(lines(1200, ids=True))
    assert run("append", "--json", stdin=text).json == {"appended": 1200, "duplicates": 0, "position": 1200}
    assert run("append", "--json", stdin=text).json == {"appended": 0, "duplicates": 1200, "position": 1200}
    assert run("append", stdin=text).done().out == "appended 0, 1,200 were there already\n"


def test_after_a_bad_line_one_can_go_on(run: Run) -> None:
    good = lines(1300)
    text = b"\n".join([*good[:1200], b'{"stream": "order-1"}', *good[1200:]])
    outcome = run("append", stdin=text)
    line = outcome.refused("appended 1,200; line 1,201: ", "`type`", "tail -n +1201")
    assert line.index("appended") < line.index("line 1,201")
    assert stored(run) == list(range(1200))
    assert run("append", stdin=b"\n".join(text.split(b"\n")[1201:])).done().out == "appended 100\n"
    assert stored(run) == list(range(1300))


def test_a_line_that_only_the_database_refuses(run: Run) -> None:
    good = lines(30, ids=True)
    reused = json.dumps({"stream": "order-0", "type": "other", "id": str(UUID(int=1))}).encode()
    run("append", stdin=b"\n".join([*good[:20], reused, *good[20:]])).refused("line 21", "other content")
    assert stored(run) == list(range(20))
    assert run("append", stdin=b"\n".join(good)).done().out == "appended 10, 20 were there already\n"


def test_the_same_line_twice_in_a_batch_is_written_once(run: Run) -> None:
    text = b"\n".join([*lines(5, ids=True), *lines(5, ids=True)])
    assert run("append", stdin=text).done().out == "appended 5, 5 were there already\n"


def test_what_surrounds_lines_does_not_matter(run: Run) -> None:
    first, second, third = lines(3)
    text = b"\xef\xbb\xbf" + first + b"\r\n\n  \t\n" + second + b"  \r\n" + third
    assert run("append", stdin=text).done().out == "appended 3\n"


def test_nothing_at_all(run: Run) -> None:
    assert run("append", stdin=b"").done().out == "appended 0\n"
    assert run("append", stdin=b"\n\n").done().out == "appended 0\n"


HOSTILE = {
    "no JSON": (b"hello", "malformed"),
    "half a line": (b'{"stream": "a-1", "type"', "truncated"),
    "an array": (b"[]", "object"),
    "no stream": (b'{"type": "t"}', "`stream`"),
    "no type": (b'{"stream": "a-1"}', "`type`"),
    "a misspelt field": (b'{"stream": "a-1", "type": "t", "propertys": {}}', "propertys"),
    "a stream that is a number": (b'{"stream": 1, "type": "t"}', "stream"),
    "an empty stream": (b'{"stream": "", "type": "t"}', "stream"),
    "a stream without category": (b'{"stream": "-1", "type": "t"}', "category"),
    "a stream with a NUL": (b'{"stream": "a\\u0000", "type": "t"}', "NUL"),
    "an id that is none": (b'{"stream": "a-1", "type": "t", "id": "x"}', "UUID"),
    "a float as property": (b'{"stream": "a-1", "type": "t", "properties": {"p": 1.5}}', "'p'"),
    "a nested property": (b'{"stream": "a-1", "type": "t", "properties": {"p": {}}}', "'p'"),
    "properties that are a list": (b'{"stream": "a-1", "type": "t", "properties": []}', "properties"),
    "metadata that is a text": (b'{"stream": "a-1", "type": "t", "metadata": "x"}', "metadata"),
    "a NUL in the payload": (b'{"stream": "a-1", "type": "t", "data": "\\u0000"}', "NUL"),
    "a lone surrogate": (b'{"stream": "a-1", "type": "t", "data": "\\ud800"}', "line 2"),
    "bytes that are not UTF-8": (b'{"stream": "a-1", "type": "t", "data": "\xff"}', "UTF-8"),
    "a number too large": (b'{"stream": "a-1", "type": "t", "data": 1e999}', "range"),
    "deep nesting": (b'{"stream": "a-1", "type": "t", "data": ' + b"[" * 9000 + b"]" * 9000 + b"}", "nested"),
    "a message too large": (b'{"stream": "a-1", "type": "t", "data": "' + b"x" * 1_100_000 + b'"}', "limit"),
    "a line too long": (b'{"stream": "a-1", "type": "t", "data": "' + b"x" * 9_000_000 + b'"}', "8 MiB"),
    "a line that never ends": (b" " * 9_000_000, "8 MiB"),
    "control characters": (b'{"stream": "-\\u001b[31m\\n", "type": "t"}', "category"),
}


@pytest.mark.shard(
    "variants",
    fast=[
        "no JSON",
        "an array",
        "no stream",
        "a misspelt field",
        "a nested property",
        "a NUL in the payload",
        "bytes that are not UTF-8",
        "a line too long",
        "a line that never ends",
    ],
)
@pytest.mark.parametrize("case", HOSTILE)
def test_a_line_that_cannot_be_appended_is_named(run: Run, case: str) -> None:
    text, said = HOSTILE[case]
    before, after = lines(2)
    line = run("append", stdin=b"\n".join([before, text, after])).refused("appended 1; line 2: ", said)
    assert line.rstrip("\n").isprintable()
    assert stored(run) == [0]


def test_lines_are_appended_as_they_arrive(start: Start, run: Run) -> None:
    run("schema", "migrate").done()
    program = start("append")
    for count, line in enumerate(lines(3), 1):
        program.stdin.write(line + b"\n")
        program.stdin.flush()
        wait_until_stored(run, count)
    assert program.end().out == "appended 3\n"


def test_control_c_says_what_is_in_the_log(start: Start, run: Run) -> None:
    run("schema", "migrate").done()
    program = start("append")
    program.stdin.write(b"\n".join(lines(5)) + b"\n")
    program.stdin.flush()
    wait_until_stored(run, 5)
    program.process.send_signal(signal.SIGINT)
    assert program.process.wait(60) == 130
    assert program.complaint() == "milepost: stopped: appended 5, up to line 5\n"


def test_the_first_control_c_waits_for_what_is_being_appended(
    start: Start, run: Run, database_url: str, schema: str
) -> None:
    run("append", "order-0", "t", "null").done()
    with psycopg.connect(database_url) as holder:
        program = held_up(start, holder, database_url, schema)
        program.process.send_signal(signal.SIGINT)
        holder.commit()
        assert program.process.wait(60) == 130
    assert program.complaint() == "milepost: stopped: appended 3, up to line 3\n"


def held_up(
    start: Start, holder: psycopg.Connection[tuple[object, ...]], database_url: str, schema: str
) -> Program:
    """A program that waits for a lock while it appends three lines."""
    holder.execute(sql.SQL("select from {}.streams for update").format(sql.Identifier(schema)))
    waiting = "select from pg_stat_activity where wait_event_type = 'Lock' and query like %s"
    with psycopg.connect(database_url, autocommit=True) as observer:
        program = start("append")
        program.stdin.write(b"\n".join(lines(3)) + b"\n")
        program.stdin.flush()
        while not observer.execute(waiting, [f"%{schema}%"]).fetchall():
            assert program.process.poll() is None
            sleep(0.01)
    return program


def test_a_second_control_c_ends_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[int] = []

    def append(*_: object) -> None:
        for number in (1, 2):
            signal.raise_signal(signal.SIGINT)
            reached.append(number)

    monkeypatch.setattr(intake, "_append_batch", append)
    outcome = run("append", stdin=b"\n".join([*lines(3), b""]))
    assert (outcome.status, reached) == (130, [1])
    expected = "milepost: stopped: appended 0, up to line 0; lines 1 to 3 may or may not be in the log\n"
    assert outcome.err == expected


@pytest.mark.shard("processes")
def test_a_second_control_c_does_not_wait_for_a_locked_stream(
    start: Start, run: Run, database_url: str, schema: str
) -> None:
    run("append", "order-0", "t", "null").done()
    with psycopg.connect(database_url) as holder:
        program = held_up(start, holder, database_url, schema)
        # Two that come at once are one: then there is a third.
        for seconds in (3, 30, 60):
            program.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                program.process.wait(seconds)
                break
        assert program.process.returncode == 130
    expected = "milepost: stopped: appended 0, up to line 0; lines 1 to 3 may or may not be in the log\n"
    assert program.complaint() == expected


def wait_until_stored(run: Run, count: int) -> None:
    deadline = monotonic() + 40
    while len(run("read", "--json").lines) < count:
        assert monotonic() < deadline
        sleep(0.05)
