"""Pages of the log for a subscription: from the feed where it is near the head, else from history."""

from collections.abc import AsyncGenerator

from milepost.log.feed import Feed, Segment
from milepost.log.reader import Query


class Pages:
    """Answers what comes after a position, wherever that is.

    At the head all subscriptions of a process share what the feed has fetched. Further back each reads by itself,
    the next page while the last is worked on, as long as it goes on where it was.
    """

    def __init__(self, feed: Feed, query: Query) -> None:
        self._feed = feed
        self._query = query
        self._history: AsyncGenerator[Segment, None] | None = None
        self._at = -1

    async def after(self, position: int) -> Segment:
        """What is known after a position: up to where, and which messages of the query. Empty at the head."""
        await self._feed.in_step()
        near = self._feed.since(position)
        if near is None:
            return await self._from_history(position)
        await self.close()
        accepts = self._query.accepts
        return Segment(position, near.high, [message for message in near.messages if accepts(message)])

    async def _from_history(self, position: int) -> Segment:
        if self._history is None or self._at != position:
            await self.close()
            self._history = self._feed.history(self._query, position)
        part = await anext(self._history, None)
        if part is None:
            await self.close()
            return Segment(position, position, [])
        self._at = part.high
        return Segment(position, part.high, part.messages)

    async def close(self) -> None:
        """Ends a reading that is under way."""
        history, self._history, self._at = self._history, None, -1
        if history is not None:
            await history.aclose()
