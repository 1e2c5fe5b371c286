"""Pages that several who are at the same place read once."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from milepost.log.reader import Page, Query
from milepost.log.segment import weight

KEEP_BYTES = 8 * 2**20
"""The most that is kept for those who come to the same place a little later."""
MAX_KEPT_PAGES = 4
"""The same in pages of the largest size: it is less where pages are small."""

Place = tuple[int, int]
"""After which position, and how many messages at the most."""


class Shared:
    """The last pages of one query. With a single reader it keeps none."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._max_kept_bytes = min(KEEP_BYTES, MAX_KEPT_PAGES * query.page_bytes)
        self.readers = 0
        self._pages: OrderedDict[Place, Page] = OrderedDict()
        self._kept = 0
        self._locks: WeakValueDictionary[Place, asyncio.Lock] = WeakValueDictionary()

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

    def _keep(self, place: Place, page: Page) -> None:
        # One that is not full ends where its reader looked no further.
        if place in self._pages or not self._query.cuts(page, place[1]):
            return
        self._pages[place] = page
        self._kept += weight(page)
        while self._kept > self._max_kept_bytes:
            _, oldest = self._pages.popitem(last=False)
            self._kept -= weight(oldest)
