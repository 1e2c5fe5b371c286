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

from cli.program import Run, Shell

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
        plain = not re.search(r"[|<>]", command)
        outcome = run(*shlex.split(command)[1:]) if plain else shell(f"exec 2>&1; {command}")
        assert outcome.status == 0, (command, outcome)
        shown = outcome.out if expected else ""
        assert re.match(re.escape(expected).replace("…", ".*?"), shown), (command, expected, outcome.out)
