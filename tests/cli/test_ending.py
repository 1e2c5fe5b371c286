"""How the command ends: whatever a person does wrong, one line says what to do."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cli.program import COMMAND, Run, Shell
from milepost.cli import command
from milepost.cli.output import visible

PROCESSES = pytest.mark.shard("processes")
DATABASE_COMMANDS = (
    ["append", "a-1", "t", "1"],
    ["append"],
    ["read"],
    ["read", "--follow"],
    ["schema", "migrate"],
    ["schema", "status"],
    ["bench", "--seconds", "1"],
)


@pytest.fixture
def stranger(database_url: str, schema: str) -> Iterator[str]:
    """The address for a user who has been given nothing."""
    name = f"stranger_{uuid4().hex[:8]}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("create role {} login").format(sql.Identifier(name)))
        yield make_conninfo(database_url, user=name)
        connection.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(name)))


def test_version(run: Run) -> None:
    assert run("--version").done().out == f"milepost {version('milepost')}\n"


@pytest.mark.parametrize("words", [[], ["--help"], ["schema"]])
def test_help_for_who_does_not_know_what_to_say(run: Run, words: list[str]) -> None:
    assert "Usage: milepost" in run(*words).done().out


COMMANDS = ["demo", "run", "append", "read", "config", "url", "doctor", "bench"]


@pytest.mark.parametrize(
    "words", [*([name] for name in COMMANDS), *(["schema", n] for n in ("migrate", "status", "sql"))]
)
def test_every_command_has_an_example(run: Run, words: list[str]) -> None:
    assert (
        f"milepost {' '.join(words)}" in run(*words, "--help").done().out.partition("Usage:")[2].partition("\n")[2]
    )


@pytest.mark.parametrize("words", DATABASE_COMMANDS)
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://127.0.0.1:1/x", "is the server running"),
        ("host=/nonexistent", "is the server running"),
        ("hello", "no address that PostgreSQL understands"),
        ("http://user:hunter2@host/", "no address that PostgreSQL understands"),
        ("postgresql://user:hunter2@[::1/x", "no address that PostgreSQL understands"),
        ("postgresql://h/x?fool=1", "no address that PostgreSQL understands"),
        ("embedded:/dev/null/x", "does not start"),
    ],
)
def test_a_database_that_cannot_be_had(run: Run, words: list[str], url: str, said: str) -> None:
    assert "hunter2" not in run(*words, "--url", url).refused(said)


@pytest.mark.parametrize("words", [*DATABASE_COMMANDS, ["url"], ["doctor"]])
def test_no_database_was_named(run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.delenv("MILEPOST_URL")
    run(*words).refused("--url postgresql://", "MILEPOST_URL")


def test_a_database_that_does_not_exist(run: Run, database_url: str) -> None:
    run("read", "--url", make_conninfo(database_url, dbname="nowhere")).refused(
        '"nowhere" does not exist', "create it"
    )


def test_a_user_that_does_not_exist(run: Run, database_url: str) -> None:
    run("read", "--url", make_conninfo(database_url, user="nobody_here")).refused("nobody_here")


def test_a_server_that_does_not_answer(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=2"
        run("read", "--url", url).refused("timeout")


def test_a_user_without_rights(run: Run, stranger: str) -> None:
    run("append", "a-1", "t", "1").done()
    for words in (["append", "a-1", "t", "1"], ["read"], ["schema", "status"]):
        run(*words, "--url", stranger).refused("permission denied", "`milepost schema roles`")
    run("schema", "migrate", "--url", stranger, "--schema", "somewhere_new").refused("permission denied")


def test_a_read_only_server(run: Run, database_url: str) -> None:
    url = make_conninfo(database_url, options="-c default_transaction_read_only=on")
    run("append", "a-1", "t", "1", "--url", url).refused("give the address of the primary")


def test_a_schema_that_is_newer_than_the_program(run: Run, database_url: str, schema: str) -> None:
    run("schema", "migrate").done()
    with psycopg.connect(database_url, autocommit=True) as connection:
        newer = sql.SQL("insert into {}.migrations (number, name, oldest, program) values (999, 'x', 999, '9.0')")
        connection.execute(newer.format(sql.Identifier(schema)))
    for words in (["append", "a-1", "t", "1"], ["read"]):
        run(*words).refused("install a newer milepost")


@pytest.mark.parametrize("name", ["a-b", "", "x" * 64, "pg_catalog", 'a"; drop schema public; --', "a\udcff"])
def test_a_schema_that_cannot_be(run: Run, name: str) -> None:
    for words in (["read"], ["schema", "sql"], ["config"]):
        run(*words, "--schema", name).refused("schema:")


def test_a_variable_that_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_POOL_SIZE", "many")
    for words in (["read"], ["config"], ["append", "a-1", "t", "1"]):
        run(*words).refused("MILEPOST_POOL_SIZE", "whole number")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["apend"], "append"),
        (["read", "--jsn"], "--json"),
        (["--url", "x", "read"], "after the command"),
        (["schema", "migrat"], "migrate"),
        (["schema", "sql", "--after", "-1"], "--after"),
        (["bench", "--seconds", "0"], "--seconds"),
        (["demo", "--seconds", "soon"], "--seconds"),
        (["demo", "--seconds", "inf"], "--seconds"),
        (["bench", "--seconds", "nan"], "--seconds"),
        (["url", "--stop"], "embedded"),
        (["\x1b[31mx\n"], "No such command"),
    ],
)
def test_a_command_that_is_not_there(run: Run, words: list[str], said: str) -> None:
    assert run(*words).refused(said).rstrip("\n").isprintable()


def test_an_error_that_nobody_foresaw(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("so\nit goes")

    monkeypatch.setattr(command, "get_command", broken)
    run("read").refused("unexpected ZeroDivisionError", "MILEPOST_TRACEBACK")
    monkeypatch.setenv("MILEPOST_TRACEBACK", "1")
    assert "Traceback" in run("read").err


@pytest.mark.shard("processes")
def test_closed_streams(shell: Shell, run: Run) -> None:
    run("append", "a-1", "t", "1").done()
    assert shell("milepost read >&-").err == ""
    shell("milepost append <&-").refused("standard input is closed")
    assert shell("milepost apend 2>&-").status == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    "words", ["read", *(pytest.param(each, marks=PROCESSES) for each in ("read --json", "config", "--help"))]
)
def test_a_full_disk(shell: Shell, run: Run, words: str) -> None:
    run("append", "a-1", "t", "1").done()
    shell(f"milepost {words} > /dev/full").refused("No space left")


@pytest.mark.parametrize(
    "words",
    [
        ["read", "--json"],
        *(
            pytest.param(each, marks=PROCESSES)
            for each in (["read"], ["read", "☃", "--after", "☃"], ["--help"], ["doctor"])
        ),
    ],
    ids=" ".join,
)
def test_an_output_that_knows_no_unicode(run: Run, words: list[str]) -> None:
    run("append", "a-1", "t", '"☃"').done()
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, *words], capture_output=True, env=environment, timeout=60, check=False)
    assert b"Traceback" not in done.stderr
    assert b"unexpected" not in done.stderr
    if words == ["read", "--json"]:
        assert done.returncode == 0
        assert json.loads(done.stdout.decode())["data"] == "☃"


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    assert visible("plain ünï ☃") == "plain ünï ☃"
    assert visible("a\nb\x1b[0m\udcff\u202e") == r"a\nb\x1b[0m\udcff\u202e"
