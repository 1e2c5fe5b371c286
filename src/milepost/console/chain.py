"""What belongs together: the messages with the same correlation id, as a tree of what caused what."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Any
from uuid import UUID

from milepost.console.stretch import adapted
from milepost.console.target import message_at, positions_of, uuid_of
from milepost.log.message import Message, id_in
from milepost.log.statements import Statements
from milepost.server.access.reach import Reach

NEAR = 20_000
"""Positions that are looked at on each side of a message."""
FAR = 500_000
"""The same for somebody who looks further."""
SECONDS = 1.5
"""After which no further position is looked at."""
MOST = 100
"""Messages that are shown from each side."""
MOST_CAUSES = 20
"""How far back causes are followed: each is found by its id, wherever it is."""


@dataclass(frozen=True)
class Link:
    """A message of a chain."""

    position: int
    stream: str
    version: int
    id: UUID
    type: str
    time: datetime
    cause: str | None
    """The id of the message that caused it, as far as it says so."""
    depth: int = 0
    """How many causes lie before it, of those that are shown."""


@dataclass(frozen=True)
class Chain:
    """What belongs to a message."""

    correlation: str | None
    """The id that they share; None if the message has none."""
    links: Sequence[Link]
    """The message itself among them; causes before what they caused."""
    low: int
    high: int
    """It was looked at these positions."""
    head: int
    """How far the log went."""
    more: bool
    """Whether there were more than are shown."""

    @property
    def is_part(self) -> bool:
        """Whether there are positions that it was not looked at."""
        return self.low > 1 or self.high < self.head


@dataclass
class Rings:
    """The positions around a message that were looked at, and what was found there."""

    position: int
    first: int
    last: int
    """It is not looked beyond these."""
    low: int = field(init=False)
    high: int = field(init=False)
    width: int = NEAR
    """Positions on each side that are looked at next."""
    before: list[Link] = field(default_factory=list)
    after: list[Link] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.low = self.high = self.position

    @property
    def done(self) -> bool:
        """Whether all was looked at, or enough was found."""
        return self.is_full or (self.low <= self.first and self.high >= self.last)

    @property
    def is_full(self) -> bool:
        """Whether there may be more than is wanted on a side."""
        return len(self.before) >= MOST or len(self.after) >= MOST

    def add(self, links: Sequence[Link], low: int, high: int) -> None:
        """What a wider ring has."""
        self.before += [link for link in links if link.position < self.position]
        self.after += [link for link in links if link.position > self.position]
        self.low, self.high = low, high


class Chains:
    """Finds what belongs to a message."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._mp = mp = reach.mp
        self._statements = Statements(mp.settings["schema"].value, "milepost.console")

    async def of(self, message: Message[Any], distance: int = NEAR, seconds: float = SECONDS) -> Chain:
        """The chain of a message, as far as it lies within a distance, or is found in so many seconds.

        Messages outside of the scope are left out.
        """
        head = max(await self._mp.head(), message.position)
        rings = Rings(
            message.position, max(1, message.position - distance), min(message.position + distance, head)
        )
        deadline = monotonic() + seconds
        while not rings.done:
            began = monotonic()
            await self._look(message, rings)
            rings.width = adapted(rings.width, monotonic() - began)
            if monotonic() > deadline:
                break
        # Left out only now: how far it was looked depends on all that was found.
        within = self._reach.scope.has_stream
        known = {link.id: link for link in [_link(message), *rings.before, *rings.after] if within(link.stream)}
        for cause in await self._causes(message):
            known.setdefault(cause.id, cause)
        links = list(arranged(sorted(known.values(), key=lambda link: link.position)))
        return Chain(text_of(message, "correlation_id"), links, rings.low, rings.high, head, rings.is_full)

    async def _look(self, message: Message[Any], rings: "Rings") -> None:
        """One ring further."""
        low, high = max(rings.first, rings.low - rings.width), min(rings.last, rings.high + rings.width)
        correlation = text_of(message, "correlation_id")
        parameters = {
            "below": rings.low,
            "above": rings.high,
            "low": low,
            "high": high,
            # Many begin a chain with a message whose id is the correlation id of all that follow.
            "correlation": str(message.id) if correlation is None else correlation,
            "id": str(message.id),
            "limit": MOST,
        }
        rows = await self._mp.log.database.execute(self._statements.get("related"), parameters)
        rings.add([Link(*row) for row in rows], low, high)

    async def _causes(self, message: Message[Any]) -> list[Link]:
        """The message that caused it, the one that caused that, and so on."""
        causes: list[Link] = []
        one = message
        for _ in range(MOST_CAUSES):
            known = uuid_of(text_of(one, "causation_id"))
            positions = [] if known is None else await positions_of(self._reach, known)
            found = await message_at(self._reach, next(reversed(positions), None))
            if found is None or found.id in {message.id, *(cause.id for cause in causes)}:
                break
            causes.append(_link(found))
            one = found
        return causes


def arranged(links: Sequence[Link]) -> Iterator[Link]:
    """Each message behind the one that caused it; what has no cause among them in the order of the log."""
    by_id = {str(link.id): link for link in links}
    caused: dict[str | None, list[Link]] = {}
    for link in links:
        is_first = link.cause not in by_id or by_id[link.cause].position >= link.position
        caused.setdefault(None if is_first else link.cause, []).append(link)
    return _walked(caused)


def _walked(caused: Mapping[str | None, Sequence[Link]]) -> Iterator[Link]:
    waiting = [(0, link) for link in reversed(caused.get(None, ()))]
    while waiting:
        depth, link = waiting.pop()
        yield Link(link.position, link.stream, link.version, link.id, link.type, link.time, link.cause, depth)
        waiting += [(depth + 1, effect) for effect in reversed(caused.get(str(link.id), ()))]


def text_of(message: Message[Any], name: str) -> str | None:
    """Return an id of a message's metadata as text."""
    value = id_in(message.metadata, name)
    return None if value is None else str(value)


def _link(message: Message[Any]) -> Link:
    cause = text_of(message, "causation_id")
    return Link(message.position, message.stream, message.version, message.id, message.type, message.time, cause)
