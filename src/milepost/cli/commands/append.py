"""`milepost append`: one message, or many from standard input, in batches."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO

import msgspec
import typer

from milepost.app import Milepost
from milepost.cli.exit_status import CommandError, describe_error, is_refusal, print_note
from milepost.cli.options import Json, Schema, Url, make_milepost, standard_input
from milepost.cli.output import ProgressBar, console, print_json
from milepost.cli.signals import delayed_interrupt
from milepost.errors import Unavailable
from milepost.log.message import ANY, NO_STREAM, STREAM_EXISTS, Appended, NewMessage, Property

MAX_LINE_BYTES = 8 * 2**20
"""The longest line."""
CHUNK_BYTES = 2**20
"""Bytes that are read at once. With the rest of a line, that is what is held in memory."""


class BadLine(CommandError):
    """A line that is no message."""

    def __init__(self, number: int, problem: str) -> None:
        self.number = number
        super().__init__(f"line {number:,}: {problem}")


@dataclass(frozen=True)
class InputLine:
    """A message and the number of its line."""

    number: int
    stream: str
    message: NewMessage


class _LineFields(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a line."""

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


_DECODER = msgspec.json.Decoder(_LineFields)


class LineReader:
    """A reader of messages from lines of JSON, as they arrive."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.bytes_read = 0

    def batches(self, size: int) -> Iterator[list[InputLine]]:
        """At most `size` lines at once, and never more than are there: a slow source delays nothing.

        Raises `BadLine` after everything before it was given out.
        """
        batch: list[InputLine] = []
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
            if len(rest) > MAX_LINE_BYTES:
                break
        yield [(number + 1, rest)]

    def _chunk(self) -> bytes:
        try:
            chunk: bytes = self._source.read1(CHUNK_BYTES)  # type: ignore[attr-defined]
        except OSError as error:
            raise CommandError(f"standard input cannot be read: {error.strerror}") from error
        self.bytes_read += len(chunk)
        return chunk


def parse_line(number: int, text: bytes) -> InputLine | None:
    """Return the message of a line; None for a line without text."""
    if len(text) > MAX_LINE_BYTES:
        raise BadLine(number, f"it is longer than {MAX_LINE_BYTES // 2**20} MiB")
    if number == 1:
        text = text.removeprefix(b"\xef\xbb\xbf")
    if not text.strip():
        return None
    try:
        text.decode()
        fields = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise BadLine(number, json_problem(error)) from error
    message = NewMessage(
        fields.type,
        check_payload(number, fields.data),
        properties=fields.properties,
        metadata=fields.metadata,
        id=fields.id,
    )
    return InputLine(number, fields.stream, message)


def check_payload(number: int, data: msgspec.Raw) -> msgspec.Raw:
    """Return the payload as it was written, so that no digit is lost; refuse what a reader could not decode."""
    try:
        msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise BadLine(number, f"data: {json_problem(error)}") from error
    return data


def json_problem(error: Exception) -> str:
    """Return in a few words what is wrong with a JSON text."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 (byte {error.start + 1})"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error)


@dataclass
class AppendTally:
    """The counts of lines that were appended so far."""

    line: int = 0
    appended: int = 0
    duplicates: int = 0
    position: int = 0
    under_way: Sequence[InputLine] = ()

    def add(self, lines: Sequence[InputLine], results: dict[str, Appended]) -> None:
        """Count lines that are in the log now."""
        known = sum(results[line.stream].duplicate for line in lines)
        self.duplicates += known
        self.appended += len(lines) - known
        self.line = lines[-1].number
        self.position = max(self.position, *(result.position for result in results.values()))

    def __str__(self) -> str:
        already = f", {self.duplicates:,} were there already" if self.duplicates else ""
        return f"appended {self.appended:,}{already}"


