"""The filter playground: an expression evaluated part by part on a message."""

from typing import Any

import msgspec
from litestar import get
from litestar.di import NamedDependency

from milepost.console.filter_check import CheckedExpression, FilterEvaluation
from milepost.console.forms import parse_object
from milepost.console.guard import needs
from milepost.console.request import ConsoleRequest, ConsoleResponse, NavItem
from milepost.console.search import LogCriteria, LogSearch, find_position, message_at
from milepost.console.templating import format_payload
from milepost.errors import InvalidMessage
from milepost.filter.filter import MAX_BYTES
from milepost.log.codec import check_properties
from milepost.log.message import Message
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeRule
from milepost.server.limits import Limits

NAV_ITEM = NavItem("Filter", "filter")

MAX_PROPERTIES_CHARACTERS = 6000
"""Characters of properties: they stand in the address, so that it can be passed on."""


@get("/filter", opt=needs(TokenRole.READ, ScopeRule.ITSELF))
async def playground(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Show an expression with the value of each part. The address has everything, so that it can be shared."""
    query = console.query
    where, properties, wanted = (
        query.get("where", ""),
        query.get("properties", ""),
        query.get("message", "").strip(),
    )
    checked = CheckedExpression.of(where)
    message, given, problem = None, None, None
    try:
        if wanted:
            message = await _find_message(console, wanted)
            given = message.properties
        elif properties.strip():
            given = _parse_properties(properties, console.limits)
    except InvalidMessage as error:
        problem = (error.field, str(error).partition(": ")[2])
    explained = None if checked.filter is None or given is None else FilterEvaluation.of(checked.filter, given)
    return console.page(
        "filter.html",
        where=where,
        properties=properties,
        wanted=wanted,
        checked=checked,
        message=message,
        shown=None if message is None else format_payload(msgspec.json.encode(message.properties).decode()).text,
        explained=explained,
        problem=problem,
        newest=await _newest_position(console),
        longest=MAX_BYTES,
        most_properties=MAX_PROPERTIES_CHARACTERS,
    )


async def _find_message(console: ConsoleRequest, wanted: str) -> Message[Any]:
    """Return a message by its position or its id."""
    found = await message_at(console.scope_guard, await find_position(console.scope_guard, wanted))
    if found is None:
        raise InvalidMessage("message", f"there is no message {wanted}")
    return found


def _parse_properties(text: str, limits: Limits) -> dict[str, Any]:
    """Return the properties that a text has; refuse what a message could not have."""
    if len(text) > MAX_PROPERTIES_CHARACTERS:
        raise InvalidMessage(
            "properties",
            f"there are {len(text):,} characters, over the limit of {MAX_PROPERTIES_CHARACTERS:,} for this page",
        )
    found = parse_object("properties", text, limits)
    try:
        check_properties(found)
    except InvalidMessage as error:
        raise InvalidMessage("properties", str(error)) from None
    return found


async def _newest_position(console: ConsoleRequest) -> int | None:
    """Return the position of the newest message, to try a filter on."""
    stretch = await LogSearch(console.mp, LogCriteria(scope=console.principal.scope), most=1).backwards()
    return stretch.messages[0].position if stretch.messages else None


HANDLERS = (playground,)
