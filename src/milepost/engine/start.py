"""Where a new subscription begins."""

from datetime import datetime
from typing import Any, Literal

from milepost.dispatch import Cursor
from milepost.errors import InvalidMessage
from milepost.log.codec import MAX_INTEGER
from milepost.log.log import Log
from milepost.log.since import Since
from milepost.suggestions import aside

Start = Literal["beginning", "now"] | datetime | int


def start_from(value: Any) -> Start:
    """What was given as a place to start at; a `ValueError` says what is wanted."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError("a datetime with a time zone is wanted")
        return value
    if type(value) is int and 0 <= value <= MAX_INTEGER:
        return value
    if isinstance(value, str) and value in ("beginning", "now"):
        return "now" if value == "now" else "beginning"
    meant = aside(value, ("beginning", "now"))
    raise ValueError(f'"beginning", "now", a datetime or a position is wanted{meant}')


async def refuse_beyond_end(name: str, start: Start, log: Log, of: str = "") -> None:
    """Raise `InvalidMessage` for a position after the last one of the log: what comes until then would be missed.

    `of` says of which subscription, where the caller has several.
    """
    if not isinstance(start, int):
        return
    [[drawn, _]] = await log.database.execute(log.statements.get("drawn_and_id"), {"position": 0})
    if start > drawn:
        raise InvalidMessage(name, f"{of}the log ends at position {drawn:,}, before {start:,}")


async def start_of(start: Start, log: Log) -> tuple[Cursor, Since | None]:
    """The cursor that a start means, and the time before which messages are passed over, if it is one.

    Both are exact against messages that commit late. `now` is the horizon, with what is visible above it done. A
    time is before the first message of that time or later, but never above the horizon, where older ones, and
    newer ones too, may still appear.
    """
    if isinstance(start, int):
        return Cursor(start), None
    if start == "beginning":
        return Cursor(0), None
    horizon = await log.horizon.look()
    if isinstance(start, datetime):
        rows = await log.database.execute(log.statements.get("position_before"), {"since": start})
        position = min(int(rows[0][0]), horizon)
        return Cursor(position), Since(start, position)
    rows = await log.database.execute(log.statements.get("visible_above"), {"horizon": horizon})
    return Cursor(horizon, tuple((low, high) for low, high in rows)), None
