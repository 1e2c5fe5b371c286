"""Find messages of the log: page by page by criteria, by position, by id."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any
from uuid import UUID

from milepost.app import Milepost
from milepost.engine.query import query_of
from milepost.errors import InvalidMessage
from milepost.filter import compile_filter
from milepost.log.message import Message
from milepost.log.query import FIRST_SPAN_POSITIONS, PAGE_BYTES, Page, Query, Selection
from milepost.names import MAX_POSITION_NUMBER
from milepost.server.access.permissions import UNLIMITED_SCOPE, TokenScope
from milepost.server.access.scope_guard import ScopeGuard


def is_position(text: str) -> bool:
    """Return True if a text is a number that a message's position could be."""
    return (
        text.isascii()
        and text.isdigit()
        and len(text) <= len(str(MAX_POSITION_NUMBER))
        and int(text) <= MAX_POSITION_NUMBER
    )


def position_parameter(query: Mapping[str, str], name: str) -> int | None:
    """Return the position in a parameter; None if the address has none. Refuse what is no position."""
    text = query.get(name, "")
    if not text:
        return None
    return parse_position(name, text)


def parse_position(name: str, text: str, *, what: str = "position") -> int:
    """Return the position, or other number, that a field has; raise `InvalidMessage` if it is none."""
    if not is_position(text.strip()):
        raise InvalidMessage(name, f"a {what} is wanted, not {text[:40]!r}")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class LogCriteria:
    """The criteria of a search in the log. An empty text means any."""

    stream: str = ""
    category: str = ""
    type: str = ""
    """May be a pattern: `*` is one dotted part and `>` is the rest."""
    where: str = ""
    scope: TokenScope = UNLIMITED_SCOPE
    """The scope of the reader: messages outside of it are left out."""

    @classmethod
    def of(cls, query: Mapping[str, str], scope: TokenScope) -> "LogCriteria":
        """Return the criteria of an address; refuse those that are outside of the scope."""
        choice = cls(
            stream=query.get("stream", ""),
            category=query.get("category", ""),
            type=query.get("type", ""),
            where=query.get("where", "").strip(),
            scope=scope,
        )
        scope.narrowed([choice.category] if choice.category else None, [choice.stream] if choice.stream else None)
        return choice

    @property
    def categories(self) -> list[str] | None:
        """The categories that are searched; None means any."""
        return self.scope.narrowed([self.category] if self.category else None, None)

    @property
    def selection(self) -> Selection:
        """The criteria without the filter, as a selection; criteria that contradict each other are refused."""
        return Selection.of(category=self.categories, stream=self.stream or None, types=self.type or None)

    def query(self, *, backwards: bool) -> Query:
        """Return the query of the criteria; raise `FilterError` if the filter cannot be used."""
        where = compile_filter(self.where) if self.where else None
        return query_of(self.selection, where, backwards=backwards)

    @property
    def everything(self) -> bool:
        """True if every message fits."""
        return self == LogCriteria(scope=self.scope)

    @property
    def unfiltered(self) -> "LogCriteria":
        """The criteria without the filter."""
        return replace(self, where="")

    @property
    def parameters(self) -> dict[str, str]:
        """The criteria as parameters of an address."""
        return {"stream": self.stream, "category": self.category, "type": self.type, "where": self.where}


LOG_PAGE_MESSAGES = 50
"""Messages of a page."""
SEARCH_SECONDS = 1.5
"""Seconds after which a search ends with what it has; the next page goes on from there."""

STATEMENT_SECONDS = 0.2
"""Seconds that one statement should take."""


@dataclass(frozen=True)
class LogPage:
    """A page of messages, found between two positions."""

    messages: list[Message[Any]]
    """The newest first, or the oldest first, as it was asked for."""
    low: int
    high: int
    """The positions above `low`, up to `high`, were searched."""
    head: int
    """The head of the log."""

    @property
    def is_full(self) -> bool:
        """True if the page is full; else there was no more, or the search ended early."""
        return len(self.messages) >= LOG_PAGE_MESSAGES

    @property
    def older(self) -> int | None:
        """The position before which the next older page ends; None at the beginning of the log."""
        return self.low + 1 if self.low > 0 else None

    @property
    def newer(self) -> int | None:
        """The position after which the next newer page begins; None at the end of the log."""
        return self.high if self.high < self.head else None


