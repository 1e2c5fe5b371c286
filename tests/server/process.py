"""A server in a process of its own, with whatever limits a test wants."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import psutil

SERVE = """
import asyncio, json, sys
from milepost import Milepost
from milepost.server import Limits, create_app
from milepost.server import process

async def main(options):
    listener = process.listen("127.0.0.1", 0)
    async with Milepost() as mp:
        print(listener.getsockname()[1], flush=True)
        limits = Limits(**options.pop("limits"))
        grace = options.pop("grace")
        advertise = f"http://127.0.0.1:{listener.getsockname()[1]}"
        await process.serve(create_app(mp, limits=limits, advertise=advertise, **options), listener, grace=grace)

asyncio.run(main(json.loads(sys.argv[1])))
"""


class ServerProcess:
    """Serves on a port of its own until it is ended."""

    def __init__(
        self, url: str, schema: str, *, access: str = "local", grace: float = 10, **limits: float
    ) -> None:
        options = {"access": access, "grace": grace, "limits": limits}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, json.dumps(options)],
            env={**os.environ, "MILEPOST_URL": url, "MILEPOST_SCHEMA": schema},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said, self.process.communicate()[1].decode()
        self.port = int(said)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx.AsyncClient:
        """A client of it."""
        return httpx.AsyncClient(base_url=self.address, timeout=60, **options)

    def connections(self) -> int:
        """How many it has."""
        found = psutil.Process(self.process.pid).net_connections("tcp")
        return sum(each.status == psutil.CONN_ESTABLISHED and each.laddr.port == self.port for each in found)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Sends a signal and waits for the end: the status, and what it complained about."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err.decode()

    def kill(self) -> None:
        """Ends it in whatever state it is."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


StartServer = Callable[..., ServerProcess]
"""Starts one more, with these options."""
