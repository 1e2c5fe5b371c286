"""A file in which the processes of a deploy write down what their handlers do, in the order of the events."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost import Message


@dataclass(frozen=True)
class Line:
    """What a handler did: it `began` a message, `ended` it, or `failed` at it."""

    event: str
    version: str
    pid: int
    position: int
    stream: str
    key: int
    type: str
    attempt: int
    replay: bool


Key = Callable[[Line], object]


def by_stream(line: Line) -> object:
    """What `ordered_by="stream"` keeps in order."""
    return line.stream


def by_key(line: Line) -> object:
    """What the property `key` keeps in order, and functions of it."""
    return line.key


class Record:
    """Written by many processes at once: a line is one write, which is atomic."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._lines: list[Line] = []

    @contextmanager
    def entry(self, version: str, message: Message[Any], attempt: int, *, replay: bool) -> Iterator[None]:
        """Notes that a message begins, and how it ends."""
        words = (
            version,
            os.getpid(),
            message.position,
            message.stream,
            message.properties["key"],
            message.type,
            attempt,
            int(replay),
        )
        self._write("began", *words)
        try:
            yield
        except BaseException:
            self._write("failed", *words)
            raise
        self._write("ended", *words)

    def _write(self, *words: object) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, f"{' '.join(map(str, words))}\n".encode())
        finally:
            os.close(descriptor)

    def lines(self) -> list[Line]:
        """All there is by now. Who waits for something asks often: only what is new is read."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            self._lines += [_parsed(line) for line in whole.decode().splitlines()]
        return self._lines

    def handled(self, version: str | None = None) -> list[Line]:
        """What was handled, in all versions or one, in order; what came twice is in it twice."""
        return [line for line in self.lines() if line.event == "ended" and version in (None, line.version)]

    def pids(self) -> set[int]:
        """The processes that have handled something."""
        return {line.pid for line in self.handled()}

    def positions(self, version: str | None = None) -> list[int]:
        """The positions of what was handled."""
        return [line.position for line in self.handled(version)]


def _parsed(line: str) -> Line:
    event, version, pid, position, stream, key, type_, attempt, replay = line.split()
    return Line(event, version, int(pid), int(position), stream, int(key), type_, int(attempt), bool(int(replay)))


def repeated(positions: Iterable[int]) -> list[int]:
    """Those that came more than once."""
    return sorted(position for position, count in Counter(positions).items() if count > 1)


def disorders(lines: Sequence[Line], key: Key) -> list[Line]:
    """What came, for the first time, after a later message of its key."""
    highest: dict[object, int] = {}
    seen: set[int] = set()
    found = []
    for line in lines:
        if line.position in seen:
            continue
        seen.add(line.position)
        if line.position < highest.get(key(line), 0):
            found.append(line)
        highest[key(line)] = max(highest.get(key(line), 0), line.position)
    return found


def overlaps(lines: Iterable[Line], key: Key, killed: Collection[int] = ()) -> list[tuple[Line, Line]]:
    """Where a message began while another of its key ran, in a process that was not killed."""
    found = []
    running: dict[object, Line] = {}
    for line in lines:
        before = running.get(key(line))
        if line.event == "began":
            if before is not None and before.pid not in killed:
                found.append((before, line))
            running[key(line)] = line
        elif before is not None and before.pid == line.pid:
            del running[key(line)]
    return found
