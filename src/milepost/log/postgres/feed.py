"""The live feed: the head of the log, fetched once and shared by all followers of a process, and the history
behind it."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from time import monotonic
from typing import Any, Final
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from milepost.concurrency import cancel_and_wait
from milepost.errors import MilepostError, Unavailable
from milepost.log.message import Message
from milepost.log.postgres.horizon import Horizon
from milepost.log.postgres.reader import Reader, SharedPages
from milepost.log.postgres.wakeups import Wakeups
from milepost.log.protocol import FindStart
from milepost.log.query import (
    PAGE_BYTES,
    PAGE_MESSAGES,
    Now,
    Page,
    Query,
    Segment,
    fetch_ahead,
)
from milepost.names import MAX_POSITION_NUMBER
from milepost.postgres.bulk import BulkExecutor
from milepost.postgres.pool import Database
from milepost.postgres.statements import Statements
from milepost.ranges import Ranges

logger = logging.getLogger("milepost.log.feed")

HISTORY_OUTAGE_PAUSE_SECONDS = 0.1
"""Seconds to wait while the database is unavailable."""


class LogHistory:
    """Reads the log up to the horizon."""

    def __init__(self, database: Database, horizon: Horizon, reader: Reader) -> None:
        self._bulk = BulkExecutor(database)
        self._horizon = horizon
        self.reader = reader.with_stream_names()
        """Reads pages, and remembers the names of streams."""
        self._shared: WeakValueDictionary[bytes, SharedPages] = WeakValueDictionary()

    def close(self) -> None:
        """Ends its threads."""
        self._bulk.close()

    async def after(self, query: Query, position: int) -> AsyncGenerator[Segment, None]:
        """What lies between a position and the horizon; ends early while the database is unavailable."""
        known, life = self._horizon.position, self._horizon.life
        subject = msgspec.json.encode([life, self.reader.log_statement(query), query.parameters()])
        shared = self._shared.setdefault(subject, SharedPages(query))
        pages = self.reader.log_pages(
            self._bulk, query, low=position, high=known, limit=None, life=life, shared=shared
        )
        try:
            with shared.read():
                async with aclosing(fetch_ahead(pages)) as ahead:
                    async for page in ahead:
                        yield Segment(position, page[-1].position, page, life)
            yield Segment(position, known, [], life)
        except Unavailable as error:
            logger.debug("reading waits: %s", error)
            await asyncio.sleep(HISTORY_OUTAGE_PAUSE_SECONDS)


FEED_KEEP_BYTES = 16 * 2**20
"""What the feed keeps for followers that lag a little; who falls further behind reads history instead."""
FEED_POLL_SECONDS = 5.0
"""Seconds between two looks of a sleeping feed, in case a wake-up was lost after all. At most
`SLEEP_COVER_TIME`."""
UNNOTIFIED_POLL_SECONDS = (0.05, 0.4)
"""Shortest and longest pause between two looks where notifications do not arrive, in seconds: the latency there.
It is the shortest after news, and grows while there are none."""
MAX_FULL_PAGES = 3
"""After so many full pages in a row the feed looks how much more there is."""
FEED_JUMP_POSITIONS = 10_000
"""How many positions it may be behind before it leaves them to those who follow."""
FEED_REST_SECONDS = 0.02
"""Seconds that the feed waits for more, after news and before it sees to its next sleep: whoever appends meanwhile
need not wait for that."""
FEED_SHORT_REST_SECONDS = 0.002
"""The same where no mark is in force: nobody would tell of what comes."""
MAX_UNMARKED_POSITIONS = 3
"""When no more messages than these came meanwhile, it makes sure that the next append tells of itself. When more
did, it looks anyway, and nobody pays for notifications."""
FEED_SAMPLE_SECONDS = 1.0
"""Seconds after which it sees to it all the same: the mark that wakes it has to be renewed."""
STALLED_PAUSE_SECONDS = (0.0005, 0.1)
"""Shortest and longest pause while somebody is appending and nothing is final yet, in seconds."""
DEAF_SHARE = 0.2
"""The part of such a pause that no notification ends: it bounds how often the horizon is asked for."""
FEED_OUTAGE_PAUSE_SECONDS = (0.05, 0.25)
"""Shortest and longest pause while the database is unavailable, in seconds. The first statement of this process
that succeeds ends it."""

MAX_MARKS_BEFORE_BEGINNING = 32
"""How many messages before its beginning it knows: after a crash it looks which of them survived."""

ALL_MESSAGES: Final = Query()


class FeedFollower(AbstractAsyncContextManager[None]):
    """Joins at the beginning of a block and leaves at its end.

    It is no generator: at the end of a program the loop closes those that are left, all at the same time, the
    outer one that waits for an inner one too.
    """

    def __init__(self, join: Callable[[], None], leave: Callable[[], Awaitable[None]]) -> None:
        self._join = join
        self._leave = leave

    async def __aenter__(self) -> None:
        self._join()

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self._leave()


class Feed:
    """Follows the head while it has followers."""

    def __init__(
        self,
        database: Database,
        statements: Statements,
        horizon: Horizon,
        reader: Reader,
        wakeups: Wakeups,
    ) -> None:
        self._database = database
        self._statements = statements
        self._horizon = horizon
        self._reader = reader
        self._wakeups = wakeups
        self.history = LogHistory(database, horizon, reader)
        """What lies behind the head."""
        self._followers = 0
        self._task: asyncio.Task[None] | None = None
        self._failed: BaseException | None = None
        self._changed = asyncio.Event()
        self._woken: set[asyncio.Event] = set()
        self._recent: deque[Segment] = deque()
        self._kept = 0
        self._consumed = 0
        self._generation = -1
        self._life: UUID | None = None
        self._lives: list[tuple[UUID | None, int]] = []
        """All lives that it knew, and up to where the log was in each what it had been in the one before."""
        self._rewinds: list[int] = []
        self._held = False
        self._unheard = UNNOTIFIED_POLL_SECONDS[0]
        """The next pause where notifications do not arrive."""
        self._full_pages = 0
        self._sample_by = 0.0
        self._beyond = False
        """Whether the last page had messages that were not final."""
        self._closed = False
        self.poll: float | None = FEED_POLL_SECONDS
        # It may be asleep when somebody else finds another life.
        horizon.on_new_life = wakeups.wake

    async def close(self) -> None:
        """Ends it for good; whoever still follows is told."""
        self._closed = True
        self._failed = MilepostError("this Milepost was closed while it was followed")
        self._announce()
        await self._stop()
        self.history.close()

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait(task)
        # Somebody may have come meanwhile.
        if self._task is None:
            await self._wakeups.stop()

    def followed(self) -> "FeedFollower":
        """Keeps the feed running for a follower that asks for pages by itself."""
        return FeedFollower(self._join, self._leave)

    @property
    def news(self) -> asyncio.Event:
        """Set when there is more than now, or when the server has another life."""
        return self._changed

    @contextmanager
    def waking(self, event: asyncio.Event) -> Iterator[None]:
        """Within this block the event is set each time that `news` would be."""
        self._woken.add(event)
        try:
            yield
        finally:
            self._woken.discard(event)

    @property
    def life(self) -> UUID | None:
        """The life of the server in which everything was read that `since` gives; None before the first look."""
        return self._life

    def survived_since(self, life: UUID) -> int:
        """Return the position up to which the log is what it was in an earlier life; 0 where nobody knows."""
        lives = [token for token, _ in self._lives]
        if life not in lives:
            return 0
        return min((survived for _, survived in self._lives[lives.index(life) + 1 :]), default=MAX_POSITION_NUMBER)

    async def follow(self, query: Query, after: int | Now | FindStart) -> AsyncGenerator[Page, None]:
        """Pages of messages after a position, for ever: first from history, then from the head.

        Where `after` has to be found out first, an empty page says that it was.
        """
        async with self.followed():
            if not isinstance(after, int | Now):
                # What is found out takes account of all lives up to this one: rewind for later ones only.
                await self.wait_until_current()
            rewinds = len(self._rewinds)
            position, seen = await self._begin(after)
            if not isinstance(after, int | Now):
                yield []
            while True:
                await self.wait_until_current()
                for rewound in self._rewinds[rewinds:]:
                    position, seen = min(position, rewound), seen.up_to(rewound)
                rewinds = len(self._rewinds)
                if (segment := self.since(position)) is None:
                    async with aclosing(self.history.after(query, position)) as history:
                        async for part in history:
                            position = part.high
                            if wanted := [m for m in part.messages if m.position not in seen]:
                                yield wanted
                    continue
                news = self._changed
                # A slow follower holds its page long after the feed has dropped it. For the default size, what the
                # feed keeps is bound enough, and its followers do not pay for adding up sizes.
                if query.page_bytes < PAGE_BYTES:
                    segment = segment.beginning(query.page_bytes)
                position = segment.high
                if wanted := [m for m in segment.messages if query.accepts(m) and m.position not in seen]:
                    yield wanted
                elif position >= self._consumed:
                    await news.wait()

    def _join(self) -> None:
        self._followers += 1
        if self._task is None and not self._closed:
            self._failed = None
            self._generation = -1
            self._life = None
            self._held = False
            self._wakeups.start()
            self._task = asyncio.create_task(self._run(), name="milepost-feed")

    async def _leave(self) -> None:
        self._followers -= 1
        if self._followers == 0:
            await self._stop()

    async def _begin(self, after: int | Now | FindStart) -> tuple[int, Ranges]:
        begin = after if isinstance(after, int | Now) else await after()
        if not isinstance(begin, Now):
            return begin, Ranges([])
        position = await self._horizon.look()
        statement = self._statements.get("visible_above")
        return position, Ranges(await self._database.execute(statement, {"horizon": position}))

    async def wait_until_current(self) -> None:
        """Waits until the feed knows of the server's newest life, and has rewound to what survived."""
        while self._failed is not None or self._generation != self._horizon.generation:
            if self._failed is not None:
                raise self._failed
            await self._changed.wait()

    def since(self, position: int) -> Segment | None:
        """What the feed has after a position; None if that is too far back."""
        if position >= self._consumed:
            return Segment(position, position, [], self._life)
        parts: list[Page] = []
        for segment in reversed(self._recent):
            if segment.low <= position:
                parts.append([m for m in segment.messages if m.position > position])
                messages = [m for part in reversed(parts) for m in part]
                return Segment(position, self._consumed, messages, self._life)
            parts.append(segment.messages)
        return None

    def after(self, query: Query, position: int) -> AsyncGenerator[Segment, None]:
        """Yield what lies between a position and the horizon; ends early while the database is unavailable."""
        return self.history.after(query, position)

    async def _run(self) -> None:
        pause = FEED_OUTAGE_PAUSE_SECONDS[0]
        stalled = STALLED_PAUSE_SECONDS[0]
        back = asyncio.Event()
        try:
            with self._database.outage.waking(back):
                while True:
                    try:
                        stalled = await self._step(stalled)
                        pause = FEED_OUTAGE_PAUSE_SECONDS[0]
                    except Unavailable as error:
                        logger.debug("the feed waits: %s", error)
                        with suppress(TimeoutError):
                            async with asyncio.timeout(pause):
                                await back.wait()
                        back.clear()
                        pause = min(pause * 2, FEED_OUTAGE_PAUSE_SECONDS[1])
        except Exception as error:
            self._failed = error
            self._announce()
            raise

    async def _step(self, stalled: float) -> float:
        """Publishes what is new, or waits for it; returns the next pause while nothing is final."""
        horizon = self._horizon
        if self._generation != horizon.generation:
            await self._start_over()
        if self._full_pages >= MAX_FULL_PAGES:
            self._full_pages = 0
            await horizon.sample()
            if horizon.position - self._consumed > FEED_JUMP_POSITIONS and self._generation == horizon.generation:
                await self._jump()
        waits_for_a_gap = self._held and horizon.position <= self._consumed
        self._wakeups.clear()
        if not waits_for_a_gap and await self._publish_next():
            self._unheard = UNNOTIFIED_POLL_SECONDS[0]
            if self._full_pages or (monotonic() < self._sample_by and await self._rest()):
                return STALLED_PAUSE_SECONDS[0]
            self._wakeups.clear()
        await horizon.sample()
        self._sample_by = monotonic() + FEED_SAMPLE_SECONDS
        if (
            self._wakeups.listening
            and not horizon.is_covered
            and horizon.position - self._consumed <= MAX_UNMARKED_POSITIONS
        ):
            await self._wakeups.mark()
            return stalled
        if horizon.position > self._consumed or self._generation != horizon.generation:
            return stalled
        if not horizon.is_settled:
            # Who is appending may tell of its end; of others, who tell as well, too much would be heard.
            await asyncio.sleep(stalled * DEAF_SHARE)
            await self._wakeups.wait_heard(stalled * (1 - DEAF_SHARE))
            return min(stalled * 2, STALLED_PAUSE_SECONDS[1])
        if self._wakeups.listening:
            await self._wakeups.wait(self.poll)
        else:
            await asyncio.sleep(self._unheard)
            self._unheard = min(self._unheard * 1.5, UNNOTIFIED_POLL_SECONDS[1])
        return STALLED_PAUSE_SECONDS[0]

    async def _rest(self) -> bool:
        """Waits a moment for more; whether there is. Not where nobody would tell of what is there already."""
        if self._beyond or not self._wakeups.listening:
            return False
        return await self._wakeups.wait_heard(
            FEED_REST_SECONDS if self._horizon.is_covered else FEED_SHORT_REST_SECONDS
        )

    async def _start_over(self) -> None:
        """Begins at the horizon; after another life of the server, at what survived of the last one."""
        begun = self._generation >= 0
        await self._horizon.sample()
        generation, life = self._horizon.generation, self._horizon.life
        recent: list[Segment] = []
        if begun:
            survivor = await self._newest_survivor()
            self._consumed = min(self._consumed, survivor.position if survivor else self._horizon.base)
            self._rewinds.append(self._consumed)
            self._horizon.passed(self._consumed, generation)
            # Kept for the next time: nobody is handed it again.
            recent = [Segment(survivor.position, survivor.position, [survivor])] if survivor else []
        else:
            self._consumed = self._horizon.position
            recent = await self._newest_before(self._consumed)
        if not self._lives or self._lives[-1][0] != life:
            self._lives.append((life, self._consumed if begun else 0))
        self._recent = deque(recent)
        self._kept = sum(segment.weight for segment in recent)
        self._held = False
        self._generation, self._life = generation, life
        self._announce()

    async def _jump(self) -> None:
        """Leaves out what is much and came at once: whoever wants it reads it by itself, and its own part."""
        position, generation = self._horizon.position, self._horizon.generation
        recent = await self._newest_before(position)
        if generation != self._horizon.generation:
            return
        self._recent = deque(recent)
        self._kept = sum(segment.weight for segment in recent)
        self._consumed = position
        self._announce()

    async def _newest_before(self, position: int) -> list[Segment]:
        """The last messages that followers reach through history: they may have to be looked for after a crash."""
        query, life = Query(backwards=True), self._horizon.life
        page = await self._reader.log_page(
            self._horizon, query, low=0, high=position, limit=MAX_MARKS_BEFORE_BEGINNING, life=life
        )
        return [Segment(message.position, message.position, [message]) for message in reversed(page)]

    async def _newest_survivor(self) -> Message[Any] | None:
        """The newest message handed out that is still there: after a crash with asynchronous commit later
        ones may be gone, and their positions drawn again. What drew it was on disk, so none below it are.
        """
        handed_out = [message for segment in self._recent for message in segment.messages]
        parameters = {
            "positions": [message.position for message in handed_out],
            "ids": [message.id for message in handed_out],
            "times": [message.time for message in handed_out],
        }
        rows = await self._database.execute(self._statements.get("newest_survivor"), parameters)
        for message in handed_out:
            if message.position == rows[0][0]:
                return message
        logger.warning("the server restarted: messages after position %d may come again", self._horizon.base)
        return None

    async def _publish_next(self) -> bool:
        horizon, low = self._horizon, self._consumed
        generation, known = horizon.generation, max(horizon.position, low)
        page = await self._reader.log_page(
            horizon, ALL_MESSAGES, low=low, high=MAX_POSITION_NUMBER, limit=PAGE_MESSAGES, life=horizon.life
        )
        segment = final_part(page, low, known)
        self._held = bool(page) and segment.high == low
        self._beyond = len(segment.messages) < len(page)
        if segment.high == low or not (page or await self._same_life()):
            return False
        horizon.passed(segment.high, generation)
        self._full_pages = self._full_pages + 1 if ALL_MESSAGES.cuts(page, PAGE_MESSAGES) else 0
        self._consumed = segment.high
        self._keep(segment)
        self._announce()
        return True

    async def _same_life(self) -> bool:
        """Whether a page was empty for want of messages, and not because the server has another life."""
        rows = await self._horizon.execute(self._statements.get("current_life"), {})
        return bool(rows) and rows[0][0] == self._horizon.life

    def _keep(self, segment: Segment) -> None:
        self._recent.append(segment)
        self._kept += segment.weight
        while len(self._recent) > 1 and self._kept > FEED_KEEP_BYTES:
            self._kept -= self._recent.popleft().weight

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        for event in self._woken:
            event.set()


def final_part(page: Page, low: int, known: int) -> Segment:
    """What of a page above `low` is final: all up to the known horizon, and the run directly above it."""
    high = low
    for count, message in enumerate(page):
        if message.position > known:
            if message.position != known + 1:
                return Segment(low, known, page[:count])
            known = message.position
        high = message.position
    return Segment(low, high if ALL_MESSAGES.cuts(page, PAGE_MESSAGES) else known, page)
