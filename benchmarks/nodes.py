"""Servers to measure: `milepost serve`, each a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.logs import Log

PATIENCE = 30
"""Seconds for one to end after a signal."""


@dataclass(frozen=True)
class Node:
    """A server that runs."""

    address: str
    process: subprocess.Popen[str]

    @property
    def consume(self) -> str:
        """Where consumers of the subscription `bench` connect."""
        return f"{self.address.replace('http', 'ws', 1)}/v1/subscriptions/default/bench/consume"


@contextmanager
def nodes(log: Log, count: int = 1) -> Iterator[list[Node]]:
    """So many servers on a log; whatever still runs at the end is ended."""
    with ExitStack() as stack:
        yield [stack.enter_context(_node(log)) for _ in range(count)]


@contextmanager
def _node(log: Log) -> Iterator[Node]:
    command = [
        sys.executable,
        "-m",
        "milepost.cli",
        "serve",
        "--port",
        "0",
        "--url",
        log.url,
        "--schema",
        log.schema,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        try:
            said = process.stdout.readline() if process.stdout is not None else ""
            if not said.startswith("serving at "):
                raise RuntimeError(f"a server did not start: {said!r}")
            yield Node(said.removeprefix("serving at ").strip(), process)
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
