"""`milepost demo`: it explains itself, counts, and skips nothing."""

import os
import pty
import re
import signal
import subprocess
from pathlib import Path

from cli.program import COMMAND, Outcome, Start


def test_lines_where_there_is_no_terminal(environment: None, folder: Path, start: Start) -> None:
    first = start("demo", "--seconds", "4.5", cwd=folder)
    assert f"starting PostgreSQL in {folder / '.milepost' / 'demo'}" in first.line()
    assert "skip nothing" in first.line()
    second = start("demo", "--seconds", "1", cwd=folder).end()
    second.refused("another demo")
    outcome = first.end()
    assert (outcome.status, outcome.err) == (0, "")
    check_summary(outcome)
    assert "wait for position" in outcome.out
    assert re.search(r"the horizon waits at position \d+ for pid \d+ \(slow checkout\)", outcome.out)
    read = start(
        "read", "--json", "--url", "embedded:.milepost/demo", "--schema", "milepost_demo", cwd=folder
    ).end()
    assert len(read.lines) == appended(outcome)
    assert not (folder / ".milepost" / "demo" / "postmaster.pid").exists()


def test_a_screen_until_control_c(environment: None, folder: Path) -> None:
    terminal, inner = pty.openpty()
    os.set_blocking(terminal, False)
    program = subprocess.Popen([*COMMAND, "demo"], cwd=folder, stdout=inner, stderr=subprocess.PIPE)
    os.close(inner)
    shown = b""
    try:
        while shown.count(b"nothing is held back") < 5 or b"order.placed" not in shown:
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
    assert "milepost demo" in text
    check_summary(Outcome(0, text.replace("\r\n", "\n"), ""))


def available(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except (BlockingIOError, OSError):
        return b""


def appended(outcome: Outcome) -> int:
    found = re.search(r"^([\d,]+) messages in \d+ s", outcome.out, re.MULTILINE)
    assert found is not None, outcome
    return int(found[1].replace(",", ""))


def check_summary(outcome: Outcome) -> None:
    for name in ("everything", "orders", "payments"):
        found = re.search(rf"^  {name} +saw ([\d,]+) of \1, in order, none skipped$", outcome.out, re.MULTILINE)
        assert found is not None, outcome
    assert appended(outcome) > 0
