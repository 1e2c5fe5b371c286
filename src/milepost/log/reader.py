"""Reading in pages: bounded in messages and bytes, whatever the size of the log."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, LiteralString
from uuid import UUID

import msgspec

from milepost.errors import InvalidMessage, Unavailable
from milepost.log.codec import Codec
from milepost.log.connections import Executor
from milepost.log.database import end
from milepost.log.message import Message
from milepost.log.selection import Selection
from milepost.log.since import Since
from milepost.log.statements import Statements
from milepost.log.stream_names import StreamNames
from milepost.log.walk import Walk
from milepost.names import category_hash, category_of

if TYPE_CHECKING:
    from milepost.log.shared import Shared

PAGE_MESSAGES = 1000
PAGE_BYTES = 8 * 2**20
FIRST_SPAN = 10_000
"""How many positions the first statement of a read looks at."""
MAX_SPAN = 100_000
"""The most that one looks at where no index narrows the read."""
END = 2**63 - 1
"""Above every position and version."""

_NEVER_NONE = ("after", "after_version")
"""What a read always begins after."""

Page = list[Message[Any]]

_DIRECTIONS: dict[bool, LiteralString] = {False: "asc", True: "desc"}
_OF_LANES: LiteralString = "and (%(lanes)s::boolean[])[mod(m.bucket, cardinality(%(lanes)s::boolean[])) + 1]"

_NAMED: dict[str, LiteralString] = {
    "stream": "s.name",
    # By its index, one by one: a join would read all streams as soon as a page is large enough.
    "streams": """cross join lateral (
    select s.name from :"schema".streams s where s.stream_id = m.stream_id limit 1
) s""",
}
_NUMBERED: dict[str, LiteralString] = {"stream": "m.stream_id", "streams": ""}


@dataclass(frozen=True)
class Condition:
    """What a filter implies of a message's properties: a jsonpath predicate and the values it names."""

    path: str
    values: dict[str, int | str | bool]


@dataclass(frozen=True)
class Lanes:
    """Some of the shares into which streams are divided: those whose bucket modulo `of` is one of `numbers`."""

    of: int
    numbers: frozenset[int]


@dataclass(frozen=True)
class Query:
    """What one read is after, but for where it begins and ends."""

    selection: Selection = field(default_factory=Selection)
    since: Since | None = None
    condition: Condition | None = None
    filter: Callable[[Mapping[str, object]], bool] | None = None
    backwards: bool = False
    lanes: Lanes | None = None
    """Only messages of these; for pages, `accepts` does not look at it."""
    page: int = PAGE_MESSAGES
    """The most messages of a page."""
    page_bytes: int = PAGE_BYTES
    """A page ends with the message that brings its content to this size, so it has at least one."""

    def accepts(self, message: Message[Any]) -> bool:
        """Whether a message that was read without conditions is wanted."""
        return (
            self.selection.matches(message)
            and (self.since is None or self.since.wants(message))
            and (self.filter is None or self.filter(message.properties))
        )

    def filtered(self, page: Page, limit: int | None) -> Page:
        """What of a page is wanted after all: the index over categories has hashes, and a filter is exact here."""
        if self.filter is None and self._is_of_categories(page):
            return page
        return [message for message in page if self.accepts(message)][:limit]

    def _is_of_categories(self, page: Page) -> bool:
        categories = self.selection.categories
        return categories is None or categories.issuperset(map(category_of, {message.stream for message in page}))

    def page_size(self, limit: int | None) -> int:
        """How many messages to ask for when `limit` are still wanted."""
        return self.page if limit is None or self.filter is not None else min(self.page, limit)

    def cuts(self, page: Page, limit: int) -> bool:
        """Return True if there may be more within the range of a page that had at most `limit` messages."""
        return is_cut(page, limit, self.page_bytes)

    @property
    def ends_by_sizes(self) -> bool:
        """Whether sizes say where a page ends: it has all of the log, of categories or of lanes, in order."""
        return not (self.has_conditions or self.backwards or self.selection.streams is not None)

    @property
    def has_conditions(self) -> bool:
        """Whether messages are looked at before they are read, other than for what an index or a number says."""
        return bool(self.selection.types is not None or self.since or self.condition)

    @property
    def spans(self) -> tuple[int, int]:
        """How many positions one statement looks at, at first and at the most."""
        selection = self.selection
        indexed = selection.categories is not None or selection.streams is not None
        drops_nothing = not (self.has_conditions or self.lanes)
        return FIRST_SPAN, END if indexed or drops_nothing else MAX_SPAN

    @property
    def direction(self) -> LiteralString:
        """The order of the page."""
        return _DIRECTIONS[self.backwards]

    def parameters(self) -> dict[str, Any]:
        """The conditions, and the size of a page, as parameters of a statement."""
        selection, types = self.selection, self.selection.types
        condition, lanes = self.condition, self.lanes
        return {
            "hashes": sorted({category_hash(name) for name in selection.categories or ()}),
            "streams": sorted(selection.streams or ()),
            "any_type": types is None,
            "types": sorted(types.exact) if types else [],
            "type_pattern": types.pattern if types else None,
            "since": self.since.time if self.since else None,
            "since_above": self.since.above if self.since else 0,
            "lanes": [number in lanes.numbers for number in range(lanes.of)] if lanes else None,
            "where": condition.path if condition else None,
            "where_values": msgspec.json.encode(condition.values).decode() if condition else "{}",
            "bytes": self.page_bytes,
        }