def append_lines(mp: Milepost, size: int, as_json: bool) -> None:
    """Append the lines of standard input, `size` at once, and print the result."""
    source = standard_input()
    if source.isatty():
        print_note(
            "type one JSON message a line; Ctrl-D ends, Ctrl-C stops (milepost append --help shows an example)"
        )
    tally = AppendTally()
    lines = LineReader(source)
    try:
        with mp.sync, ProgressBar("appending", _input_size(source)) as progress:
            for batch in lines.batches(size):
                tally.under_way = batch
                with delayed_interrupt():
                    _append_batch(mp, batch, tally)
                    tally.under_way = []
                progress.advance_to(lines.bytes_read, f"{tally.appended:,} messages")
    except BadLine as problem:
        raise CommandError(
            f"{tally}; {problem}; what stands before that line is in the log: "
            f"mend it and go on with `tail -n +{problem.number}`"
        ) from problem
    except KeyboardInterrupt:
        if tally.line or tally.under_way:
            print_note(f"stopped: {tally}, up to line {tally.line:,}{_uncertain_lines(tally.under_way)}")
        raise
    if as_json:
        print_json({"appended": tally.appended, "duplicates": tally.duplicates, "position": tally.position})
    else:
        console().print(str(tally))


def _append_batch(mp: Milepost, batch: Sequence[InputLine], tally: AppendTally) -> None:
    streams: dict[str, list[NewMessage]] = {}
    for line in batch:
        streams.setdefault(line.stream, []).append(line.message)
    try:
        tally.add(batch, mp.sync.append_many(streams))
    except Unavailable as error:
        raise _unknown_outcome(batch, tally, error) from error
    except Exception as error:
        if not is_refusal(error):
            raise
        # One of them cannot be appended, and all of them were not: which one, each alone will show.
        for line in batch:
            _append_line(mp, line, tally)


def _append_line(mp: Milepost, line: InputLine, tally: AppendTally) -> None:
    try:
        tally.add([line], {line.stream: mp.sync.append(line.stream, line.message)})
    except Unavailable as error:
        raise _unknown_outcome([line], tally, error) from error
    except Exception as error:
        if not is_refusal(error):
            raise
        raise BadLine(line.number, describe_error(error)) from error


def _unknown_outcome(lines: Sequence[InputLine], tally: AppendTally, error: Unavailable) -> CommandError:
    return CommandError(
        f"{tally}{_uncertain_lines(lines)}: {describe_error(error)} "
        f"With ids in them, go on with `tail -n +{lines[0].number}`; without, look first"
    )


def _uncertain_lines(lines: Sequence[InputLine]) -> str:
    if not lines:
        return ""
    return f"; lines {lines[0].number:,} to {lines[-1].number:,} may or may not be in the log"


def _input_size(source: BinaryIO) -> int | None:
    """Return how many bytes there are to read; None if that cannot be known."""
    try:
        found = os.fstat(source.fileno())
    except OSError:
        return None
    return found.st_size or None if stat.S_ISREG(found.st_mode) else None


BATCH_LINES = 500
"""Lines that are appended at once, unless `--batch` says otherwise."""

_EXPECTED_VERSIONS = {"any": int(ANY), "no-stream": int(NO_STREAM), "stream-exists": int(STREAM_EXISTS)}
# As JSON has them: 01234 is no integer, so that a postal code keeps its zero.
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)


