"""Every console session in the guide runs as it is printed."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cli.program import Outcome, Run, Shell

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "command.md"
SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*<<'END'\n(?:(?!END$).*\n)*END|.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


@pytest.fixture
def shop(database_url: str) -> Iterator[str]:
    """An empty database, as the guide has it."""
    name = f"guide_{uuid4().hex[:12]}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        yield make_conninfo(database_url, dbname=name)
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def here(run: Run, line: str) -> Outcome | None:
    """Run a line in this process, with pipes and files; None where only a shell understands it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    files: dict[str, str] = {}
    for word in lexer:
        if word in ("<", ">"):
            files[word] = str(lexer.get_token())
        elif word == "|":
            commands.append([])
        elif set(word) <= set("|<>"):
            return None
        else:
            commands[-1].append(word)
    if any(command[0] != "milepost" for command in commands):
        return None
    piped = Path(files["<"]).read_bytes() if "<" in files else b""
    for command in commands:
        outcome = run(*command[1:], stdin=piped)
        piped = outcome.out.encode()
    if ">" in files:
        Path(files[">"]).write_bytes(piped)
        return Outcome(outcome.status, "", outcome.err)
    return outcome


@pytest.mark.timeout(600)
def test_the_sessions_of_the_guide(
    run: Run, shell: Shell, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEPOST_URL", shop)
    monkeypatch.delenv("MILEPOST_SCHEMA")
    session = "".join(SESSION.findall(GUIDE.read_text()))
    commands = COMMAND.findall(session)
    assert len(commands) == len(re.findall(r"^\$ ", session, re.MULTILINE)) > 15
    for command, expected in commands:
        outcome = here(run, command) or shell(f"exec 2>&1; {command}")
        assert outcome.status == 0, (command, outcome)
        shown = outcome.out if expected else ""
        assert re.match(re.escape(expected).replace("…", ".*?"), shown), (command, expected, outcome.out)
