"""Pages of the log for a subscription: from the feed where it is near the head, else from history."""

from collections.abc import AsyncGenerator, Collection
from dataclasses import replace

from milepost.log.feed import Feed
from milepost.log.reader import PAGE_MESSAGES, Lanes, Query
from milepost.log.segment import Segment

OF_A_LANE = 250
"""How many messages of a page a lane gets, about."""
LARGEST = 2000
"""The most messages of a page."""


class Pages:
    """Answers what comes after a position, wherever that is.

    At the head all subscriptions of a process share what the feed has fetched. Further back each reads by itself,
    the next page while the last is worked on, as long as it goes on where it was and for the same lanes. If the
    log knows which lane a message belongs to, only those of the lanes that are asked for are read.
    """

    def __init__(self, feed: Feed, query: Query, *, lanes: int, by_stream: bool) -> None:
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
        await self._feed.in_step()
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
            self._history = self._feed.history.after(self._query_for(lanes), position)
        part = await anext(self._history, None)
        if part is None:
            # It ended where the log did then, or could not be read.
            await self.close()
            return None
        self._at = part.high
        return replace(part, low=position)

    def _query_for(self, lanes: Collection[int]) -> Query:
        if not self._by_stream or len(lanes) == self._lanes:
            return replace(self._query, page=_page_for(self._lanes))
        of_lanes = Lanes(self._lanes, frozenset(lanes))
        return replace(self._query, lanes=of_lanes, page=_page_for(len(lanes)))

    async def close(self) -> None:
        """Ends a reading that is under way."""
        history, self._history, self._at = self._history, None, -1
        if history is not None:
            await history.aclose()


def _page_for(lanes: int) -> int:
    """How many messages are read at once: more for more lanes, whose windows they go to."""
    return min(max(PAGE_MESSAGES, OF_A_LANE * lanes), LARGEST)
