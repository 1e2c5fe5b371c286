"""Brokers to compare with, from Debian: each on a free port of this machine, with its data in a folder."""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

PATIENCE = 10.0
"""Seconds for one to answer."""


@contextmanager
def nats() -> Iterator[str]:
    """NATS with JetStream; its streams are files."""
    with _folder() as folder, _running(["nats-server", "-a", "127.0.0.1", "-js", "-sd", folder], "-p") as port:
        yield f"nats://127.0.0.1:{port}"


@contextmanager
def redis() -> Iterator[str]:
    """Redis that appends what it is told to a file, and syncs it every second, as is its default."""
    options = ["--bind", "127.0.0.1", "--appendonly", "yes", "--save", ""]
    with _folder() as folder, _running(["redis-server", *options, "--dir", folder], "--port") as port:
        yield f"redis://127.0.0.1:{port}"


@contextmanager
def _folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="milepost-bench-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(command: Sequence[str], port_option: str) -> Iterator[int]:
    program = shutil.which(command[0], path="/usr/bin:/usr/sbin:/usr/local/bin")
    if program is None:
        raise RuntimeError(f"{command[0]} is not installed: apt-get install {Path(command[0]).name}")
    port = _free_port()
    with subprocess.Popen(
        [program, *command[1:], port_option, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait_for(port)
            yield port
        finally:
            process.terminate()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_for(port: int) -> None:
    until = monotonic() + PATIENCE
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            if monotonic() > until:
                raise
            sleep(0.05)
