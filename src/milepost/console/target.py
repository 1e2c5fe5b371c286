"""A message that somebody names: by its position, or by its id."""

from typing import Any
from uuid import UUID

from milepost.console.numbers import is_position
from milepost.console.stretch import reader_of
from milepost.errors import InvalidMessage
from milepost.log.message import Message
from milepost.log.reader import END
from milepost.server.access.reach import Reach

MOST = 20
"""Streams that a message of the same id is looked for in."""


async def named(reach: Reach, wanted: str) -> int | None:
    """The position of a message; None if there is none of this id. What names no message is refused."""
    text = wanted.strip().replace(",", "")
    if is_position(text):
        return int(text)
    known = uuid_of(text)
    if known is None:
        raise InvalidMessage("message", "a position such as 81,244 is wanted, or the id of a message, a UUID")
    return next(reversed(await positions_of(reach, known)), None)


async def message_at(reach: Reach, position: int | None) -> Message[Any] | None:
    """The message at a position; None if there is none within the scope."""
    if position is None or not 0 < position <= END:
        return None
    mp = reach.mp
    found = await reader_of(mp).messages_at(mp.log.database, [position])
    return found[0] if found and reach.scope.has_stream(found[0].stream) else None


async def positions_of(reach: Reach, id: UUID) -> list[int]:
    """Where messages with this id are within the scope: each stream may have one."""
    log = reach.mp.log
    rows = await log.database.execute(log.statements.get("positions_of_id"), {"id": id, "limit": MOST})
    positions = [position for (position,) in rows]
    if reach.scope.categories is None or not positions:
        return positions
    rows = await log.database.execute(log.statements.get("streams_at"), {"positions": positions})
    within = {position for position, stream, _ in rows if reach.scope.has_stream(stream)}
    return [position for position in positions if position in within]


def uuid_of(text: str | None) -> UUID | None:
    """The id that a text is, if it is one."""
    try:
        return None if text is None else UUID(text)
    except ValueError:
        return None
