"""The page of one message: payload, properties, metadata, neighbours, and the tree of causes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Any
from uuid import UUID

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath

from milepost.console.guard import needs
from milepost.console.request import ConsoleRequest, ConsoleResponse
from milepost.console.search import adapt_span, message_at, parse_uuid, positions_of_id
from milepost.console.templating import MAX_SHOWN_CHARACTERS, format_payload
from milepost.filter.canonical import literal
from milepost.log.message import Message, id_in
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeGuard, ScopeRule
from milepost.server.problems import NOT_FOUND, RequestRefused

NEAR_POSITIONS = 20_000
"""Positions that are searched on each side of a message."""
FAR_POSITIONS = 500_000
"""Positions on each side when the search is widened."""
TREE_SEARCH_SECONDS = 1.5
"""Seconds after which no further position is searched."""
MAX_MESSAGES_EACH_SIDE = 100
"""Messages that are shown from each side."""
MAX_CAUSES = 20
"""Causes that are followed back: each is found by its id, wherever it is."""


@dataclass(frozen=True)
class CausationNode:
    """A message in a tree of causes."""

    position: int
    stream: str
    version: int
    id: UUID
    type: str
    time: datetime
    cause: str | None
    """The id of the message that caused it, as far as it says so."""
    depth: int = 0
    """Number of shown causes above it."""


@dataclass(frozen=True)
class CausationTree:
    """The messages related to one: its causes, its effects, and those with its correlation id."""

    correlation: str | None
    """The id that they share; None if the message has none."""
    links: Sequence[CausationNode]
    """The message itself among them; causes before what they caused."""
    low: int
    high: int
    """The range of positions that was searched."""
    head: int
    """The head of the log."""
    more: bool
    """True if there are more messages than are shown."""

    @property
    def is_part(self) -> bool:
        """True if some positions were not searched."""
        return self.low > 1 or self.high < self.head


@dataclass
class SearchRings:
    """The positions around a message that were searched, and the messages found there."""

    position: int
    first: int
    last: int
    """The search does not go beyond these."""
    low: int = field(init=False)
    high: int = field(init=False)
    width: int = NEAR_POSITIONS
    """Positions on each side that are searched next."""
    before: list[CausationNode] = field(default_factory=list)
    after: list[CausationNode] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.low = self.high = self.position

    @property
    def done(self) -> bool:
        """True if all was searched, or enough was found."""
        return self.is_full or (self.low <= self.first and self.high >= self.last)

    @property
    def is_full(self) -> bool:
        """True if a side has as many messages as are shown."""
        return len(self.before) >= MAX_MESSAGES_EACH_SIDE or len(self.after) >= MAX_MESSAGES_EACH_SIDE

    def add(self, links: Sequence[CausationNode], low: int, high: int) -> None:
        """Add the messages of a wider ring."""
        self.before += [link for link in links if link.position < self.position]
        self.after += [link for link in links if link.position > self.position]
        self.low, self.high = low, high


class CausationFinder:
    """Finds the messages that are related to one."""

    def __init__(self, scope_guard: ScopeGuard) -> None:
        self._scope_guard = scope_guard
        self._mp = scope_guard.mp

    async def of(self, message: Message[Any], distance: int = NEAR_POSITIONS) -> CausationTree:
        """The chain of a message, as far as it lies within a distance, or is found in `TREE_SEARCH_SECONDS`.

        Messages outside of the scope are left out.
        """
        head = max(await self._mp.head(), message.position)
        rings = SearchRings(
            message.position, max(1, message.position - distance), min(message.position + distance, head)
        )
        deadline = monotonic() + TREE_SEARCH_SECONDS
        while not rings.done:
            began = monotonic()
            await self._search_ring(message, rings)
            rings.width = adapt_span(rings.width, monotonic() - began)
            if monotonic() > deadline:
                break
        # Left out only now: how far it was looked depends on all that was found.
        within = self._scope_guard.scope.has_stream
        known = {link.id: link for link in [_node_of(message), *rings.before, *rings.after] if within(link.stream)}
        for cause in await self._causes(message):
            known.setdefault(cause.id, cause)
        links = list(arrange_by_cause(sorted(known.values(), key=lambda link: link.position)))
        return CausationTree(
            metadata_id(message, "correlation_id"), links, rings.low, rings.high, head, rings.is_full
        )

    async def _search_ring(self, message: Message[Any], rings: "SearchRings") -> None:
        """Search one ring further."""
        low, high = max(rings.first, rings.low - rings.width), min(rings.last, rings.high + rings.width)
        correlation = metadata_id(message, "correlation_id")
        found = await self._mp.log.related(
            # Many begin a chain with a message whose id is the correlation id of all that follow.
            str(message.id) if correlation is None else correlation,
            message.id,
            low=low,
            below=rings.low,
            above=rings.high,
            high=high,
            limit=MAX_MESSAGES_EACH_SIDE,
        )
        rings.add([CausationNode(*each) for each in found], low, high)

    async def _causes(self, message: Message[Any]) -> list[CausationNode]:
        """Return the message that caused it, the one that caused that, and so on."""
        causes: list[CausationNode] = []
        one = message
        for _ in range(MAX_CAUSES):
            known = parse_uuid(metadata_id(one, "causation_id"))
            positions = [] if known is None else await positions_of_id(self._scope_guard, known)
            found = await message_at(self._scope_guard, next(reversed(positions), None))
            if found is None or found.id in {message.id, *(cause.id for cause in causes)}:
                break
            causes.append(_node_of(found))
            one = found
        return causes


def arrange_by_cause(links: Sequence[CausationNode]) -> Iterator[CausationNode]:
    """Yield each message behind its cause; messages without a cause among them in the order of the log."""
    by_id = {str(link.id): link for link in links}
    caused: dict[str | None, list[CausationNode]] = {}
    for link in links:
        is_first = link.cause not in by_id or by_id[link.cause].position >= link.position
        caused.setdefault(None if is_first else link.cause, []).append(link)
    return _walk(caused)


def _walk(caused: Mapping[str | None, Sequence[CausationNode]]) -> Iterator[CausationNode]:
    waiting = [(0, link) for link in reversed(caused.get(None, ()))]
    while waiting:
        depth, link = waiting.pop()
        yield CausationNode(
            link.position, link.stream, link.version, link.id, link.type, link.time, link.cause, depth
        )
        waiting += [(depth + 1, effect) for effect in reversed(caused.get(str(link.id), ()))]


def metadata_id(message: Message[Any], name: str) -> str | None:
    """Return an id of a message's metadata as text."""
    value = id_in(message.metadata, name)
    return None if value is None else str(value)


