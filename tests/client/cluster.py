"""Several nodes of `milepost serve`, and programs with consumers, each a process of its own."""

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers import free_port

PROGRAM = Path(__file__).with_name("program.py")


class Node:
    """One node, at one address, however often it is started."""

    def __init__(self, url: str, schema: str, *options: str) -> None:
        self._options = options
        self._environment = {**os.environ, "MILEPOST_URL": url, "MILEPOST_SCHEMA": schema}
        self._port = free_port()
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> "Node":
        self.launch()
        return self.wait()

    def launch(self) -> None:
        """Starts it, and waits for nothing."""
        command = [sys.executable, "-m", "milepost.cli", "serve", "--port", str(self._port), "--grace", "10"]
        command += self._options
        self._process = subprocess.Popen(
            command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def wait(self) -> "Node":
        """Until it serves."""
        assert self._process is not None
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said.startswith("serving at"), said
        return self

    def end(self, number: int) -> int:
        """Sends a signal and waits; the status."""
        assert self._process is not None
        self._process.send_signal(number)
        status = self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status

    def remove(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.end(signal.SIGKILL)


class Program:
    """A consumer in a process; what it says is in a file."""

    def __init__(self, addresses: list[str], folder: Path) -> None:
        self._said = tempfile.NamedTemporaryFile("w+", dir=folder, delete=False)  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *addresses], stdout=self._said, stderr=subprocess.PIPE
        )

    def said(self, word: str) -> list[tuple[int, ...]]:
        """The numbers that it said after this word."""
        lines = Path(self._said.name).read_text().splitlines()
        return [tuple(map(int, line.split()[1:])) for line in lines if line.startswith(f"{word} ")]

    @property
    def is_ready(self) -> bool:
        return "ready" in Path(self._said.name).read_text()

    def stop(self) -> str:
        """Ends it; what it complained about."""
        self._process.terminate()
        _, complaints = self._process.communicate(timeout=30)
        self._said.close()
        assert self._process.returncode == 0, complaints.decode()
        return complaints.decode()

    def remove(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        self._said.close()


class Cluster:
    """Three nodes and some programs."""

    def __init__(self, url: str, schema: str, folder: Path) -> None:
        self.nodes = [Node(url, schema) for _ in range(3)]
        self._folder = folder
        self.programs: list[Program] = []

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self.nodes]

    def consume(self, count: int) -> None:
        """So many programs, each with another node first."""
        for n in range(count):
            at = n % len(self.nodes)
            addresses = self.addresses[at:] + self.addresses[:at]
            self.programs.append(Program(addresses, self._folder))

    def said(self, word: str) -> Counter[int]:
        """How often each position was said after this word, by all programs."""
        return Counter(numbers[0] for program in self.programs for numbers in program.said(word))


@contextmanager
def cluster(url: str, schema: str, folder: Path) -> Iterator[Cluster]:
    """Three nodes within this block."""
    made = Cluster(url, schema, folder)
    try:
        for node in made.nodes:
            node.launch()
        for node in made.nodes:
            node.wait()
        yield made
    finally:
        for program in made.programs:
            program.remove()
        for node in made.nodes:
            node.remove()