class LogSearch:
    """A search for messages. One statement reads a bounded range of positions."""

    def __init__(
        self, mp: Milepost, choice: LogCriteria, *, most: int = LOG_PAGE_MESSAGES, seconds: float = SEARCH_SECONDS
    ) -> None:
        self._mp = mp
        self._choice = choice
        self._most = most
        self._seconds = seconds

    async def backwards(self, before: int | None = None) -> LogPage:
        """Return the newest messages, or those before a position, newest first."""
        query = self._choice.query(backwards=True)
        head = await self._mp.head()
        high = end = head if before is None else min(head, before - 1)
        found: Page = []
        span, widest = query.spans
        deadline = monotonic() + self._seconds
        while end > 0 and len(found) < self._most:
            low = max(0, end - span)
            began = monotonic()
            page, cut = await self._page(query, low, end, self._most - len(found))
            found += query.filtered(page, self._most - len(found))
            end = page[-1].position - 1 if cut else low
            span = min(adapt_span(span, monotonic() - began), widest)
            if monotonic() > deadline or sum(message.size for message in found) > PAGE_BYTES:
                break
        if len(found) == self._most:
            end = found[-1].position - 1
        return LogPage(found, max(0, end), high, head)

    async def forwards(self, after: int) -> LogPage:
        """Return the messages after a position, oldest first."""
        query = self._choice.query(backwards=False)
        head = await self._mp.head()
        end = after
        found: Page = []
        span, widest = query.spans
        deadline = monotonic() + self._seconds
        while end < head and len(found) < self._most:
            high = min(head, end + span)
            began = monotonic()
            page, cut = await self._page(query, end, high, self._most - len(found))
            found += query.filtered(page, self._most - len(found))
            end = page[-1].position if cut else high
            span = min(adapt_span(span, monotonic() - began), widest)
            if monotonic() > deadline or sum(message.size for message in found) > PAGE_BYTES:
                break
        if len(found) == self._most:
            end = found[-1].position
        return LogPage(found, min(after, head), min(end, head), head)

    async def _page(self, query: Query, low: int, high: int, wanted: int) -> tuple[Page, bool]:
        size = query.page_size(wanted)
        log = self._mp.log
        page = await log.page(query, low=low, high=high, limit=size, life=log.known_horizon.life, raw=True)
        return page, query.cuts(page, size)


def adapt_span(span: int, took: float) -> int:
    """Return how many positions the next statement reads, by the seconds that the last one took."""
    return max(FIRST_SPAN_POSITIONS, int(span * min(4.0, max(0.25, STATEMENT_SECONDS / max(took, 0.001)))))


MAX_STREAMS_OF_ID = 20
"""Streams that are searched for messages of the same id."""


async def find_position(scope_guard: ScopeGuard, wanted: str) -> int | None:
    """Return the position of a message; None if there is none of this id. Refuse what names no message."""
    text = wanted.strip().replace(",", "")
    if is_position(text):
        return int(text)
    known = parse_uuid(text)
    if known is None:
        raise InvalidMessage("message", "a position such as 81,244 is wanted, or the id of a message, a UUID")
    return next(reversed(await positions_of_id(scope_guard, known)), None)


async def message_at(scope_guard: ScopeGuard, position: int | None) -> Message[Any] | None:
    """Return the message at a position; None if there is none within the scope."""
    if position is None or not 0 < position <= MAX_POSITION_NUMBER:
        return None
    found = await scope_guard.mp.log.messages_at([position], raw=True)
    return found[0] if found and scope_guard.scope.has_stream(found[0].stream) else None


async def positions_of_id(scope_guard: ScopeGuard, id: UUID) -> list[int]:
    """Return the positions of messages with this id within the scope: each stream may have one."""
    log = scope_guard.mp.log
    positions = await log.find(id, limit=MAX_STREAMS_OF_ID)
    if scope_guard.scope.categories is None or not positions:
        return positions
    found = await log.streams_at(positions)
    within = {each.position for each in found if scope_guard.scope.has_stream(each.stream)}
    return [position for position in positions if position in within]


def parse_uuid(text: str | None) -> UUID | None:
    """Return the id that a text is; None if it is none."""
    try:
        return None if text is None else UUID(text)
    except ValueError:
        return None
