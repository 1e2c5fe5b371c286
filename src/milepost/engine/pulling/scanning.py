"""Reads the log where the cursor of a pulled subscription is: what is to become rows."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence, Set
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

import msgspec

from milepost.engine.consuming.options import Created
from milepost.engine.kept import Kept
from milepost.engine.order import Order
from milepost.engine.place import Place
from milepost.engine.pulling.stock import Found, Stock
from milepost.engine.repeats import Repeats
from milepost.errors import Unavailable
from milepost.log.reader import PAGE_MESSAGES, Page, Query
from milepost.progress.memories import Memory
from milepost.progress.pulling import Reply
from milepost.ranges import EVERYTHING, Ranges

KEPT = 2**20
"""Bytes of messages that are kept for the next pull; of more, only what is wanted now is read."""
CROWD = 16
"""How many times what is wanted is offered, at most, where others pull too: they move the cursor meanwhile."""

Read = Callable[[], Coroutine[Any, Any, Stock | None]]
"""Reads a part of the log."""
Begin = Callable[[Read], asyncio.Task[Stock | None] | None]
"""Begins to read, if there is room for it."""


@lru_cache(maxsize=100)
def created_of(name: str, settings: bytes) -> Created:
    """A subscription by its stored settings."""
    return Created.from_stored(name, msgspec.json.decode(settings))


class Scanning:
    """Reads on from wherever the cursor is, a bounded part at a time and up to the horizon.

    It remembers how the subscription stood, and what it has read: more each time, as long as that is of use. When
    half of it is handed out, the next part is read.
    """

    def __init__(self, place: Place, name: str, begin: Begin) -> None:
        self._place = place
        self._name = name
        self._begin = begin
        self._known: Reply | None = None
        self._stock: Stock | None = None
        self._size = 0
        self._span: int | None = None
        self._crowd = 1
        self._ahead: asyncio.Task[Stock | None] | None = None
        self._closed = False
        self._is_outdated = False
        """Whether what is known of the horizon may be of an earlier life of the server."""
        self.offering = asyncio.Lock()
        """Whoever has it offers a part of the log."""

    @property
    def size(self) -> int:
        """Bytes of messages that are here."""
        size = 0 if self._stock is None else self._stock.size
        ahead = None if self._ahead is None else _read_by(self._ahead)
        return size if ahead is None else size + ahead.size

    def learn(self, reply: Reply) -> None:
        """The subscription stands like this."""
        self._known = None if reply.ready else reply
        if reply.outcome == "lost":
            self._crowd = min(self._crowd * 2, CROWD)
        elif reply.outcome == "stale":
            self._stock = None
            self._is_outdated = True
        elif reply.outcome == "converted":
            self._crowd = max(self._crowd // 2, 1)

    async def likely(self, want: int) -> Found | None:
        """What can be offered without asking first how the subscription stands, if that is known well enough."""
        known = self._known
        if known is None or (not self._has(known) and known.position >= self._place.log.horizon.position):
            return None
        return await self.next(known, want)

    async def next(self, reply: Reply, want: int) -> Found | None:
        """A part of the log after the cursor, with about so many messages that are wanted; None: there is none."""
        if not self._has(reply):
            self._stock = await self._read_ahead(reply) or await self._read(reply, want)
        stock = self._stock
        if stock is None:
            return None
        part = stock.part(reply.position, want * self._crowd)
        if stock.size > KEPT or self._closed:
            self._stock, self._size = None, 0
        elif part.scanned.position >= stock.middle:
            self._begin_ahead(msgspec.structs.replace(reply, position=stock.high), want)
        return part

    def _begin_ahead(self, reply: Reply, want: int) -> None:
        """Begins to read what comes next: it is there when whoever pulls has settled."""
        if self._ahead is None and not self._closed and reply.position < self._place.log.horizon.position:
            self._ahead = self._begin(partial(self._read, reply, want))

    async def _read_ahead(self, reply: Reply) -> Stock | None:
        """What was read ahead, if that is what is wanted."""
        ahead = self._ahead
        if ahead is None:
            return None
        await asyncio.wait([ahead])
        if self._ahead is ahead:
            self._ahead = None
        stock = _read_by(ahead)
        return stock if stock is not None and stock.is_for(reply) else None

    def close(self) -> None:
        """Keeps nothing, and reads nothing ahead any more."""
        self._closed = True
        ahead, self._ahead, self._stock = self._ahead, None, None
        if ahead is not None:
            ahead.cancel()

    def _has(self, reply: Reply) -> bool:
        return self._stock is not None and self._stock.is_for(reply)

    async def _read(self, reply: Reply, want: int) -> Stock | None:
        horizon, life = await self._horizon(reply.position)
        if reply.position >= horizon:
            return None
        created = created_of(self._name, bytes(reply.settings))
        query = created.query(reply.since)
        size = self._next_size(query, want)
        high = min(horizon, reply.position + self._next_span(query))
        log = self._place.log
        page = await log.feed.history.reader.log_page(
            log.database, query, low=reply.position, high=high, limit=size, life=life
        )
        cut = query.cuts(page, size)
        reached = page[-1].position if cut else high
        self._adapt_span(query, cut=cut)
        if self._is_elsewhere:
            await self._check(reached, life)
        wanted = _wanted(query, page, Ranges(zip(reply.ahead[::2], reply.ahead[1::2], strict=True)))
        order = created.declaration.ordered_by
        return Stock(
            number=reply.number,
            epoch=reply.epoch,
            life=None if self._is_elsewhere else life,
            low=reply.position,
            high=reached,
            messages=wanted,
            keys=order.keys(wanted),
            fresh=_fresh(wanted, reply.memories, order),
        )

    async def _horizon(self, position: int) -> tuple[int, UUID | None]:
        horizon = self._place.log.horizon
        if self._is_outdated or horizon.life is None or position >= horizon.position:
            await horizon.look()
            self._is_outdated = False
        return horizon.position, horizon.life

    # Where the log is in another database than the rows

    @property
    def _is_elsewhere(self) -> bool:
        return self._place.services.kept is Kept.IN_ANOTHER_DATABASE

    async def _check(self, reached: int, life: UUID | None) -> None:
        """Makes sure that the log is still what it was, before its messages are passed."""
        log, following = self._place.log, self._place.services.following
        rows = await log.database.execute(log.statements.get("current_life"), {})
        if not rows or rows[0][0] != life:
            self._is_outdated = True
            raise Unavailable("PostgreSQL restarted while the log was being read: pull again")
        if following is not None:
            await following.cover(reached, log_life=life)

    # How much is read at once

    def _next_size(self, query: Query, want: int) -> int:
        """Twice as much as the last time, up to a page."""
        if query.filter is not None:
            return query.page
        self._size = max(want, min(max(self._size * 2, want * self._crowd), PAGE_MESSAGES))
        return self._size

    def _next_span(self, query: Query) -> int:
        return query.spans[0] if self._span is None else self._span

    def _adapt_span(self, query: Query, *, cut: bool) -> None:
        """Looks further where little is found."""
        first, longest = query.spans
        span = self._next_span(query)
        self._span = max(first, span // 2) if cut else min(span * 4, longest)


def _read_by(task: asyncio.Task[Stock | None]) -> Stock | None:
    """What it has read, if it ended well."""
    if not task.done() or task.cancelled() or task.exception():
        return None
    return task.result()


def _wanted(query: Query, page: Page, ahead: Ranges) -> Page:
    found = query.filtered(page, None)
    return [message for message in found if message.position not in ahead] if len(ahead) else found


def _fresh(page: Page, memories: Sequence[Memory] | None, order: Order) -> Set[int]:
    """The positions of those that had not been handled before, while a replay is under way."""
    if memories is None:
        return frozenset()
    handled = Repeats(EVERYTHING, memories, order)
    return {message.position for message in page if message not in handled}
