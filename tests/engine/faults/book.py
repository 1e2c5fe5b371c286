"""A file in which worker processes write down what they do, one line an event, in the order of the events."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost import Message


@dataclass(frozen=True)
class Line:
    """What a worker did: it `began` a message, `ended` it, or `failed` at it."""

    event: str
    stream: str
    version: int
    attempt: int
    pid: int


class Book:
    """Written by many processes at once: a line is one write, which is atomic."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def entry(self, message: Message[Any], attempt: int) -> Iterator[None]:
        """Notes that a message begins, and how it ends."""
        self._write("began", message, attempt)
        try:
            yield
        except BaseException:
            self._write("failed", message, attempt)
            raise
        self._write("ended", message, attempt)

    def _write(self, event: str, message: Message[Any], attempt: int) -> None:
        line = f"{event} {message.stream} {message.version} {attempt} {os.getpid()}\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def lines(self) -> list[Line]:
        """All there is by now."""
        text = self._path.read_text() if self._path.exists() else ""
        return [_parsed(line) for line in text.splitlines()]

    def handled(self) -> dict[str, list[int]]:
        """The versions of each stream in the order in which they were handled."""
        found: dict[str, list[int]] = defaultdict(list)
        for line in self.lines():
            if line.event == "ended":
                found[line.stream].append(line.version)
        return found

    def count(self) -> int:
        """How many messages were handled, each counted once."""
        return sum(len(set(versions)) for versions in self.handled().values())

    def __repr__(self) -> str:
        """How far each stream is, and what is missing before that."""
        far = {stream: max(versions) for stream, versions in sorted(self.handled().items())}
        gaps = {
            stream: missing
            for stream, versions in self.handled().items()
            if (missing := sorted(set(range(1, far[stream])) - set(versions)))
        }
        return f"up to {far}, without {gaps}"


def _parsed(line: str) -> Line:
    event, stream, version, attempt, pid = line.split()
    return Line(event, stream, int(version), int(attempt), int(pid))


def overlaps(lines: Iterable[Line]) -> list[tuple[Line, Line]]:
    """Where a message began while another of its stream ran."""
    found = []
    running: dict[str, Line] = {}
    for line in lines:
        if line.event == "began":
            if line.stream in running:
                found.append((running[line.stream], line))
            running[line.stream] = line
        else:
            running.pop(line.stream, None)
    return found


def first_occurrences(versions: Sequence[int]) -> list[int]:
    """Each version where it came first; after a crash some come again."""
    return list(dict.fromkeys(versions))


def is_in_order(versions: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether each came first after all before it had come."""
    return first_occurrences(versions) == list(wanted)
