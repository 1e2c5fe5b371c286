"""Read messages in pages, bounded in messages and bytes, whatever the size of the log."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, LiteralString
from uuid import UUID
from weakref import WeakValueDictionary

from milepost.errors import Unavailable
from milepost.log.codec import Codec
from milepost.log.message import Message
from milepost.log.query import (
    Page,
    Query,
    page_memory_bytes,
)
from milepost.names import MAX_POSITION_NUMBER
from milepost.postgres.connections import Executor
from milepost.postgres.statements import Statements, array_literal

MAX_KEPT_NAMES = 100_000
"""How many names a process keeps: some 20 MB."""


class StreamNameCache:
    """The names that were looked up before; while the server lives they never change. When full it begins anew.

    A crash can take streams back whose commits were not on disk, and their numbers are drawn again.
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._names: dict[int, str] = {}
        self._life: UUID | None = None

    async def of(self, executor: Executor, numbers: set[int], life: UUID | None) -> Mapping[int, str]:
        """At least the names of these, which were read in this life of the server."""
        if life != self._life:
            self._names, self._life = {}, life
        names = self._names
        missing = numbers.difference(names)
        if missing:
            statement = self._statements.get("stream_names")
            parameters = {"numbers": array_literal(sorted(missing)), "life": life}
            names.update(await executor.execute(statement, parameters))
            if not names.keys() >= missing:
                raise Unavailable("PostgreSQL restarted while the log was being read: read again")
            if len(names) > MAX_KEPT_NAMES and names is self._names:
                # Who has the old ones keeps them as long as it needs them.
                self._names = {}
        return names


