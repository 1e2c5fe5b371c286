"""Processes with consumers, and what they said."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.consuming.taking import PATIENCE
from patience import within

PROGRAM = Path(__file__).with_name("program.py")


class Process:
    """One of them."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, str(PROGRAM), *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.said: list[str] = []
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            self.said.append(line.strip())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def got(self) -> list[int]:
        """The positions of what it got, in order."""
        return [int(line.split()[1]) for line in list(self.said) if line.startswith("got")]

    @property
    def attempts(self) -> dict[int, int]:
        """Of each position, which attempt was the last."""
        words = [line.split() for line in list(self.said) if line.startswith("got")]
        return {int(position): int(attempt) for _, position, attempt in words}

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    async def until(self, *words: str) -> None:
        """Waits until it said these."""
        async with within(PATIENCE, lambda: f"{self.said}, wanted {words}"):
            while not set(words) <= set(self.said):
                assert not self.is_over, self.said
                await asyncio.sleep(0.01)

    async def until_got(self, count: int) -> list[int]:
        """What it got, once that is so many."""
        async with within(PATIENCE, lambda: f"{self.said}, wanted {count} messages"):
            while len(self.got) < count:
                assert not self.is_over, self.said
                await asyncio.sleep(0.01)
        return self.got

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listening.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    async def terminate(self) -> None:
        assert not self.is_over, "it ended before, with a status of its own"
        self._process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(self._process.wait, PATIENCE) == 0

    async def until_it_ends(self) -> int:
        return await asyncio.to_thread(self._process.wait, PATIENCE)


class Start:
    """Starts processes on the test's schema."""

    def __init__(self, url: str, schema: str) -> None:
        self._place = (url, schema)
        self.started: list[Process] = []

    def __call__(self, how: str = "ack", where: str = "", name: str = "shipping") -> Process:
        self.started.append(Process(*self._place, name, how, where))
        return self.started[-1]

    def got(self) -> set[int]:
        """The positions of all that they got."""
        return {position for process in self.started for position in process.got}


@contextmanager
def processes(url: str, schema: str) -> Iterator[Start]:
    """Kills what is left of them at the end."""
    start = Start(url, schema)
    try:
        yield start
    finally:
        for process in start.started:
            process.kill()
