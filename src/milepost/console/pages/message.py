"""One message: payload, properties, metadata, and what belongs to it."""

from typing import Any

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath

from milepost.console.admission import needs
from milepost.console.answer import Answer
from milepost.console.chain import FAR, NEAR, Chains
from milepost.console.payload import LONGEST, payload_of
from milepost.console.target import message_at, positions_of
from milepost.console.visit import Visit
from milepost.filter.canonical import literal
from milepost.log.message import Message
from milepost.server.access.reach import Within
from milepost.server.access.role import Role
from milepost.server.problems import NOT_FOUND, Refused


@get("/log/{position:int}", opt=needs(Role.READ, Within.ITSELF))
async def message(visit: NamedDependency[Visit], position: FromPath[int]) -> Answer:
    """A message."""
    found = await message_at(visit.reach, position)
    if found is None:
        raise Refused(
            NOT_FOUND,
            f"There is no message at position {position:,}. Positions have gaps: one may have been drawn by an "
            "append that was rolled back, or is not committed yet.",
        )
    distance = FAR if "further" in visit.query else NEAR
    return visit.page(
        "message.html",
        message=found,
        properties=[(name, literal(value)) for name, value in sorted(found.properties.items())],
        payload=payload_of(found.raw, None if "whole" in visit.query else LONGEST),
        metadata=payload_of(msgspec.json.encode(found.metadata).decode(), None),
        chain=await Chains(visit.reach).of(found, distance),
        is_far=distance == FAR,
        others=[other for other in await positions_of(visit.reach, found.id) if other != position],
        next=await _next(visit, found),
    )


async def _next(visit: Visit, message: Message[Any]) -> dict[str, Message[Any] | None]:
    """Its neighbours in its stream."""
    around: dict[int, Message[Any]] = {}
    async for one in visit.mp.read(message.stream, after_version=max(0, message.version - 2), limit=3):
        around[one.version] = one
    return {"before": around.get(message.version - 1), "after": around.get(message.version + 1)}


HANDLERS = (message,)