def append(
    stream: Annotated[
        str | None, typer.Argument(metavar="STREAM", help="The stream, named category-id.", show_default=False)
    ] = None,
    type: Annotated[
        str | None, typer.Argument(metavar="TYPE", help="The type, such as order.placed.", show_default=False)
    ] = None,
    json: Annotated[
        str | None,
        typer.Argument(metavar="JSON", help="The payload; - reads it from standard input.", show_default=False),
    ] = None,
    property: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A value for filters. Integers, true and false are taken as such, all else is a string; "
            "'zip=\"12345\"' is a string too. Repeat it for more.",
            show_default=False,
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TEXT",
            help="What describes the message, such as correlation_id. Repeat it for more.",
            show_default=False,
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(metavar="UUID", help="With it the append can be repeated safely.", show_default=False),
    ] = None,
    expected: Annotated[
        str,
        typer.Option(
            metavar="VERSION",
            help="The version that the stream must have, or any, no-stream, stream-exists.",
        ),
    ] = "any",
    batch: Annotated[
        int,
        typer.Option(
            min=1,
            max=10_000,
            help="Lines of standard input that are appended at once. 1 keeps the order across streams too.",
        ),
    ] = BATCH_LINES,
    as_json: Json = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Appends one message, or one JSON message a line from standard input.

    **One message:** `milepost append order-42 order.placed '{"amount": 120}' --property region=EU`

    **Many:** `milepost append < messages.jsonl`

    A line is `{"stream": …, "type": …, "data": …, "properties": …, "metadata": …, "id": …}`; the last four may
    be missing. What `milepost read --json` prints can be appended as it is. After a line that cannot be
    appended, everything before it is in the log and its number is named, so that one can go on from there.
    With ids the same input may be given again: what is there already is not written twice.
    """
    if stream is None:
        if property or metadata or id or expected != "any":
            raise CommandError(
                "--property, --metadata, --id and --expected go with STREAM TYPE JSON; lines have their own"
            )
        append_lines(make_milepost(url, schema), batch, as_json)
        return
    if type is None or json is None:
        raise CommandError(
            "STREAM, TYPE and JSON belong together; give none of them to read lines from standard input"
        )
    message = NewMessage(
        type,
        read_payload(json),
        properties={name: parse_property(name, text) for name, text in parse_pairs("--property", property or ())},
        metadata=dict(parse_pairs("--metadata", metadata or ())),
        id=id,
    )
    with make_milepost(url, schema).sync as log:
        _print_appended(log.append(stream, message, expected=parse_version(expected)), as_json)


def read_payload(text: str) -> msgspec.Raw:
    """Return the payload as it was written; refuse one that is no JSON."""
    try:
        written = standard_input().read(MAX_LINE_BYTES + 1) if text == "-" else text.encode()
        msgspec.json.decode(written)
    except UnicodeEncodeError:
        raise CommandError("JSON: it is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise CommandError(
            f"JSON: {json_problem(error)}: quote it for the shell, such as '{{\"amount\": 120}}'"
        ) from error
    return msgspec.Raw(written)


def parse_pairs(option: str, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a repeated option."""
    seen: set[str] = set()
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CommandError(f"{option} {text!r}: NAME=VALUE is wanted")
        if name in seen:
            raise CommandError(f"{option} {name!r} is given twice")
        seen.add(name)
        yield name, value


def parse_property(name: str, text: str) -> Property:
    """The value that a word means: an integer, a boolean, else a string; in JSON's quotes always a string."""
    if _INTEGER.fullmatch(text):
        return _parse_integer(name, text)
    if text in ("true", "false"):
        return text == "true"
    if not text.startswith('"'):
        return text
    try:
        return msgspec.json.decode(text, type=str)
    except ValueError as error:
        raise CommandError(
            f"--property {name!r}: after a quote a JSON string is wanted: {json_problem(error)}"
        ) from error


def _parse_integer(name: str, text: str) -> int:
    # Longer ones are too large whatever they are, and Python refuses to read very long ones at all.
    if len(text) > 20:
        raise CommandError(f"--property {name!r}: {text[:20]}… does not fit into 64 bits")
    return int(text)


def parse_version(text: str) -> int:
    """Return the expected version that a word means."""
    if text in _EXPECTED_VERSIONS:
        return _EXPECTED_VERSIONS[text]
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise CommandError(f"--expected {text!r}: a version, any, no-stream or stream-exists is wanted")
    return int(text)


def _print_appended(result: Appended, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    what = "was there already" if result.duplicate else "appended"
    console().print(f"{what}: version {result.version} of its stream, position {result.position}")
