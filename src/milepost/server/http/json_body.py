"""Decode a JSON body strictly, and say where it is wrong and which field was probably meant."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import islice
from reprlib import Repr
from typing import Any

import msgspec
from litestar import Request
from msgspec import inspect

from milepost.names import suggestion
from milepost.server.http import json_limits
from milepost.server.http.asgi import Receive
from milepost.server.http.body import BODY_SCOPE_KEY, RequestBody
from milepost.server.limits import LARGEST_MESSAGES_PER_BODY, Limits
from milepost.server.problems import INVALID, RequestRefused
from milepost.wire.messages import OneOrSeveralMessages, StreamToAppend, limit_message_count

MAX_FIELD_CHARACTERS = 200
"""How much of the name of such a field is sent back."""
MAX_PROBLEM_CHARACTERS = 500
"""How much is said of what the decoder found wrong."""
MAX_SEARCHED_PARTS = 20_000
"""How many parts of a body are looked at for such a field."""
_short_repr = Repr()
_short_repr.maxstring = 80

UNKNOWN_FIELD_MARK = "Object contains unknown field"
"""How the decoder's words about one begin."""


@dataclass(frozen=True)
class UnknownField:
    """A field that is not known where it is."""

    place: str
    """The object that has it; empty: the body itself."""
    name: str
    known: Sequence[str]

    @property
    def field(self) -> str:
        """The place of the field itself."""
        name = self.name[:MAX_FIELD_CHARACTERS]
        return f"{self.place}.{name}" if self.place else name

    def __str__(self) -> str:
        where = f"{self.place}: there" if self.place else "There"
        hint = suggestion(self.name, self.known) if self.known else "; it takes none"
        return f"{where} is no field {_short_repr.repr(self.name)}{hint}"


def find_unknown_field(body: bytes, wanted: Any) -> UnknownField | None:
    """Return the first field of a body that `wanted` does not have; None if the body cannot be read to its end."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    found = islice(_unknown_fields(inspect.type_info(wanted), value, ""), MAX_SEARCHED_PARTS)
    return next(filter(None, found), None)


def _unknown_fields(wanted: inspect.Type, value: Any, place: str) -> Iterator[UnknownField | None]:
    """Yield the unknown fields, and None for each part that was looked at."""
    yield None
    match wanted:
        case inspect.Metadata(type=meant):
            yield from _unknown_fields(meant, value, place)
        case inspect.UnionType(types=several):
            for each in several:
                yield from _unknown_fields(each, value, place)
        case inspect.ListType(item_type=item) if isinstance(value, list):
            for number, each in enumerate(value):
                yield from _unknown_fields(item, each, f"{place}[{number}]")
        case inspect.DictType(value_type=item) if isinstance(value, dict):
            for key, each in value.items():
                yield from _unknown_fields(item, each, f"{place}.{key}" if place else key)
        case inspect.StructType() if isinstance(value, dict):
            yield from _unknown_fields_of_struct(wanted, value, place)


def _unknown_fields_of_struct(
    wanted: inspect.StructType, value: dict[str, Any], place: str
) -> Iterator[UnknownField | None]:
    tag = wanted.tag_field
    if tag is not None and value.get(tag) != wanted.tag:
        return
    fields = {each.encode_name: each.type for each in wanted.fields}
    known = [*([] if tag is None else [tag]), *fields]
    for name, each in value.items():
        if name in fields:
            yield from _unknown_fields(fields[name], each, f"{place}.{name}" if place else name)
        elif wanted.forbid_unknown_fields and name != tag:
            yield UnknownField(place, name, known)


def refusal_of_decoding(said: str, within: str = "") -> RequestRefused:
    """The problem for what the decoder says of a value, which is `within` a part of the body."""
    problem, _, place = said.rpartition(" - at `$")
    if not problem:
        problem, place = said, ""
    if len(problem) > MAX_PROBLEM_CHARACTERS:
        problem = f"{problem[:MAX_PROBLEM_CHARACTERS]}…"
    where = f"{within}{place.removesuffix('`')}".removeprefix(".") or "body"
    return RequestRefused(INVALID, f"{where}: {problem}", field=where)


MAX_SEARCHED_BYTES = 256 * 2**10
"""The largest body in which an unknown field is looked for, to say which one was probably meant."""

APPEND_BODIES = (OneOrSeveralMessages, list[StreamToAppend])
"""Bodies with messages, whose payloads are not decoded with them."""


class JsonRequest(Request[Any, Any, Any]):
    """Decodes strictly: a text is no number, and what nobody asked for is refused."""

    async def json(self) -> Any:
        """The body as what the handler takes."""
        field = self.route_handler.parsed_data_field
        wanted = Any if field is None else field.raw
        encoded = await self.body()
        body = request_body(self)
        is_append = field is not None and field.annotation in APPEND_BODIES
        async with body.work_turn() as step:
            for _ in (_append_check_steps if is_append else _check_steps)(encoded, body.limits):
                await step()
            with limit_message_count() if is_append else nullcontext():
                found = _decode_strictly(encoded, wanted)
            await step()
            return found


def request_body(request: JsonRequest) -> RequestBody:
    """The body of a request, as it arrived."""
    scope: Any = request.scope
    body: RequestBody = scope[BODY_SCOPE_KEY]
    return body


def request_receive(request: JsonRequest) -> Receive:
    """What a request receives after its body: that its client has gone."""
    receive: Any = request.receive
    return receive  # type: ignore[no-any-return]


def decode_small(body: bytes, wanted: Any, limits: Limits) -> Any:
    """A small body as a value; what is wrong with it is said with its place."""
    for _ in _check_steps(body, limits):
        pass
    return _decode_strictly(body, wanted)


def _check_steps(body: bytes, limits: Limits) -> Iterator[None]:
    """Refuse what is not to be parsed; pause between the steps."""
    yield from json_limits.check_counts(body, containers=limits.containers, texts=limits.texts)
    yield from json_limits.check_utf8(body)


def _append_check_steps(body: bytes, limits: Limits) -> Iterator[None]:
    """The same for an append: its messages are counted while it is decoded, and each is looked at for itself."""
    yield from json_limits.check_body_containers(body, LARGEST_MESSAGES_PER_BODY * limits.containers)
    yield from json_limits.check_utf8(body)


def _decode_strictly(body: bytes, wanted: Any) -> Any:
    try:
        return _decoder(wanted).decode(body)
    except RecursionError:
        raise RequestRefused(INVALID, "The body is nested too deeply", field="body") from None
    except msgspec.ValidationError as error:
        said = str(error)
        is_searched = said.startswith(UNKNOWN_FIELD_MARK) and len(body) <= MAX_SEARCHED_BYTES
        if is_searched and (unknown := find_unknown_field(body, wanted)):
            raise RequestRefused(INVALID, str(unknown), field=unknown.field) from None
        raise refusal_of_decoding(said) from None
    except msgspec.DecodeError as error:
        raise RequestRefused(INVALID, f"The body is not JSON: {error}", field="body") from None


@cache
def _decoder(wanted: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(wanted)