class Reader:
    """Reads pages of messages through whatever runs its statements.

    With `names`, pages of the log come with the numbers of their streams, and names that are known are not read
    again: a third less work for PostgreSQL, and a round trip more where one is not known.
    """

    def __init__(self, statements: Statements, codec: Codec, names: StreamNames | None = None) -> None:
        self._statements = statements
        self._codec = codec
        self._names = names
        self._streams = _NUMBERED if names else _NAMED

    def remembering(self) -> "Reader":
        """One that remembers the names of streams: for pages that are many and large."""
        return Reader(self._statements, self._codec, StreamNames(self._statements))

    async def log_page(
        self, executor: Executor, query: Query, *, low: int, high: int, limit: int, life: UUID | None
    ) -> Page:
        """At most `limit` messages with `low < position <= high`; none if the server's life is another."""
        bounds = {"low": low, "high": high, "limit": limit, "life": life}
        rows = await executor.execute(self.log_statement(query), query.parameters() | bounds)
        if self._names is None:
            return self._messages(rows)
        return self._named(rows, await self._names.of(executor, {row[1] for row in rows}, life))

    def log_statement(self, query: Query) -> LiteralString:
        """The statement that reads a page of this query across streams."""
        if query.ends_by_sizes:
            return self._ended_by_sizes(query)
        if query.selection.streams is not None:
            return self._statements.get("read_streams", direction=query.direction, **self._streams)
        if query.selection.categories is not None:
            return self._statements.get("read_categories", direction=query.direction, **self._streams)
        return self._statements.get("read_log", direction=query.direction, **self._streams)

    def _ended_by_sizes(self, query: Query) -> LiteralString:
        get = self._statements.get
        lanes: LiteralString = _OF_LANES if query.lanes else ""
        if query.selection.categories is None:
            end = get("end_of_page", sizes=get("sizes_of_log", lanes=lanes))
            return get("read_everything", end=end, lanes=lanes, **self._streams)
        end = get("end_of_page", sizes=get("sizes_of_categories", lanes=lanes))
        return get("read_whole_categories", end=end, lanes=lanes, **self._streams)

    async def log_pages(
        self,
        executor: Executor,
        query: Query,
        *,
        low: int,
        high: int,
        limit: int | None,
        life: UUID | None,
        shared: "Shared | None" = None,
        looked: Callable[[int], None] = lambda _: None,
    ) -> AsyncGenerator[Page, None]:
        """All pages between two positions, both of them final. If `shared`, with others who read the same.

        As long as nothing was found, `looked` is told up to where: the position from which to go on.
        """
        if query.since is not None and low >= query.since.above:
            parameters = {"since": query.since.time}
            first = await executor.execute(self._statements.get("position_before"), parameters)
            low = max(low, first[0][0])
        walk = Walk(low, high, query.spans, backwards=query.backwards)
        found = False
        while not walk.is_over and limit != 0:
            begin, until = walk.bounds
            size = query.page_size(limit)
            fetch = partial(self.log_page, executor, query, low=begin, high=until, limit=size, life=life)
            page = await (shared.page(begin, until, size, fetch) if shared else fetch())
            if wanted := query.filtered(page, limit):
                found = True
                yield wanted
                limit = limit - len(wanted) if limit is not None else None
            walk.found([message.position for message in page], size, cut=query.cuts(page, size))
            if not found:
                looked(walk.place)
        await self._check_life(executor, life)

    async def messages_at(self, executor: Executor, positions: Sequence[int], *, life: UUID | None = None) -> Page:
        """Return the messages at these positions, as far as they are there.

        `life` is the life of the server in which the positions were learned; raises `Unavailable` in another one,
        where other messages may be at them. None: in any.
        """
        statement = self._statements.get("messages_at")
        rows = await executor.execute(statement, {"positions": list(positions), "life": life})
        if life is not None and len(rows) < len(positions):
            # They have gone, or the statement found another life.
            await self._check_life(executor, life)
        return self._messages(rows)

    async def pages_at(self, executor: Executor, positions: Sequence[int]) -> AsyncGenerator[Page, None]:
        """The same in pages, for who does not know how large they are."""
        statement = self._statements.get("page_at")
        left = sorted(positions)
        while left:
            rows = await executor.execute(statement, {"positions": left, "bytes": PAGE_BYTES})
            page = self._messages(rows)
            yield page
            left = left[bisect_right(left, page[-1].position) :] if is_cut(page, len(left), PAGE_BYTES) else []

    async def stream_pages(
        self,
        executor: Executor,
        stream: str,
        query: Query,
        *,
        after: int,
        after_version: int,
        before_version: int = END + 1,
        limit: int | None,
        looked: Callable[[int], None] = lambda _: None,
    ) -> AsyncGenerator[Page, None]:
        """All pages of one stream, by version, to its last committed message or before a version.

        As long as nothing was found, `looked` is told up to where: the version from which to go on.
        """
        statement = self._statements.get("read_stream")
        conditions = query.parameters() | {"stream": stream, "after": after, "backwards": query.backwards}
        # Who reads a short stream asks once. In a long one a page is where it is expected, or in all the rest.
        walk = Walk(after_version, before_version - 1, (END, END), backwards=query.backwards, open=True)
        found = False
        while not walk.is_over and limit != 0:
            low, high = walk.bounds
            size = query.page_size(limit)
            rows = await executor.execute(statement, conditions | {"low": low, "high": high, "limit": size})
            page = self._messages(rows)
            if wanted := query.filtered(page, limit):
                found = True
                yield wanted
                limit = limit - len(wanted) if limit is not None else None
            walk.found([message.version for message in page], size, cut=query.cuts(page, size))
            if not (found or walk.is_over):
                looked(walk.place)

    async def _check_life(self, executor: Executor, life: UUID | None) -> None:
        rows = await executor.execute(self._statements.get("current_life"), {})
        if not rows or rows[0][0] != life:
            raise Unavailable("PostgreSQL restarted while the log was being read: read again")

    def _messages(self, rows: Any) -> Page:
        codec = self._codec
        return [Message(*row, codec) for row in rows]  # type: ignore[call-arg]

    def _named(self, rows: Any, names: Mapping[int, str]) -> Page:
        codec = self._codec
        # Spelled out: a row that is taken apart and put together with `*` costs twice as much.
        return [
            Message(position, names[number], version, id_, type_, time, size, raw, properties, metadata, codec)
            for position, number, version, id_, type_, time, size, raw, properties, metadata in rows
        ]


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


def check_number(name: str, number: object) -> None:
    """Refuse what is no whole number from 0 on, under the name that it was given by."""
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= END:
        raise InvalidMessage(name, f"a whole number from 0 on is wanted, not {number!r}")


def check_bounds(stream: object, *, since: datetime | None, **numbers: int | None) -> None:
    """Refuses what a read cannot begin or end with: `numbers` are its options of these names."""
    for name, number in numbers.items():
        if number is not None or name in _NEVER_NONE:
            check_number(name, number)
    if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
        raise InvalidMessage("since", "a datetime with a time zone is wanted")
    if isinstance(stream, str) and numbers["before"] is not None:
        raise InvalidMessage("before", "it is for reading across streams: before_version is for one")
    if not isinstance(stream, str) and (numbers["after_version"] or numbers["before_version"] is not None):
        raise InvalidMessage("stream", "after_version and before_version are for reading one stream")


def is_cut(page: Page, limit: int, max_bytes: int) -> bool:
    """Whether there may be more within the range of a page: it is full in messages or in bytes."""
    return len(page) >= limit or sum(message.size for message in page) >= max_bytes
