"""Reads the log for the lanes of a subscription."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from milepost.engine.owned import Owned
from milepost.engine.pages import Pages
from milepost.log.feed import Feed, Segment
from milepost.log.message import Message

Places = Callable[[list[Message[Any]]], list[tuple[int, str | None]]]
"""For messages, the lane and the key of each."""


class Reading:
    """Keeps the windows of lanes filled, from the position where the lowest of them stands.

    A lane whose window is full is left behind and comes back by itself: it is then the lowest. So that one far
    behind does not keep the others waiting, every second page is for the foremost.
    """

    def __init__(self, feed: Feed, pages: Pages, places: Places, filled: Callable[[Owned], None]) -> None:
        self._feed = feed
        self._pages = pages
        self._places = places
        self._filled = filled
        self._lanes: dict[int, Owned] = {}
        self._lowest_next = True
        self._changed = asyncio.Event()

    def reads_for(self, lanes: dict[int, Owned]) -> None:
        """These are the lanes from now on."""
        self._lanes = lanes
        self._changed.set()

    def room(self) -> None:
        """Some lane may have room again."""
        self._changed.set()

    async def run(self) -> None:
        """Reads until it is cancelled."""
        try:
            while True:
                self._changed.clear()
                news = self._feed.news
                if not await self._read():
                    await _any(self._changed, news)
        finally:
            await self._pages.close()

    async def _read(self) -> bool:
        """Reads a page for whoever has room; False if nobody has, or nothing is there."""
        after = self._turn()
        if after is None:
            return False
        segment = await self._pages.after(after)
        self._spread(segment)
        return segment.high > after

    def _turn(self) -> int | None:
        positions = [owned.lane.reach for owned in self._with_room()]
        if not positions:
            return None
        self._lowest_next = not self._lowest_next
        return max(positions) if self._lowest_next else min(positions)

    def _with_room(self) -> Iterable[Owned]:
        return (owned for owned in self._lanes.values() if not owned.closing and owned.lane.room() > 0)

    def _spread(self, segment: Segment) -> None:
        """Gives each lane its messages of a page; to the others of the range it has none."""
        takers = {owned.number: owned for owned in self._with_room() if owned.lane.reach >= segment.low}
        messages: dict[int, list[Message[Any]]] = {number: [] for number in takers}
        keys: dict[int, list[Any]] = {number: [] for number in takers}
        for message, (number, key) in zip(segment.messages, self._places(segment.messages), strict=True):
            if number in takers:
                messages[number].append(message)
                keys[number].append(key)
        for number, owned in takers.items():
            if segment.high > owned.lane.reach:
                owned.lane.fill(messages[number], keys[number] if owned.lane.ordered else None, segment.high)
                self._filled(owned)


async def _any(*events: asyncio.Event) -> None:
    """Waits until one of these is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
