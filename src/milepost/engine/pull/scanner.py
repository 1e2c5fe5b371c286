"""Read the log after the cursor of pulled subscriptions, and keep a bounded part of it for the next pull."""

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any
from uuid import UUID

import msgspec

from milepost.concurrency import cancel_and_wait
from milepost.engine.declare.consumer_options import ConsumerSubscriptionOptions
from milepost.engine.declare.context import ProgressLocation
from milepost.engine.declare.order import Order
from milepost.engine.lanes.held_lane import ReplayMarks
from milepost.engine.runtime import Runtime
from milepost.errors import Unavailable
from milepost.log.message import Message
from milepost.log.query import PAGE_MESSAGES, Page, Query
from milepost.progress.deliveries import ClaimReply, ScannedLog
from milepost.progress.protocol import PassedBeforeReplay
from milepost.ranges import ALL_POSITIONS, Ranges


@dataclass(frozen=True)
class LogOffer:
    """A part of the log, as it is offered."""

    scanned: ScannedLog
    messages: Mapping[int, Message[Any]]
    """By position."""


@dataclass(frozen=True, kw_only=True)
class ReadAheadPart:
    """What a subscription wants of the log between two positions, by one definition."""

    number: int
    epoch: int
    life: UUID | None
    low: int
    high: int
    messages: Page
    keys: Sequence[str] | None
    fresh: Set[int] = frozenset()
    """The positions that had not been handled before, where a replay is under way."""

    @cached_property
    def size(self) -> int:
        """Bytes of its messages."""
        return sum(message.size for message in self.messages)

    @cached_property
    def middle(self) -> int:
        """The position of the message in its middle."""
        return self.messages[len(self.messages) // 2].position if self.messages else self.high

    def is_for(self, reply: ClaimReply) -> bool:
        """Whether the cursor is within, and nothing has changed."""
        within = self.low <= reply.position < self.high
        return within and (self.number, self.epoch) == (reply.number, reply.epoch)

    def part(self, above: int, most: int) -> LogOffer:
        """At most so many messages above a position."""
        begin = bisect_right(self.messages, above, key=_message_position)
        messages = self.messages[begin : begin + most]
        is_last = begin + most >= len(self.messages)
        scanned = ScannedLog(
            number=self.number,
            epoch=self.epoch,
            above=above,
            position=self.high if is_last else messages[-1].position,
            life=self.life,
            positions=[message.position for message in messages],
            sizes=[message.size for message in messages],
            keys=None if self.keys is None else self.keys[begin : begin + most],
            fresh=[message.position for message in messages if message.position in self.fresh],
        )
        return LogOffer(scanned, {message.position: message for message in messages})


def _message_position(message: Message[Any]) -> int:
    return message.position


MAX_KEPT_PART_BYTES = 2**20
"""Bytes of messages that are kept for the next pull; of more, only what is wanted now is read."""
MAX_CROWD_FACTOR = 16
"""How many times what is wanted is offered, at most, where others pull too: they move the cursor meanwhile."""

ReadPart = Callable[[], Coroutine[Any, Any, ReadAheadPart | None]]
"""Reads a part of the log."""
BeginReading = Callable[[ReadPart], asyncio.Task[ReadAheadPart | None] | None]
"""Begins to read, if there is room for it."""


@lru_cache(maxsize=100)
def options_from_stored(name: str, settings: bytes) -> ConsumerSubscriptionOptions:
    """A subscription by its stored settings."""
    return ConsumerSubscriptionOptions.from_stored(name, msgspec.json.decode(settings))


class PullScanner:
    """Reads on from wherever the cursor is, a bounded part at a time and up to the horizon.

    It remembers how the subscription stood, and what it has read: more each time, as long as that is of use. When
    half of it is handed out, the next part is read.
    """

    def __init__(self, runtime: Runtime, name: str, begin: BeginReading) -> None:
        self._runtime = runtime
        self.name = name
        """Of the subscription."""
        self._begin = begin
        self._known: ClaimReply | None = None
        self.part_ahead: ReadAheadPart | None = None
        """What was read of the log and not handed out; None: nothing is kept."""
        self._size = 0
        self._span: int | None = None
        self._crowd = 1
        self._ahead: asyncio.Task[ReadAheadPart | None] | None = None
        self._closed = False
        self._is_outdated = False
        """Whether what is known of the horizon may be of an earlier life of the server."""
        self.offering = asyncio.Lock()
        """Whoever has it offers a part of the log."""

    @property
    def size(self) -> int:
        """Bytes of messages that are here."""
        size = 0 if self.part_ahead is None else self.part_ahead.size
        ahead = None if self._ahead is None else _finished_part(self._ahead)
        return size if ahead is None else size + ahead.size

    def learn(self, reply: ClaimReply) -> None:
        """The subscription stands like this."""
        self._known = None if reply.ready else reply
        if reply.outcome == "lost":
            self._crowd = min(self._crowd * 2, MAX_CROWD_FACTOR)
        elif reply.outcome == "stale":
            self.part_ahead = None
            self._is_outdated = True
        elif reply.outcome == "converted":
            self._crowd = max(self._crowd // 2, 1)

    async def likely(self, want: int) -> LogOffer | None:
        """What can be offered without asking first how the subscription stands, if that is known well enough."""
        known = self._known
        if known is None or (not self._has(known) and known.position >= self._runtime.log.known_horizon.position):
            return None
        return await self.next(known, want)

    async def next(self, reply: ClaimReply, want: int) -> LogOffer | None:
        """A part of the log after the cursor, with about so many messages that are wanted; None: there is none."""
        if not self._has(reply):
            self.part_ahead = await self._read_ahead(reply) or await self._read(reply, want)
        read_ahead = self.part_ahead
        if read_ahead is None:
            return None
        part = read_ahead.part(reply.position, want * self._crowd)
        if read_ahead.size > MAX_KEPT_PART_BYTES or self._closed:
            self.part_ahead, self._size = None, 0
        elif part.scanned.position >= read_ahead.middle:
            self._begin_ahead(msgspec.structs.replace(reply, position=read_ahead.high), want)
        return part

    def _begin_ahead(self, reply: ClaimReply, want: int) -> None:
        """Begins to read what comes next: it is there when whoever pulls has settled."""
        if self._ahead is None and not self._closed and reply.position < self._runtime.log.known_horizon.position:
            self._ahead = self._begin(partial(self._read, reply, want))

    async def _read_ahead(self, reply: ClaimReply) -> ReadAheadPart | None:
        """What was read ahead, if that is what is wanted."""
        ahead = self._ahead
        if ahead is None:
            return None
        await asyncio.wait([ahead])
        if self._ahead is ahead:
            self._ahead = None
        read_ahead = _finished_part(ahead)
        return read_ahead if read_ahead is not None and read_ahead.is_for(reply) else None

    def close(self) -> None:
        """Keeps nothing, and reads nothing ahead any more."""
        self._closed = True
        ahead, self._ahead, self.part_ahead = self._ahead, None, None
        if ahead is not None:
            ahead.cancel()

    def _has(self, reply: ClaimReply) -> bool:
        return self.part_ahead is not None and self.part_ahead.is_for(reply)

    async def _read(self, reply: ClaimReply, want: int) -> ReadAheadPart | None:
        horizon, life = await self._horizon(reply.position)
        if reply.position >= horizon:
            return None
        options = options_from_stored(self.name, bytes(reply.settings))
        query = options.query(reply.since)
        size = self._next_size(query, want)
        high = min(horizon, reply.position + self._next_span(query))
        page = await self._runtime.log.page(query, low=reply.position, high=high, limit=size, life=life)
        cut = query.cuts(page, size)
        reached = page[-1].position if cut else high
        self._adapt_span(query, cut=cut)
        if self._is_elsewhere:
            await self._check(reached, life)
        wanted = _selected_messages(query, page, Ranges(zip(reply.ahead[::2], reply.ahead[1::2], strict=True)))
        order = options.declaration.ordered_by
        return ReadAheadPart(
            number=reply.number,
            epoch=reply.epoch,
            life=None if self._is_elsewhere else life,
            low=reply.position,
            high=reached,
            messages=wanted,
            keys=order.keys(wanted),
            fresh=_positions_not_handled_before(wanted, reply.memories, order),
        )

    async def _horizon(self, position: int) -> tuple[int, UUID | None]:
        horizon = self._runtime.log.known_horizon
        if self._is_outdated or horizon.life is None or position >= horizon.position:
            horizon = await self._runtime.log.current_horizon()
            self._is_outdated = False
        return horizon.position, horizon.life

    # Where the log is in another database than the rows

    @property
    def _is_elsewhere(self) -> bool:
        return self._runtime.services.progress_location is ProgressLocation.IN_ANOTHER_DATABASE

    async def _check(self, reached: int, life: UUID | None) -> None:
        """Makes sure that the log is still what it was, before its messages are passed."""
        log, following = self._runtime.log, self._runtime.services.following
        if not await log.is_in_life(life):
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


def _finished_part(task: asyncio.Task[ReadAheadPart | None]) -> ReadAheadPart | None:
    """What it has read, if it ended well."""
    if not task.done() or task.cancelled() or task.exception():
        return None
    return task.result()


def _selected_messages(query: Query, page: Page, ahead: Ranges) -> Page:
    found = query.filtered(page, None)
    return [message for message in found if message.position not in ahead] if len(ahead) else found


def _positions_not_handled_before(
    page: Page, memories: Sequence[PassedBeforeReplay] | None, order: Order
) -> Set[int]:
    """The positions of those that had not been handled before, while a replay is under way."""
    if memories is None:
        return frozenset()
    handled = ReplayMarks(ALL_POSITIONS, memories, order)
    return {message.position for message in page if message not in handled}


MAX_SCANNERS = 1000
"""Of so many subscriptions it is remembered how they stood, and what was read ahead."""
MAX_READ_AHEAD_BYTES = 16 * 2**20
"""Bytes of messages that are read ahead, of all subscriptions together: who was pulled longest ago goes first."""
MAX_CONCURRENT_READS = 4
"""How many read ahead at the same time: what they read is not counted before they have it."""


class PullScanners:
    """One `PullScanner` for each subscription that was pulled from lately; the last one is always kept."""

    def __init__(self) -> None:
        self._scanners: OrderedDict[tuple[str, str], PullScanner] = OrderedDict()
        self.reads_under_way: set[asyncio.Task[ReadAheadPart | None]] = set()
        """Tasks that read ahead now, at most `MAX_CONCURRENT_READS`."""

    def __iter__(self) -> Iterator[PullScanner]:
        """Who was pulled longest ago comes first."""
        return iter(self._scanners.values())

    def of(self, runtime: Runtime, group: str, name: str) -> PullScanner:
        """The one of a subscription that is pulled from now."""
        scanner = self._scanners.pop((group, name), None) or PullScanner(runtime, name, self._begin)
        self._scanners[group, name] = scanner
        return scanner

    @property
    def size(self) -> int:
        """Bytes of messages that are here."""
        return sum(scanner.size for scanner in self)

    def make_room(self) -> None:
        """Forgets what is too much. Called whenever something may have been read."""
        size = self.size
        while len(self._scanners) > 1 and (len(self._scanners) > MAX_SCANNERS or size > MAX_READ_AHEAD_BYTES):
            _, oldest = self._scanners.popitem(last=False)
            size -= oldest.size
            oldest.close()

    async def close(self) -> None:
        """Forgets everything, and reads nothing ahead any more."""
        while self._scanners:
            self._scanners.popitem()[1].close()
        for task in list(self.reads_under_way):
            await cancel_and_wait(task)

    def _begin(self, read: ReadPart) -> asyncio.Task[ReadAheadPart | None] | None:
        """Reads ahead, unless enough others do: whoever pulls next reads it then."""
        if len(self.reads_under_way) >= MAX_CONCURRENT_READS:
            return None
        task = asyncio.create_task(read(), name="milepost-scanning")
        self.reads_under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[ReadAheadPart | None]) -> None:
        self.reads_under_way.discard(task)
        if not task.cancelled():
            # Looked at, so that nobody is told of an error of one that is forgotten.
            task.exception()
        self.make_room()