class RangeScan:
    """From one number to another, either way, in spans of which each is to bring one page.

    `spans` are the first and the widest. PostgreSQL takes a long range for a short one as long as it knows nothing
    of a table, and then reads all of it for each page, whatever the page's limit: so ranges are short, as far as
    that is possible.

    If it is `open`, something may still appear where nothing was: after the last number. Then a page that did not
    fill its span is followed by one of all the rest.
    """

    def __init__(
        self, low: int, high: int, spans: tuple[int, int], *, backwards: bool, open: bool = False
    ) -> None:
        self._low = low
        self._high = high
        self._span, self._widest = spans
        self._backwards = backwards
        self._open = open

    @property
    def is_over(self) -> bool:
        """Whether all has been looked at."""
        return self._low >= self._high

    @property
    def place(self) -> int:
        """From where to go on."""
        return self._high + 1 if self._backwards else self._low

    @property
    def bounds(self) -> tuple[int, int]:
        """What to look at next: above the first, up to the second."""
        if self._backwards:
            return max(self._low, self._high - self._span), self._high
        return self._low, min(self._high, self._low + self._span)

    def note_found(self, numbers: Sequence[int], size: int, *, cut: bool) -> None:
        """What there was within the bounds. If the page of this size was `cut`, there may be more of it there."""
        low, high = self.bounds
        if not cut:
            is_end_open = self._open and not self._backwards and high < self._high
            if not is_end_open:
                self._go_on_from(low if self._backwards else high)
            elif numbers:
                self._go_on_from(numbers[-1])
            self._span = self._widest if self._open else min(self._span * 4, self._widest)
            return
        self._go_on_from(numbers[-1] - 1 if self._backwards else numbers[-1])
        # What one full page took, and a little more: several categories are each read through the whole of it.
        took = abs(numbers[-1] - numbers[0]) + 1
        self._span = min(self._span, took * size * 11 // (len(numbers) * 10))

    def _go_on_from(self, number: int) -> None:
        if self._backwards:
            self._high = number
        else:
            self._low = number


SHARED_KEEP_BYTES = 8 * 2**20
"""The most that is kept for those who come to the same place a little later."""
MAX_KEPT_PAGES = 4
"""The same in pages of the largest size: it is less where pages are small."""

SharedPageKey = tuple[int, int]
"""After which position, and how many messages at the most."""


class SharedPages:
    """The last pages of one query. With a single reader it keeps none."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._max_kept_bytes = min(SHARED_KEEP_BYTES, MAX_KEPT_PAGES * query.page_bytes)
        self.readers = 0
        self._pages: OrderedDict[SharedPageKey, Page] = OrderedDict()
        self._kept = 0
        self._locks: WeakValueDictionary[SharedPageKey, asyncio.Lock] = WeakValueDictionary()

    @contextmanager
    def read(self) -> Iterator[None]:
        """Counts a reader from the beginning of the block to its end."""
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1
            if self.readers < 2:
                self._pages.clear()
                self._kept = 0

    async def page(self, low: int, high: int, size: int, fetch: Callable[[], Awaitable[Page]]) -> Page:
        """The page above `low`, up to `high`: one that is there, or is on its way, or else what `fetch` brings."""
        if self.readers < 2:
            return await fetch()
        place = (low, size)
        async with self._locks.setdefault(place, asyncio.Lock()):
            page = self._pages.get(place)
            if page is None or page[-1].position > high:
                page = await fetch()
                self._keep(place, page)
            return page

    def _keep(self, place: SharedPageKey, page: Page) -> None:
        # One that is not full ends where its reader looked no further.
        if place in self._pages or not self._query.cuts(page, place[1]):
            return
        self._pages[place] = page
        self._kept += page_memory_bytes(page)
        while self._kept > self._max_kept_bytes:
            _, oldest = self._pages.popitem(last=False)
            self._kept -= page_memory_bytes(oldest)


_LANES_CONDITION: LiteralString = (
    "and (%(lanes)s::boolean[])[mod(m.bucket, cardinality(%(lanes)s::boolean[])) + 1]"
)

_STREAMS_BY_NAME: dict[str, LiteralString] = {
    "stream": "s.name",
    # By its index, one by one: a join would read all streams as soon as a page is large enough.
    "streams": """cross join lateral (
    select s.name from :"schema".streams s where s.stream_id = m.stream_id limit 1
) s""",
}
_STREAMS_BY_NUMBER: dict[str, LiteralString] = {"stream": "m.stream_id", "streams": ""}


class Reader:
    """Reads pages of messages through whatever runs its statements.

    With `names`, pages of the log come with the numbers of their streams, and names that are known are not read
    again: a third less work for PostgreSQL, and a round trip more where one is not known.
    """

    def __init__(self, statements: Statements, codec: Codec, names: StreamNameCache | None = None) -> None:
        self._statements = statements
        self._codec = codec
        self._names = names
        self._streams = _STREAMS_BY_NUMBER if names else _STREAMS_BY_NAME

    def with_stream_names(self) -> "Reader":
        """One that remembers the names of streams: for pages that are many and large."""
        return Reader(self._statements, self._codec, StreamNameCache(self._statements))

    def without_classes(self) -> "Reader":
        """Return a reader of messages as they are stored: no class of a program decodes them."""
        return Reader(self._statements, self._codec.without_classes())

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
        lanes: LiteralString = _LANES_CONDITION if query.lanes else ""
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
        shared: "SharedPages | None" = None,
        looked: Callable[[int], None] = lambda _: None,
    ) -> AsyncGenerator[Page, None]:
        """All pages between two positions, both of them final. If `shared`, with others who read the same.

        As long as nothing was found, `looked` is told up to where: the position from which to go on.
        """
        if query.since is not None and low >= query.since.above:
            parameters = {"since": query.since.time}
            first = await executor.execute(self._statements.get("position_before"), parameters)
            low = max(low, first[0][0])
        walk = RangeScan(low, high, query.spans, backwards=query.backwards)
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
            walk.note_found([message.position for message in page], size, cut=query.cuts(page, size))
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

    async def page_at(self, executor: Executor, positions: Sequence[int], max_bytes: int) -> Page:
        """Return the first messages at these positions: at most so many bytes, and at least one message."""
        parameters = {"positions": sorted(positions), "bytes": max_bytes}
        return self._messages(await executor.execute(self._statements.get("page_at"), parameters))

    async def stream_pages(
        self,
        executor: Executor,
        stream: str,
        query: Query,
        *,
        after: int,
        after_version: int,
        before_version: int = MAX_POSITION_NUMBER + 1,
        limit: int | None,
        looked: Callable[[int], None] = lambda _: None,
    ) -> AsyncGenerator[Page, None]:
        """All pages of one stream, by version, to its last committed message or before a version.

        As long as nothing was found, `looked` is told up to where: the version from which to go on.
        """
        statement = self._statements.get("read_stream")
        conditions = query.parameters() | {"stream": stream, "after": after, "backwards": query.backwards}
        # Who reads a short stream asks once. In a long one a page is where it is expected, or in all the rest.
        walk = RangeScan(
            after_version,
            before_version - 1,
            (MAX_POSITION_NUMBER, MAX_POSITION_NUMBER),
            backwards=query.backwards,
            open=True,
        )
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
            walk.note_found([message.version for message in page], size, cut=query.cuts(page, size))
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
