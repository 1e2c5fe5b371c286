"""The keeper of a test session's PostgreSQL: starts it, waits until nobody uses it, and removes it.

It is a process of its own, so that the server is stopped however the tests end.
"""

import fcntl
import os
import shutil
import sys
from pathlib import Path

import psycopg
from psycopg import sql

from milepost import embedded

ADDRESS = "address"
"""A file in the server's folder; it is there while the server can be used."""
USERS = "users"
"""A file in the server's folder. Whoever uses the server holds a shared lock on it."""

_OFF = ("fsync", "synchronous_commit", "full_page_writes")
"""What a server does only to survive a crash of the machine."""


def keep(folder: Path) -> None:
    """Keeps a server in this folder while it is used."""
    url = f"embedded:{folder / 'data'}"
    address = embedded.start(url)
    _hurry(address)
    (folder / ADDRESS).write_text(address)
    _close_output()
    with (folder / USERS).open("w") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        (folder / ADDRESS).unlink()
        embedded.stop(url)
        shutil.rmtree(folder, ignore_errors=True)


def _hurry(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        for name in _OFF:
            connection.execute(sql.SQL("alter system set {} = off").format(sql.Identifier(name)))
        connection.execute("select pg_reload_conf()")


def _close_output() -> None:
    """Whoever started this waits for the end of what it prints."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nothing, stream.fileno())


if __name__ == "__main__" and not os.fork():
    # The process that was started ends at once; nobody has to wait for this one, or to be told of its end.
    keep(Path(sys.argv[1]))
