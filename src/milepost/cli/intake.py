"""Appending from standard input: in batches, and never without knowing what is in the log."""

import os
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import BinaryIO

import psycopg

from milepost.app import Milepost
from milepost.cli.ending import Refusal, explain, say
from milepost.cli.lines import BadLine, Line, Lines
from milepost.cli.output import console, write_json
from milepost.cli.progress import ProgressBar
from milepost.errors import MilepostError, Unavailable
from milepost.log.message import Appended, NewMessage


def standard_input() -> BinaryIO:
    """Its bytes; a closed one is refused."""
    if sys.stdin is None:
        raise Refusal("standard input is closed: there is nothing to read")
    return sys.stdin.buffer


@dataclass
class Tally:
    """What has come of the lines so far."""

    line: int = 0
    appended: int = 0
    duplicates: int = 0
    position: int = 0
    under_way: Sequence[Line] = ()

    def add(self, lines: Sequence[Line], results: dict[str, Appended]) -> None:
        """Counts lines that are in the log now."""
        known = sum(results[line.stream].duplicate for line in lines)
        self.duplicates += known
        self.appended += len(lines) - known
        self.line = lines[-1].number
        self.position = max(self.position, *(result.position for result in results.values()))

    def __str__(self) -> str:
        already = f", {self.duplicates:,} were there already" if self.duplicates else ""
        return f"appended {self.appended:,}{already}"


def append_lines(mp: Milepost, size: int, as_json: bool) -> None:
    """Appends what standard input has, `size` lines at once, and says what came of it."""
    source = standard_input()
    if source.isatty():
        say("type one JSON message a line; Ctrl-D ends, Ctrl-C stops (milepost append --help shows an example)")
    tally = Tally()
    lines = Lines(source)
    try:
        with mp.sync, ProgressBar("appending", _size(source)) as progress:
            for batch in lines.batches(size):
                tally.under_way = batch
                with finishing():
                    _append_batch(mp, batch, tally)
                    tally.under_way = []
                progress.advance_to(lines.bytes_read, f"{tally.appended:,} messages")
    except BadLine as problem:
        raise Refusal(
            f"{tally}; {problem}; what stands before that line is in the log: "
            f"mend it and go on with `tail -n +{problem.number}`"
        ) from problem
    except KeyboardInterrupt:
        if tally.line or tally.under_way:
            say(f"stopped: {tally}, up to line {tally.line:,}{_unsure(tally.under_way)}")
        raise
    if as_json:
        write_json({"appended": tally.appended, "duplicates": tally.duplicates, "position": tally.position})
    else:
        console().print(str(tally))


def _append_batch(mp: Milepost, batch: Sequence[Line], tally: Tally) -> None:
    streams: dict[str, list[NewMessage]] = {}
    for line in batch:
        streams.setdefault(line.stream, []).append(line.message)
    try:
        tally.add(batch, mp.sync.append_many(streams))
    except Unavailable as error:
        raise _unknown_outcome(batch, tally, error) from error
    except (MilepostError, psycopg.Error):
        # One of them cannot be appended, and all of them were not: which one, each alone will show.
        for line in batch:
            _append_line(mp, line, tally)


def _append_line(mp: Milepost, line: Line, tally: Tally) -> None:
    try:
        tally.add([line], {line.stream: mp.sync.append(line.stream, line.message)})
    except Unavailable as error:
        raise _unknown_outcome([line], tally, error) from error
    except (MilepostError, psycopg.Error) as error:
        raise BadLine(line.number, explain(error)) from error


def _unknown_outcome(lines: Sequence[Line], tally: Tally, error: Unavailable) -> Refusal:
    return Refusal(
        f"{tally}{_unsure(lines)}: {explain(error)} "
        f"With ids in them, go on with `tail -n +{lines[0].number}`; without, look first"
    )


def _unsure(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    return f"; lines {lines[0].number:,} to {lines[-1].number:,} may or may not be in the log"


@contextmanager
def finishing() -> Iterator[None]:
    """Lets what is under way end before Ctrl-C takes effect, so that what was done is known.

    A second Ctrl-C does not wait.
    """
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if caught:
        raise KeyboardInterrupt


def _size(source: BinaryIO) -> int | None:
    """How many bytes there are to read, where that can be known."""
    try:
        found = os.fstat(source.fileno())
    except OSError:
        return None
    return found.st_size or None if stat.S_ISREG(found.st_mode) else None
