"""What is wrong with a body, and where: also a field that nobody knows, and which one was probably meant."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from reprlib import Repr
from typing import Any

import msgspec
from msgspec import inspect

from milepost.server.problems import INVALID, Refused
from milepost.suggestions import suggestion

MAX_FIELD_CHARACTERS = 200
"""How much of the name of such a field is sent back."""
MAX_PROBLEM_CHARACTERS = 500
"""How much is said of what the decoder found wrong."""
MAX_SEARCHED = 20_000
"""How many parts of a body are looked at for such a field."""
_shortened = Repr()
_shortened.maxstring = 80

SIGN = "Object contains unknown field"
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
        return f"{where} is no field {_shortened.repr(self.name)}{hint}"


def unknown_field(body: bytes, wanted: Any) -> UnknownField | None:
    """Return the first field of a body that `wanted` does not have; None if the body cannot be read to its end."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    found = islice(_unknown(inspect.type_info(wanted), value, ""), MAX_SEARCHED)
    return next(filter(None, found), None)


def _unknown(wanted: inspect.Type, value: Any, place: str) -> Iterator[UnknownField | None]:
    """Yield the unknown fields, and None for each part that was looked at."""
    yield None
    match wanted:
        case inspect.Metadata(type=meant):
            yield from _unknown(meant, value, place)
        case inspect.UnionType(types=several):
            for each in several:
                yield from _unknown(each, value, place)
        case inspect.ListType(item_type=item) if isinstance(value, list):
            for number, each in enumerate(value):
                yield from _unknown(item, each, f"{place}[{number}]")
        case inspect.DictType(value_type=item) if isinstance(value, dict):
            for key, each in value.items():
                yield from _unknown(item, each, f"{place}.{key}" if place else key)
        case inspect.StructType() if isinstance(value, dict):
            yield from _unknown_of(wanted, value, place)


def _unknown_of(wanted: inspect.StructType, value: dict[str, Any], place: str) -> Iterator[UnknownField | None]:
    tag = wanted.tag_field
    if tag is not None and value.get(tag) != wanted.tag:
        return
    fields = {each.encode_name: each.type for each in wanted.fields}
    known = [*([] if tag is None else [tag]), *fields]
    for name, each in value.items():
        if name in fields:
            yield from _unknown(fields[name], each, f"{place}.{name}" if place else name)
        elif wanted.forbid_unknown_fields and name != tag:
            yield UnknownField(place, name, known)


def refused_for(said: str, within: str = "") -> Refused:
    """The problem for what the decoder says of a value, which is `within` a part of the body."""
    problem, _, place = said.rpartition(" - at `$")
    if not problem:
        problem, place = said, ""
    if len(problem) > MAX_PROBLEM_CHARACTERS:
        problem = f"{problem[:MAX_PROBLEM_CHARACTERS]}…"
    where = f"{within}{place.removesuffix('`')}".removeprefix(".") or "body"
    return Refused(INVALID, f"{where}: {problem}", field=where)
