"""Reads the log where the cursor of a pulled subscription is: what is to become rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec

from milepost.engine.consuming.options import Created
from milepost.engine.kept import Kept
from milepost.engine.place import Place
from milepost.errors import Unavailable
from milepost.log.message import Message
from milepost.log.reader import Page, Query, is_cut
from milepost.progress.pulling import Reply, Scanned
from milepost.ranges import Ranges


@lru_cache(maxsize=100)
def created_of(name: str, settings: bytes) -> Created:
    """A subscription by its stored settings."""
    return Created.from_stored(name, msgspec.json.decode(settings))


@dataclass(frozen=True)
class Found:
    """A part of the log."""

    scanned: Scanned
    messages: Mapping[int, Message[Any]]
    """What of it is wanted, by position."""


class Scanning:
    """Reads on from wherever the cursor is, a bounded part at a time, up to the horizon."""

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        self._name = name
        self._span: int | None = None

    async def next(self, reply: Reply, want: int) -> Found | None:
        """A part of the log after the cursor, with about so many messages that are wanted; None: there is none."""
        log = self._place.log
        horizon, life = await self._horizon(reply.position), log.horizon.life
        if reply.position >= horizon:
            return None
        created = created_of(self._name, bytes(reply.settings))
        query = created.query(reply.since)
        span, size = self._next_span(query), query.page_size(want)
        high = min(horizon, reply.position + span)
        page = await self._place.reader.log_page(
            log.database, query, low=reply.position, high=high, limit=size, life=life
        )
        cut = is_cut(page, size)
        reached = page[-1].position if cut else high
        self._adapt(query, cut=cut)
        if self._is_elsewhere:
            await self._check(reached)
        ahead = Ranges(zip(reply.ahead[::2], reply.ahead[1::2], strict=True))
        wanted = _wanted(query, page, ahead)
        return Found(
            Scanned(
                number=reply.number,
                revision=reply.revision,
                position=reached,
                ahead=list(chain.from_iterable(ahead.beyond(reached))),
                life=None if self._is_elsewhere else life,
                positions=[message.position for message in wanted],
                sizes=[message.size for message in wanted],
                keys=created.declaration.ordered_by.keys(wanted),
            ),
            {message.position: message for message in wanted},
        )

    async def is_behind(self, position: int) -> bool:
        """Whether there is more of the log after a position."""
        return position < await self._horizon(position)

    async def _horizon(self, position: int) -> int:
        horizon = self._place.log.horizon
        if horizon.life is None or position >= horizon.position:
            await horizon.look()
        return horizon.position

    @property
    def _is_elsewhere(self) -> bool:
        """Whether the log is in another database than the rows."""
        return self._place.services.kept is Kept.IN_ANOTHER_DATABASE

    async def _check(self, reached: int) -> None:
        """Makes sure that the log is still what it was, before its messages are passed."""
        log, following = self._place.log, self._place.services.following
        rows = await log.database.execute(log.statements.get("current_life"), {})
        if not rows or rows[0][0] != log.horizon.life:
            raise Unavailable("PostgreSQL restarted while the log was being read: pull again")
        if following is not None:
            await following.cover(reached)

    def _next_span(self, query: Query) -> int:
        return query.spans[0] if self._span is None else self._span

    def _adapt(self, query: Query, *, cut: bool) -> None:
        """Looks further where little is found."""
        first, longest = query.spans
        span = self._next_span(query)
        self._span = max(first, span // 2) if cut else min(span * 4, longest)


def _wanted(query: Query, page: Page, ahead: Ranges) -> Page:
    found = query.filtered(page, None)
    return [message for message in found if message.position not in ahead] if len(ahead) else found
