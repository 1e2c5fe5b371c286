"""`milepost demo`: it explains itself, counts, and skips nothing."""

import os
import pty
import re
import select
import signal
import subprocess
import termios
import urllib.request
from pathlib import Path

import pytest

from cli.program import COMMAND, Outcome, Program, Start

pytestmark = pytest.mark.timeout(400)


def test_lines_where_there_is_no_terminal(environment: None, folder: Path, start: Start) -> None:
    first = start("demo", "--seconds", "600", "--port", "0", cwd=folder)
    assert f"starting PostgreSQL in {folder / '.milepost' / 'demo'}" in first.line()
    assert "skip nothing" in first.line()
    address = first.line().removeprefix("open ").strip()
    with urllib.request.urlopen(f"{address}/v1/subscriptions") as answer:
        assert b"warehouse" in answer.read()
    start("demo", "--seconds", "1", cwd=folder).end().refused("another demo")
    # What one slow checkout is too quick for on a busy machine, the next one shows.
    read_until(
        first,
        r"it commits: ",
        r"all wait for position",
        r"the horizon waits at position \d+ for pid \d+ \(slow checkout\)",
    )
    outcome = first.interrupt()
    assert (outcome.status, outcome.err) == (0, "")
    check_summary(outcome)
    assert re.search(r"a home-made reader skipped [1-9]\d* of these", outcome.out)
    assert not (folder / ".milepost" / "demo" / "postmaster.pid").exists()


def read_until(program: Program, *patterns: str) -> str:
    """What it prints, until all of these are in it."""
    shown = ""
    while not all(re.search(pattern, shown, re.MULTILINE) for pattern in patterns):
        line = program.line()
        assert line, shown
        shown += line
    return shown


@pytest.mark.shard("processes")
def test_a_second_start_goes_on(environment: None, folder: Path, start: Start) -> None:
    before, said_before = sold(start("demo", "--seconds", "600", "--port", "0", cwd=folder))
    after, said_after = sold(start("demo", "--seconds", "600", "--port", "0", cwd=folder))
    assert (before.status, after.status) == (0, 0)
    assert "go on from where" not in said_before
    assert "all go on from where they were" in said_after
    assert payments(after) > payments(before) > 0


def sold(program: Program) -> tuple[Outcome, str]:
    """Ends it when some orders are paid, however long that takes; and what it said until then."""
    shown = read_until(program, r"^ *\d+ s \d{3,} appended")
    return program.interrupt(), shown


@pytest.mark.shard("processes")
@pytest.mark.parametrize(
    ("kind", "often", "once"),
    [("xterm-256color", b"nothing is held back", b"everything"), ("dumb", b" appended", b"open http")],
)
def test_in_a_terminal_until_control_c(
    environment: None, folder: Path, kind: str, often: bytes, once: bytes
) -> None:
    """A screen, down to the couriers in a terminal of the usual size, or lines where a terminal cannot go back."""
    terminal, inner = pty.openpty()
    termios.tcsetwinsize(inner, (24, 80))
    os.set_blocking(terminal, False)
    program = subprocess.Popen(
        [*COMMAND, "demo", "--port", "0"],
        cwd=folder,
        env={**os.environ, "TERM": kind},
        stdout=inner,
        stderr=subprocess.PIPE,
    )
    os.close(inner)
    shown = b""
    try:
        while shown.count(often) < 5 or once not in shown:
            assert program.poll() is None
            shown += available(terminal)
        program.send_signal(signal.SIGINT)
        while program.poll() is None:
            shown += available(terminal)
        shown += available(terminal)
    finally:
        program.kill()
        _, err = program.communicate()
        os.close(terminal)
    text = shown.decode()
    assert (program.returncode, err) == (0, b"")
    check_summary(Outcome(0, text.replace("\r\n", "\n"), ""))


def available(terminal: int) -> bytes:
    """What it has written by now; a moment is waited for it."""
    select.select([terminal], [], [], 0.2)
    try:
        return os.read(terminal, 65536)
    except (BlockingIOError, OSError):
        return b""


def appended(outcome: Outcome) -> int:
    found = re.search(r"^([\d,]+) messages in \d+ s", outcome.out, re.MULTILINE)
    assert found is not None, outcome
    return int(found[1].replace(",", ""))


def payments(outcome: Outcome) -> int:
    found = re.search(r"^  the books have ([\d,]+) payments", outcome.out, re.MULTILINE)
    assert found is not None, outcome
    return int(found[1].replace(",", ""))


def check_summary(outcome: Outcome) -> None:
    assert appended(outcome) > 0
    found = re.search(r"^  the log has   (.+)\n  the books have \1$", outcome.out, re.MULTILINE)
    assert found is not None, outcome
    for name in ("emails", "invoices", "revenue", "shipping", "warehouse"):
        assert re.search(rf"^  {name} ", outcome.out, re.MULTILINE), outcome