def _node_of(message: Message[Any]) -> CausationNode:
    cause = metadata_id(message, "causation_id")
    return CausationNode(
        message.position, message.stream, message.version, message.id, message.type, message.time, cause
    )


@get("/log/{position:int}", opt=needs(TokenRole.READ, ScopeRule.ITSELF))
async def message(console: NamedDependency[ConsoleRequest], position: FromPath[int]) -> ConsoleResponse:
    """Show a message."""
    found = await message_at(console.scope_guard, position)
    if found is None:
        raise RequestRefused(
            NOT_FOUND,
            f"There is no message at position {position:,}. Positions have gaps: one may have been drawn by an "
            "append that was rolled back, or is not committed yet.",
        )
    distance = FAR_POSITIONS if "further" in console.query else NEAR_POSITIONS
    return console.page(
        "message.html",
        message=found,
        properties=[(name, literal(value)) for name, value in sorted(found.properties.items())],
        payload=format_payload(found.raw, None if "whole" in console.query else MAX_SHOWN_CHARACTERS),
        metadata=format_payload(msgspec.json.encode(found.metadata).decode(), None),
        chain=await CausationFinder(console.scope_guard).of(found, distance),
        is_far=distance == FAR_POSITIONS,
        others=[other for other in await positions_of_id(console.scope_guard, found.id) if other != position],
        next=await _neighbours(console, found),
    )


async def _neighbours(console: ConsoleRequest, message: Message[Any]) -> dict[str, Message[Any] | None]:
    """Return the neighbours of a message in its stream."""
    around: dict[int, Message[Any]] = {}
    async for one in console.mp.read(message.stream, after_version=max(0, message.version - 2), limit=3):
        around[one.version] = one
    return {"before": around.get(message.version - 1), "after": around.get(message.version + 1)}


HANDLERS = (message,)
