"""Reading in pages: bounded in messages and bytes, whatever the size of the log."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

import msgspec

from milepost.errors import Unavailable
from milepost.log.codec import Codec
from milepost.log.connections import Executor
from milepost.log.database import end
from milepost.log.message import Message
from milepost.log.selection import Selection
from milepost.log.statements import Statements
from milepost.names import category_hash

PAGE_MESSAGES = 1000
PAGE_BYTES = 8 * 2**20
FIRST_SPAN = 10_000
"""How many positions the first statement of a selective read looks at."""
MAX_SPAN = 100_000
"""The most that one looks at where no index narrows the read."""
END = 2**63 - 1
"""Above every position and version."""

Page = list[Message[Any]]

_DIRECTIONS: dict[bool, LiteralString] = {False: "asc", True: "desc"}
_BY_STREAM: LiteralString = """and m.stream_id = any(array(
              select s.stream_id from :"schema".streams s where s.name = any(%(streams)s::text[])))"""


@dataclass(frozen=True)
class Condition:
    """What a filter implies of a message's properties: a jsonpath predicate and the values it names."""

    path: str
    values: dict[str, int | str | bool]


@dataclass(frozen=True)
class Lanes:
    """Some of the shares into which streams are divided: those whose bucket modulo `of` is one of `numbers`."""

    of: int
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Query:
    """What one read is after, but for where it begins and ends."""

    selection: Selection = field(default_factory=Selection)
    since: datetime | None = None
    condition: Condition | None = None
    filter: Callable[[Mapping[str, object]], bool] | None = None
    backwards: bool = False
    lanes: Lanes | None = None
    """Only messages of these; for pages, `accepts` does not look at it."""
    page: int = PAGE_MESSAGES
    """The most messages of a page."""

    def accepts(self, message: Message[Any]) -> bool:
        """Whether a message that was read without conditions is wanted."""
        return (
            self.selection.matches(message)
            and (self.since is None or message.time >= self.since)
            and (self.filter is None or self.filter(message.properties))
        )

    def filtered(self, page: Page, limit: int | None) -> Page:
        """What of a page is wanted after all: the index over categories has hashes, and a filter is exact here."""
        if self.selection.categories is None and self.filter is None:
            return page
        return [message for message in page if self.accepts(message)][:limit]

    def page_size(self, limit: int | None) -> int:
        """How many messages to ask for when `limit` are still wanted."""
        return self.page if limit is None or self.filter is not None else min(self.page, limit)

    @property
    def whole(self) -> bool:
        """Whether it reads every message, forwards."""
        narrowed = self.since or self.condition or self.filter or self.backwards or self.lanes
        return self.selection.everything and not narrowed

    @property
    def spans(self) -> tuple[int, int]:
        """How many positions one statement looks at, at first and at the most."""
        selection = self.selection
        indexed = selection.categories is not None or selection.streams is not None
        conditions = selection.types is not None or self.since or self.condition or self.lanes
        # Where it reads in order and drops nothing, its limit bounds a statement well enough.
        if not conditions and selection.streams is None and len(selection.categories or ()) <= 1:
            return END, END
        return FIRST_SPAN, END if indexed else MAX_SPAN

    @property
    def direction(self) -> LiteralString:
        """The order of the page."""
        return _DIRECTIONS[self.backwards]

    def parameters(self) -> dict[str, Any]:
        """The conditions as parameters of a statement."""
        selection, types = self.selection, self.selection.types
        condition, lanes = self.condition, self.lanes
        return {
            "hashes": sorted({category_hash(name) for name in selection.categories or ()}),
            "streams": sorted(selection.streams or ()),
            "any_type": types is None,
            "types": sorted(types.exact) if types else [],
            "type_pattern": types.pattern if types else None,
            "since": self.since,
            "lanes": lanes.of if lanes else None,
            "lane_numbers": list(lanes.numbers) if lanes else [],
            "where": condition.path if condition else None,
            "where_values": msgspec.json.encode(condition.values).decode() if condition else "{}",
        }


