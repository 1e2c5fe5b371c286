"""Values of requests: numbers, names, and places in the log, each with what the OpenAPI description says of it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from milepost.engine.checks import MAX_COUNTABLE_NUMBER, MAX_DURATION_SECONDS
from milepost.engine.declare.declaration import Start, checked_start
from milepost.errors import InvalidMessage
from milepost.names import MAX_INTEGER

T = TypeVar("T")


def schema_words(**words: Any) -> Meta:
    """What the description says of a value that the library checks: its words tell better what is wrong."""
    return Meta(extra_json_schema=words)


PositiveCount = Annotated[int, Meta(ge=1, le=MAX_COUNTABLE_NUMBER)]
"""How many of something there may be."""
PositionOrVersion = Annotated[int, schema_words(minimum=0, maximum=MAX_INTEGER)]
"""A position, or a version."""
WaitSeconds = Annotated[float, schema_words(minimum=0, maximum=MAX_DURATION_SECONDS)]
"""Seconds."""
DurationSeconds = Annotated[float, schema_words(exclusiveMinimum=0, maximum=MAX_DURATION_SECONDS)]
"""Seconds, more than none."""
NonEmptyText = Annotated[str, schema_words(minLength=1)]
PropertyName = Annotated[str, schema_words(pattern="^[A-Za-z][A-Za-z0-9_.]*$")]


def convert_given(field: str, make: Callable[[], T]) -> T:
    """What is made of a value of the request; one that the library refuses is a fault of the request."""
    with refuse_as_invalid(field):
        return make()


@contextmanager
def refuse_as_invalid(field: str) -> Iterator[None]:
    """Around a call whose `ValueError` and `TypeError` are about what was sent."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InvalidMessage(field, str(error)) from error


def refuse_repeated(field: str, values: Iterable[str]) -> None:
    """Refuses a name that is there twice, where the second would take the place of the first."""
    for value, count in Counter(values).items():
        if count > 1:
            raise InvalidMessage(field, f"{value!r} is there {count} times: give all that is for it at once")


_TIME_OR_POSITION: list[dict[str, Any]] = [
    {"type": "string", "format": "date-time"},
    {"type": "string", "pattern": "^[0-9]{1,18}$"},
]
PLACE_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string", "enum": ["beginning", "now"]}, *_TIME_OR_POSITION]}
"""How the text of a place is described."""
END_PLACE_SCHEMA: dict[str, Any] = {"anyOf": _TIME_OR_POSITION}
"""The same for `parse_end_place`."""

Place = Annotated[str, schema_words(**PLACE_SCHEMA)] | PositionOrVersion
"""`beginning`, `now`, a time in RFC 3339, or a position."""
EndPlace = Annotated[str, schema_words(**END_PLACE_SCHEMA)] | PositionOrVersion
"""A time in RFC 3339, or a position."""


def parse_place(field: str, text: Place) -> Start:
    """What a place in a request means."""
    try:
        return checked_start(_convert_place(text))
    except ValueError:
        shown = repr(text if len(str(text)) <= 80 else f"{str(text)[:80]}…")
        raise InvalidMessage(
            field, f'"beginning", "now", a time such as 2026-03-01T12:00:00Z or a position is wanted, not {shown}'
        ) from None


def parse_end_place(field: str, text: EndPlace | None) -> datetime | int | None:
    """The last place of a stretch: a time or a position; None: it has no end."""
    if text is None:
        return None
    place = parse_place(field, text)
    if isinstance(place, str):
        raise InvalidMessage(field, f"a time or a position is wanted, not {place!r}")
    return place


def _convert_place(text: Place) -> object:
    if isinstance(text, int) or text in ("beginning", "now"):
        return text
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    return msgspec.convert(text, datetime)
