"""Read the log for the lanes of a subscription: from the feed near the head, else from history."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import replace
from typing import Any

from milepost.engine.lanes.held_lane import HeldLane
from milepost.log.message import Message
from milepost.log.protocol import LogFeed
from milepost.log.query import PAGE_MESSAGES, Query, Segment, SelectedLanes

PAGE_MESSAGES_PER_LANE = 250
"""How many messages of a page a lane gets, about."""
MAX_PAGE_MESSAGES = 2000
"""The most messages of a page."""


class SubscriptionPages:
    """Answers what comes after a position, wherever that is.

    At the head all subscriptions of a process share what the feed has fetched. Further back each reads by itself,
    the next page while the last is worked on, as long as it goes on where it was and for the same lanes. If the
    log knows which lane a message belongs to, only those of the lanes that are asked for are read.
    """

    def __init__(self, feed: LogFeed, query: Query, *, lanes: int, by_stream: bool) -> None:
        self._feed = feed
        self._query = query
        self._lanes = lanes
        self._by_stream = by_stream
        self._history: AsyncGenerator[Segment, None] | None = None
        self._at = -1
        self._for: frozenset[int] = frozenset()

    async def after(self, position: int, lanes: Collection[int]) -> Segment | None:
        """What is known after a position: up to where, and which messages of the query. Empty at the head.

        Messages of other lanes than the given ones may be missing. None: ask again.
        """
        await self._feed.wait_until_current()
        near = self._feed.since(position)
        if near is None:
            return await self._from_history(position, frozenset(lanes if self._by_stream else ()))
        await self.close()
        accepts = self._query.accepts
        return replace(near, messages=[message for message in near.messages if accepts(message)])

    async def _from_history(self, position: int, lanes: frozenset[int]) -> Segment | None:
        if self._history is None or self._at != position or not lanes <= self._for:
            await self.close()
            self._for = lanes
            self._history = self._feed.after(self._query_for(lanes), position)
        part = await anext(self._history, None)
        if part is None:
            # It ended where the log did then, or could not be read.
            await self.close()
            return None
        self._at = part.high
        return replace(part, low=position)

    def _query_for(self, lanes: Collection[int]) -> Query:
        if not self._by_stream or len(lanes) == self._lanes:
            return replace(self._query, page=_page_messages(self._lanes))
        of_lanes = SelectedLanes(self._lanes, frozenset(lanes))
        return replace(self._query, lanes=of_lanes, page=_page_messages(len(lanes)))

    async def close(self) -> None:
        """Ends a reading that is under way."""
        history, self._history, self._at = self._history, None, -1
        if history is not None:
            await history.aclose()


def _page_messages(lanes: int) -> int:
    """How many messages are read at once: more for more lanes, whose windows they go to."""
    return min(max(PAGE_MESSAGES, PAGE_MESSAGES_PER_LANE * lanes), MAX_PAGE_MESSAGES)


PlaceMessages = Callable[[list[Message[Any]]], tuple[list[int], list[str] | None]]
"""For messages, the lane of each and, with an order, the key of each."""

SHARED_READ_POSITIONS = 1000
"""Lanes within so many positions are read for together."""


class LaneReader:
    """Keeps the windows of lanes filled.

    Lanes that stand near each other share their pages. One whose window is full is left behind and comes back
    at its own position when half of it is free, so that nobody waits for it and no page is read for a message
    or two, unless nothing of it can be handed out. The lowest and the foremost take turns: the largest backlog
    first, and the others not much later.
    """

    def __init__(
        self,
        feed: LogFeed,
        pages: SubscriptionPages,
        places: PlaceMessages,
        on_filled: Callable[[HeldLane], None],
        on_outlived: Callable[[HeldLane], None],
        *,
        window: int,
    ) -> None:
        self._feed = feed
        self._pages = pages
        self._places = places
        self._on_filled = on_filled
        self._on_outlived = on_outlived
        self._window = window
        self._lanes: dict[int, HeldLane] = {}
        self._old: list[SubscriptionPages] = []
        """Pages of before, to be closed."""
        self._end: int | None = None
        self._lowest_next = True
        self._has_enough = False
        """Whether some lane was not read for: it was full, or there was enough to hand out."""
        self._changed = asyncio.Event()

    def reads_for(self, lanes: dict[int, HeldLane]) -> None:
        """These are the lanes from now on."""
        self._lanes = lanes
        self._changed.set()

    def change(self, pages: SubscriptionPages) -> None:
        """From now on what is read comes from these."""
        self._old.append(self._pages)
        self._pages = pages
        self._changed.set()

    def resize(self, window: int) -> None:
        """How many messages of a lane may be open or read ahead from now on."""
        self._window = window
        self._changed.set()

    def stops_at(self, position: int | None) -> None:
        """Nothing is read beyond this position, for now."""
        self._end = position
        self._changed.set()

    def room(self) -> None:
        """Some lane may have room again, or nothing more of it can be handed out."""
        if self._has_enough:
            self._changed.set()

    async def run(self) -> None:
        """Reads until it is cancelled."""
        try:
            with self._feed.waking(self._changed):
                while True:
                    while self._old:
                        await self._old.pop().close()
                    self._changed.clear()
                    if not await self._read():
                        await self._changed.wait()
        finally:
            await self._pages.close()

    async def _read(self) -> bool:
        """Reads a page for whoever has room; False if nobody has, or nothing is there."""
        self._let_go()
        for after in self._turns():
            together = [
                owned for owned in self._hungry() if after <= owned.lane.reach <= after + SHARED_READ_POSITIONS
            ]
            pages = self._pages
            segment = await pages.after(after, [owned.number for owned in together])
            self._let_go()
            if segment is None or pages is not self._pages:
                return True
            # A page of another life has other messages at the same positions.
            together = [owned for owned in together if owned.held.log_life == segment.life]
            segment = segment.up_to(self._end)
            self._spread(segment, together)
            if segment.high > after:
                return True
        return False

    def _turns(self) -> list[int]:
        """Where to read from: where the lowest and where the foremost of those stand that want more."""
        self._has_enough = self._is_ample()
        if self._has_enough:
            return []
        hungry = self._hungry()
        self._has_enough = len(hungry) < len(self._lanes)
        if not hungry:
            return []
        positions = [owned.lane.reach for owned in hungry]
        self._lowest_next = not self._lowest_next
        turns = dict.fromkeys((max(positions), min(positions)))
        return list(turns) if self._lowest_next else [*turns][::-1]

    def _hungry(self) -> list[HeldLane]:
        end = self._end
        return [
            owned for owned in self._lanes.values() if owned.is_hungry and (end is None or owned.lane.reach < end)
        ]

    def _is_ample(self) -> bool:
        """Whether there is enough for now: half of all windows, and something of it can be handed out."""
        lanes = [owned.lane for owned in self._lanes.values()]
        room = sum(lane.room() for lane in lanes)
        return 2 * room < self._window * len(lanes) and any(lane.has_next for lane in lanes)

    def _let_go(self) -> None:
        """What is known of lanes that were taken in an earlier life of the server may never have been."""
        if self._feed.life is None:
            return
        for owned in list(self._lanes.values()):
            if owned.held.log_life != self._feed.life and not owned.closing:
                self._on_outlived(owned)

    def _spread(self, segment: Segment, together: Collection[HeldLane]) -> None:
        """Gives each lane its messages of a page; of the others in the range it has none."""
        takers = {owned.number: owned for owned in together if owned.is_hungry and owned.lane.reach < segment.high}
        messages: dict[int, list[Message[Any]]] = {number: [] for number in takers}
        keys: dict[int, list[str]] = {number: [] for number in takers}
        lanes, of_messages = self._places(segment.messages)
        if of_messages is None:
            for message, number in zip(segment.messages, lanes, strict=True):
                if number in takers:
                    messages[number].append(message)
        else:
            for message, number, key in zip(segment.messages, lanes, of_messages, strict=True):
                if number in takers:
                    messages[number].append(message)
                    keys[number].append(key)
        for number, owned in takers.items():
            owned.fill(messages[number], None if of_messages is None else keys[number], segment.high)
            if messages[number]:
                self._on_filled(owned)
