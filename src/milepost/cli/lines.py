"""Messages from a file or a pipe: one JSON object a line."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from milepost.cli.ending import Refusal
from milepost.log.message import NewMessage

MAX_BYTES = 8 * 2**20
"""The longest line."""
CHUNK_BYTES = 2**20
"""How much is read at once, and so, with what is left of a line, how much is held in memory."""


class BadLine(Refusal):
    """A line that is no message."""

    def __init__(self, number: int, problem: str) -> None:
        self.number = number
        super().__init__(f"line {number:,}: {problem}")


@dataclass(frozen=True)
class Line:
    """A message and where it stood."""

    number: int
    stream: str
    message: NewMessage


class _Fields(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    type: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    properties: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    id: str | None = None
    # What `milepost read --json` adds; a log gives its own.
    position: Any = None
    version: Any = None
    time: Any = None


_DECODER = msgspec.json.Decoder(_Fields)


class Lines:
    """Reads messages as they arrive."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.bytes_read = 0

    def batches(self, size: int) -> Iterator[list[Line]]:
        """At most `size` lines at once, and never more than are there: a slow source delays nothing.

        Raises `BadLine` after everything before it was given out.
        """
        batch: list[Line] = []
        for arrived in self._arrivals():
            for number, text in arrived:
                try:
                    line = parse_line(number, text)
                except BadLine:
                    if batch:
                        yield batch
                    raise
                if line is not None:
                    batch.append(line)
                if len(batch) >= size:
                    yield batch
                    batch = []
            if batch:
                yield batch
                batch = []

    def _arrivals(self) -> Iterator[list[tuple[int, bytes]]]:
        """The complete lines of each piece that arrives, with their numbers."""
        number, rest = 0, b""
        while chunk := self._chunk():
            rest += chunk
            if b"\n" in chunk:
                *complete, rest = rest.split(b"\n")
                yield list(enumerate(complete, number + 1))
                number += len(complete)
            if len(rest) > MAX_BYTES:
                break
        yield [(number + 1, rest)]

    def _chunk(self) -> bytes:
        try:
            chunk: bytes = self._source.read1(CHUNK_BYTES)  # type: ignore[attr-defined]
        except OSError as error:
            raise Refusal(f"standard input cannot be read: {error.strerror}") from error
        self.bytes_read += len(chunk)
        return chunk


def parse_line(number: int, text: bytes) -> Line | None:
    """The message of a line; None for a line without text."""
    if len(text) > MAX_BYTES:
        raise BadLine(number, f"it is longer than {MAX_BYTES // 2**20} MiB")
    if number == 1:
        text = text.removeprefix(b"\xef\xbb\xbf")
    if not text.strip():
        return None
    try:
        text.decode()
        fields = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise BadLine(number, problem_of(error)) from error
    message = NewMessage(
        fields.type,
        checked(number, fields.data),
        properties=fields.properties,
        metadata=fields.metadata,
        id=fields.id,
    )
    return Line(number, fields.stream, message)


def checked(number: int, data: msgspec.Raw) -> msgspec.Raw:
    """The payload as it was written, so that no digit is lost; refused where a reader could not decode it."""
    try:
        msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise BadLine(number, f"data: {problem_of(error)}") from error
    return data


def problem_of(error: Exception) -> str:
    """What is wrong with a JSON text, in a few words."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 (byte {error.start + 1})"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error)
