"""Processes of several versions of a program, and what they did."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from engine.deploys.record import Record
from engine.deploys.version import Version
from patience import last_lines, until

PROGRAM = Path(__file__).with_name("program.py")
TESTS = Path(__file__).parents[2]


class Process:
    """One process of a version; what it logs is in a file of its own."""

    def __init__(self, words: list[str], path: Path) -> None:
        self._path = path
        with path.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), *words],
                stderr=file,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
            )
        self.pid = self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def said(self) -> str:
        """What it logged."""
        return self._path.read_text()

    async def until_said(self, words: str, seconds: float = 60) -> None:
        """Waits until it has logged this."""
        await until(lambda: words in self.said, seconds, lambda: f"{self.said}\nwanted {words!r}")

    def kill(self) -> None:
        """Ends it at once, as a lost machine does."""
        self._process.kill()
        self._process.wait()

    async def stop(self) -> int:
        """Asks it to end, and waits for that."""
        self._process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self._process.wait, 30)

    async def ended(self) -> int:
        """Waits until it has ended by itself."""
        return await asyncio.to_thread(self._process.wait, 30)


class Deploy:
    """Starts processes of versions, on one schema."""

    def __init__(self, url: str, schema: str, folder: Path) -> None:
        self._url = url
        self._schema = schema
        self.folder = folder
        self.record = Record(folder / "record")
        self.processes: list[Process] = []

    def start(self, version: Version) -> Process:
        """One more process."""
        path = self.folder / f"{version.label}-{len(self.processes)}.log"
        given = msgspec.json.encode(version).decode()
        process = Process([self._url, self._schema, str(self.folder), given], path)
        self.processes.append(process)
        return process

    async def until_handled(self, version: Version, count: int = 1, seconds: float = 60) -> None:
        """Waits until a version has handled so many messages."""
        handled = self.record.handled
        wanted = f"wanted {count} of {version.label}"
        await self.until(lambda: len(handled(version.label)) >= count, seconds, wanted)

    async def until_all(self, positions: set[int], seconds: float = 60) -> None:
        """Waits until all of these were handled at least once."""
        await self.until(lambda: positions <= set(self.record.positions()), seconds, f"wanted {sorted(positions)}")

    async def until(self, holds: Callable[[], bool], seconds: float = 60, wanted: str = "") -> None:
        """Waits until a condition holds; says what was handled and logged if it does not come."""
        await until(holds, seconds, lambda: f"{self._found()}\n{wanted}")

    def _found(self) -> str:
        handled = Counter(line.version for line in self.record.handled())
        logged = [f"--- {process.pid}\n{last_lines(process.said)}" for process in self.processes]
        positions = sorted(set(self.record.positions()))
        return "\n".join([f"{dict(handled)} handled, positions {positions}", *logged, "---"])


@contextmanager
def deploying(url: str, schema: str, folder: Path) -> Iterator[Deploy]:
    """A deploy whose processes end with the block."""
    deploy = Deploy(url, schema, folder)
    try:
        yield deploy
    finally:
        for process in deploy.processes:
            process.kill()
