"""A place in the log, as it is written in a request."""

from datetime import datetime
from typing import Annotated, Any

import msgspec

from milepost.engine.start import Start, start_from
from milepost.errors import InvalidMessage
from milepost.server.wire.values import At, described

_TIME_OR_POSITION: list[dict[str, Any]] = [
    {"type": "string", "format": "date-time"},
    {"type": "string", "pattern": "^[0-9]{1,18}$"},
]
ANYWHERE: dict[str, Any] = {"anyOf": [{"type": "string", "enum": ["beginning", "now"]}, *_TIME_OR_POSITION]}
"""How the text of a place is described."""
AN_END: dict[str, Any] = {"anyOf": _TIME_OR_POSITION}
"""The same for `end_of`."""

Place = Annotated[str, described(**ANYWHERE)] | At
"""`beginning`, `now`, a time in RFC 3339, or a position."""
EndPlace = Annotated[str, described(**AN_END)] | At
"""A time in RFC 3339, or a position."""


def place_of(field: str, text: Place) -> Start:
    """What a place in a request means."""
    try:
        return start_from(_read(text))
    except ValueError:
        shown = repr(text if len(str(text)) <= 80 else f"{str(text)[:80]}…")
        raise InvalidMessage(
            field, f'"beginning", "now", a time such as 2026-03-01T12:00:00Z or a position is wanted, not {shown}'
        ) from None


def end_of(field: str, text: EndPlace | None) -> datetime | int | None:
    """The last place of a stretch: a time or a position; None: it has no end."""
    if text is None:
        return None
    place = place_of(field, text)
    if isinstance(place, str):
        raise InvalidMessage(field, f"a time or a position is wanted, not {place!r}")
    return place


def _read(text: Place) -> object:
    if isinstance(text, int) or text in ("beginning", "now"):
        return text
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    return msgspec.convert(text, datetime)
