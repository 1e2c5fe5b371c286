"""Worker processes of a test, and what they did."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.faults.book import Book
from milepost import Milepost
from patience import last_lines, looked_at, within
from support import qualified

PROGRAM = Path(__file__).with_name("program.py")
TESTS = Path(__file__).parents[2]

Worker = subprocess.Popen[bytes]


class Crew:
    """Runs the same subscriptions in as many processes as a test starts.

    `subscriptions` has the options of each kind of the program's that is to run.
    """

    def __init__(self, url: str, schema: str, folder: Path, subscriptions: dict[str, dict[str, Any]]) -> None:
        self.book = Book(folder / "book")
        self._folder = folder
        self._words = [url, schema, str(folder / "book"), json.dumps(subscriptions)]
        self.workers: list[Worker] = []

    def start(self) -> Worker:
        """One more process; what it logs is in a file of its own."""
        with (self._folder / f"worker-{len(self.workers)}").open("wb") as file:
            worker = subprocess.Popen(
                [sys.executable, str(PROGRAM), *self._words],
                stderr=file,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
            )
        self.workers.append(worker)
        return worker

    @property
    def alive(self) -> list[Worker]:
        """The processes that have not ended."""
        return [worker for worker in self.workers if worker.poll() is None]

    def said(self, worker: Worker) -> str:
        """What a process logged."""
        return (self._folder / f"worker-{self.workers.index(worker)}").read_text()

    def handled_by(self, worker: Worker) -> int:
        """How many calls ended well in a process."""
        return sum(line.event == "ended" and line.pid == worker.pid for line in self.book.lines())

    async def until_handled(self, count: int, seconds: float = 60) -> None:
        """Waits until so many messages were handled at least once."""
        async with within(seconds, lambda: f"{self}, wanted {count}"):
            while self.book.count() < count:
                await asyncio.sleep(0.05)

    def __repr__(self) -> str:
        """What was handled, and how each process stands: for tests that wait in vain."""
        states = [
            f"--- {worker.pid}, status {worker.poll()}:\n{last_lines(self.said(worker))}"
            for worker in self.workers
        ]
        return "\n".join([f"{self.book.count()} messages handled: {self.book}", *states, "---"])

    async def stop(self, worker: Worker) -> int:
        """Asks a process to end, and waits for that."""
        worker.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(worker.wait, 30)


@contextmanager
def crew(url: str, schema: str, folder: Path, **subscriptions: dict[str, Any]) -> Iterator[Crew]:
    """A crew whose processes end with the block."""
    found = Crew(url, schema, folder, subscriptions)
    try:
        yield found
    finally:
        for worker in found.workers:
            worker.kill()
            worker.wait()


async def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Waits until a condition holds."""
    async with within(seconds, lambda: looked_at(holds)):
        while not holds():
            await asyncio.sleep(0.05)


async def owners(mp: Milepost) -> dict[int, int]:
    """How many lanes each process has, by its number; those of nobody under 0."""
    statement = qualified("select owner, count(*) from {}.lanes group by owner", mp)
    rows = await mp.log.database.execute(statement, {})
    return {int(owner.rsplit("-", 2)[1]) if owner else 0: lanes for owner, lanes in rows}


async def until_owners(
    mp: Milepost, hold: Callable[[dict[int, int]], bool], seconds: float = 30
) -> dict[int, int]:
    """Waits until the lanes are shared out in a certain way."""
    found: dict[int, int] = {}
    async with within(seconds, lambda: f"lanes of {found}"):
        while not hold(found := await owners(mp)):
            await asyncio.sleep(0.05)
    return found