class Reader:
    """Reads pages of messages through whatever runs its statements."""

    def __init__(self, statements: Statements, codec: Codec) -> None:
        self._statements = statements
        self._codec = codec

    async def log_page(
        self, executor: Executor, query: Query, *, low: int, high: int, limit: int, life: UUID | None
    ) -> Page:
        """At most `limit` messages with `low < position <= high`; none if the server's life is another."""
        bounds = {"low": low, "high": high, "limit": limit, "life": life, "bytes": PAGE_BYTES}
        return self._messages(await executor.execute(self.log_statement(query), query.parameters() | bounds))

    def log_statement(self, query: Query) -> LiteralString:
        """The statement that reads a page of this query across streams."""
        if query.whole:
            return self._statements.get("read_everything")
        if query.selection.streams is not None:
            return self._statements.get("read_log", direction=query.direction, access=_BY_STREAM)
        if query.selection.categories is not None:
            return self._statements.get("read_categories", direction=query.direction)
        return self._statements.get("read_log", direction=query.direction, access="")

    async def log_pages(
        self,
        executor: Executor,
        query: Query,
        *,
        low: int,
        high: int,
        limit: int | None,
        life: UUID | None,
    ) -> AsyncGenerator[Page, None]:
        """All pages between two positions, both of them final."""
        if query.since is not None:
            first = await executor.execute(self._statements.get("position_before"), {"since": query.since})
            low = max(low, first[0][0])
        first_span, max_span = query.spans
        span = first_span
        while low < high and limit != 0:
            size = query.page_size(limit)
            begin = max(low, high - span) if query.backwards else low
            until = high if query.backwards else min(high, low + span)
            page = await self.log_page(executor, query, low=begin, high=until, limit=size, life=life)
            cut = is_cut(page, size)
            if wanted := query.filtered(page, limit):
                yield wanted
                limit = limit - len(wanted) if limit is not None else None
            span = max(first_span, span // 2) if cut else min(span * 4, max_span)
            if query.backwards:
                high = page[-1].position - 1 if cut else begin
            else:
                low = page[-1].position if cut else until
        await self._check_life(executor, life)

    async def messages_at(self, executor: Executor, positions: Sequence[int]) -> Page:
        """The messages at these positions, as far as they are there."""
        statement = self._statements.get("messages_at")
        return self._messages(await executor.execute(statement, {"positions": list(positions)}))

    async def stream_pages(
        self,
        executor: Executor,
        stream: str,
        query: Query,
        *,
        after: int,
        after_version: int,
        limit: int | None,
    ) -> AsyncGenerator[Page, None]:
        """All pages of one stream, by version, to its last committed message."""
        statement = self._statements.get("read_stream", direction=query.direction)
        conditions = query.parameters() | {"stream": stream, "after": after, "bytes": PAGE_BYTES}
        low, high = after_version, END
        while limit != 0:
            size = query.page_size(limit)
            rows = await executor.execute(statement, conditions | {"low": low, "high": high, "limit": size})
            page = self._messages(rows)
            if wanted := query.filtered(page, limit):
                yield wanted
                limit = limit - len(wanted) if limit is not None else None
            if not is_cut(page, size):
                return
            if query.backwards:
                high = page[-1].version - 1
            else:
                low = page[-1].version

    async def _check_life(self, executor: Executor, life: UUID | None) -> None:
        rows = await executor.execute(self._statements.get("current_life"), {})
        if not rows or rows[0][0] != life:
            raise Unavailable("PostgreSQL restarted while the log was being read: read again")

    def _messages(self, rows: Any) -> Page:
        codec = self._codec
        return [Message(*row, codec) for row in rows]  # type: ignore[call-arg]


async def one_ahead(pages: AsyncGenerator[Page, None]) -> AsyncGenerator[Page, None]:
    """The same pages, the next of which is fetched while one is worked on."""
    fetching = asyncio.create_task(_next(pages))
    try:
        while (page := await fetching) is not None:
            fetching = asyncio.create_task(_next(pages))
            # It is on its way before the page is worked on.
            await asyncio.sleep(0)
            yield page
    finally:
        await end(fetching)
        await pages.aclose()


async def _next(pages: AsyncGenerator[Page, None]) -> Page | None:
    return await anext(pages, None)


def is_cut(page: Page, limit: int) -> bool:
    """Whether there may be more within the range of a page: it is full in messages or in bytes."""
    return len(page) >= limit or sum(message.size for message in page) >= PAGE_BYTES
