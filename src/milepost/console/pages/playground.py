"""The filter playground: an expression, a message, and what each part comes to."""

from typing import Any

import msgspec
from litestar import get
from litestar.di import NamedDependency

from milepost.console.admission import needs
from milepost.console.answer import Answer
from milepost.console.choice import Choice
from milepost.console.entry import Entry
from milepost.console.explained import Checked, Explained
from milepost.console.payload import payload_of
from milepost.console.stretch import Search
from milepost.console.target import message_at, named
from milepost.console.typed_json import object_of
from milepost.console.visit import Visit
from milepost.errors import InvalidMessage
from milepost.filter.filter import MAX_BYTES
from milepost.log.codec import check_properties
from milepost.log.message import Message
from milepost.server.access.reach import Within
from milepost.server.access.role import Role
from milepost.server.limits import Limits

ENTRY = Entry("Filter", "filter")

MOST_PROPERTIES = 6000
"""Characters of properties: they stand in the address, so that it can be passed on."""


@get("/filter", opt=needs(Role.READ, Within.ITSELF))
async def playground(visit: NamedDependency[Visit]) -> Answer:
    """An expression, explained; the same address shows the same to everybody."""
    query = visit.query
    where, properties, wanted = (
        query.get("where", ""),
        query.get("properties", ""),
        query.get("message", "").strip(),
    )
    checked = Checked.of(where)
    message, given, problem = None, None, None
    try:
        if wanted:
            message = await _message(visit, wanted)
            given = message.properties
        elif properties.strip():
            given = _properties(properties, visit.limits)
    except InvalidMessage as error:
        problem = (error.field, str(error).partition(": ")[2])
    explained = None if checked.filter is None or given is None else Explained.of(checked.filter, given)
    return visit.page(
        "filter.html",
        where=where,
        properties=properties,
        wanted=wanted,
        checked=checked,
        message=message,
        shown=None if message is None else payload_of(msgspec.json.encode(message.properties).decode()).text,
        explained=explained,
        problem=problem,
        newest=await _newest(visit),
        longest=MAX_BYTES,
        most_properties=MOST_PROPERTIES,
    )


async def _message(visit: Visit, wanted: str) -> Message[Any]:
    """A message by its position or its id."""
    found = await message_at(visit.reach, await named(visit.reach, wanted))
    if found is None:
        raise InvalidMessage("message", f"there is no message {wanted}")
    return found


def _properties(text: str, limits: Limits) -> dict[str, Any]:
    """Properties as a message could have them."""
    if len(text) > MOST_PROPERTIES:
        raise InvalidMessage(
            "properties",
            f"there are {len(text):,} characters, over the limit of {MOST_PROPERTIES:,} for this page",
        )
    found = object_of("properties", text, limits)
    try:
        check_properties(found)
    except InvalidMessage as error:
        raise InvalidMessage("properties", str(error)) from None
    return found


async def _newest(visit: Visit) -> int | None:
    """The newest message, to try a filter on."""
    stretch = await Search(visit.mp, Choice(scope=visit.visitor.scope), most=1).backwards()
    return stretch.messages[0].position if stretch.messages else None


HANDLERS = (playground,)
