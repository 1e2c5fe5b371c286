"""`milepost append`: one message, or many from standard input."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import typer

from milepost.cli.ending import Refusal
from milepost.cli.intake import append_lines, standard_input
from milepost.cli.lines import MAX_BYTES, problem_of
from milepost.cli.options import Json, Schema, Url, milepost
from milepost.cli.output import console, write_json
from milepost.log.message import ANY, NO_STREAM, STREAM_EXISTS, Appended, NewMessage, Property

BATCH = 500
"""Lines that are appended at once, unless `--batch` says otherwise."""

_EXPECTED = {"any": int(ANY), "no-stream": int(NO_STREAM), "stream-exists": int(STREAM_EXISTS)}
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
    ] = BATCH,
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
            raise Refusal(
                "--property, --metadata, --id and --expected go with STREAM TYPE JSON; lines have their own"
            )
        append_lines(milepost(url, schema), batch, as_json)
        return
    if type is None or json is None:
        raise Refusal("STREAM, TYPE and JSON belong together; give none of them to read lines from standard input")
    message = NewMessage(
        type,
        payload(json),
        properties={name: typed(name, text) for name, text in pairs("--property", property or ())},
        metadata=dict(pairs("--metadata", metadata or ())),
        id=id,
    )
    with milepost(url, schema).sync as log:
        _report(log.append(stream, message, expected=version(expected)), as_json)


def payload(text: str) -> msgspec.Raw:
    """The payload as it was written, once it is known to be JSON."""
    try:
        written = standard_input().read(MAX_BYTES + 1) if text == "-" else text.encode()
        msgspec.json.decode(written)
    except UnicodeEncodeError:
        raise Refusal("JSON: it is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise Refusal(
            f"JSON: {problem_of(error)}: quote it for the shell, such as '{{\"amount\": 120}}'"
        ) from error
    return msgspec.Raw(written)


def pairs(option: str, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The names and values of a repeated option."""
    seen: set[str] = set()
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Refusal(f"{option} {text!r}: NAME=VALUE is wanted")
        if name in seen:
            raise Refusal(f"{option} {name!r} is given twice")
        seen.add(name)
        yield name, value


def typed(name: str, text: str) -> Property:
    """The value that a word means: an integer, a boolean, else a string; in JSON's quotes always a string."""
    if _INTEGER.fullmatch(text):
        return _integer(name, text)
    if text in ("true", "false"):
        return text == "true"
    if not text.startswith('"'):
        return text
    try:
        return msgspec.json.decode(text, type=str)
    except ValueError as error:
        raise Refusal(
            f"--property {name!r}: after a quote a JSON string is wanted: {problem_of(error)}"
        ) from error


def _integer(name: str, text: str) -> int:
    # Longer ones are too large whatever they are, and Python refuses to read very long ones at all.
    if len(text) > 20:
        raise Refusal(f"--property {name!r}: {text[:20]}… does not fit into 64 bits")
    return int(text)


def version(text: str) -> int:
    """The expected version that a word means."""
    if text in _EXPECTED:
        return _EXPECTED[text]
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise Refusal(f"--expected {text!r}: a version, any, no-stream or stream-exists is wanted")
    return int(text)


def _report(result: Appended, as_json: bool) -> None:
    if as_json:
        write_json(result)
        return
    what = "was there already" if result.duplicate else "appended"
    console().print(f"{what}: version {result.version} of its stream, position {result.position}")
