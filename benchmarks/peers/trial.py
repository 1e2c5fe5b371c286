"""What each peer is asked to do, and how it answers: `python -m benchmarks.peers.NAME URL drain COUNT`.

A peer drains a backlog, or hands over what another process writes meanwhile (`live COUNT PER_SECOND`). It prints
one JSON object, and fails unless every message reached its handler. The database belongs to this trial alone.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.metadata import version
from time import monotonic, sleep

SETTLING = 2.0
"""Seconds for the worker to start and fall asleep before the first live message."""

STREAMS = 5_000
"""The messages go to so many in turn, where a peer has streams."""

Write = Callable[[int], int]
"""Writes the message with a number, and returns what the handler will know it by."""


class Arrivals:
    """When each message reached the handler, by what it is known by."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self.times: dict[int, float] = {}
        self.complete = threading.Event()
        self.on_complete: Callable[[], None] = lambda: None
        """Called in the handler of the last one."""

    def note(self, identity: int) -> None:
        """A message is with its handler; one that comes again is not counted."""
        self.times.setdefault(identity, monotonic())
        if len(self.times) == self._expected and not self.complete.is_set():
            self.complete.set()
            self.on_complete()


class Peer(ABC):
    """One library, as its documentation says that it is fast."""

    package: str
    """Its name on PyPI."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def prepare(self) -> None:
        """Makes its tables."""

    @abstractmethod
    def fill(self, count: int) -> None:
        """Writes a backlog."""

    @abstractmethod
    def work(self, arrivals: Arrivals) -> None:
        """Notes each message in a handler, and returns once the arrivals are complete."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Write]:
        """Somebody who writes one message a transaction, on a connection that stays open."""

    def drained(self, count: int) -> float:
        """Messages a second, from the start of the worker to the last message."""
        self.prepare()
        self.fill(count)
        arrivals = Arrivals(count)
        start = monotonic()
        self.work(arrivals)
        _check(arrivals, count)
        return count / (max(arrivals.times.values()) - start)


def run(peer: type[Peer]) -> None:
    """Does what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("task", choices=["drain", "live", "write"])
    parser.add_argument("count", type=int)
    parser.add_argument("per_second", type=float, nargs="?", default=200.0)
    asked = parser.parse_args()
    at_work = peer(asked.url)
    if asked.task == "write":
        answer: dict[str, object] = {"written": list(_written(at_work, asked.count, asked.per_second))}
    elif asked.task == "live":
        answer = {"version": version(peer.package), "latencies": _live(at_work, asked.count, asked.per_second)}
    else:
        answer = {"version": version(peer.package), "rate": at_work.drained(asked.count)}
    print(json.dumps(answer))


def _live(peer: Peer, count: int, per_second: float) -> list[float]:
    """Milliseconds from the return of each write to its handler; 0 where the handler was faster."""
    peer.prepare()
    arrivals = Arrivals(count)
    module = sys.modules[type(peer).__module__].__spec__
    command = [sys.executable, "-m", module.name if module else "", peer.url, "write", str(count), str(per_second)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        written: list[str] = []
        waiting = threading.Thread(target=_wait_for, args=[writer, written])
        waiting.start()
        peer.work(arrivals)
        waiting.join()
    _check(arrivals, count)
    returned: list[tuple[int, float]] = json.loads(written[0])["written"]
    return [max(0.0, arrivals.times[identity] - moment) * 1000 for identity, moment in returned]


def _wait_for(writer: subprocess.Popen[str], written: list[str]) -> None:
    """Notes what a writer printed. Without one that works, a worker would wait for its messages for ever."""
    written.append(writer.communicate()[0])
    if writer.returncode:
        print("the process that writes failed", file=sys.stderr)
        os._exit(1)


def _written(peer: Peer, count: int, per_second: float) -> Iterator[tuple[int, float]]:
    with peer.writing() as write:
        start = monotonic() + SETTLING
        for number in range(count):
            sleep(max(0.0, start + number / per_second - monotonic()))
            identity = write(number)
            yield identity, monotonic()


def _check(arrivals: Arrivals, count: int) -> None:
    if len(arrivals.times) != count:
        raise RuntimeError(f"{len(arrivals.times):,} messages were handled instead of {count:,}")
