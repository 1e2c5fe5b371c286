"""What lies behind the head: read in pages by each who lags, once by those who are at the same place."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from weakref import WeakValueDictionary

import msgspec

from milepost.errors import Unavailable
from milepost.log.bulk import Bulk
from milepost.log.database import Database
from milepost.log.horizon import Horizon
from milepost.log.reader import Query, Reader, one_ahead
from milepost.log.segment import Segment
from milepost.log.shared import Shared

logger = logging.getLogger("milepost.log.feed")

OUTAGE_PAUSE = 0.1
"""Seconds to wait while the database is unavailable."""


class History:
    """Reads the log up to the horizon."""

    def __init__(self, database: Database, horizon: Horizon, reader: Reader) -> None:
        self._bulk = Bulk(database)
        self._horizon = horizon
        self.reader = reader.remembering()
        """Reads pages, and remembers the names of streams."""
        self._shared: WeakValueDictionary[bytes, Shared] = WeakValueDictionary()

    def close(self) -> None:
        """Ends its threads."""
        self._bulk.close()

    async def after(self, query: Query, position: int) -> AsyncGenerator[Segment, None]:
        """What lies between a position and the horizon; ends early while the database is unavailable."""
        known, life = self._horizon.position, self._horizon.life
        subject = msgspec.json.encode([life, self.reader.log_statement(query), query.parameters()])
        shared = self._shared.setdefault(subject, Shared(query))
        pages = self.reader.log_pages(
            self._bulk, query, low=position, high=known, limit=None, life=life, shared=shared
        )
        try:
            with shared.read():
                async with aclosing(one_ahead(pages)) as ahead:
                    async for page in ahead:
                        yield Segment(position, page[-1].position, page, life)
            yield Segment(position, known, [], life)
        except Unavailable as error:
            logger.debug("reading waits: %s", error)
            await asyncio.sleep(OUTAGE_PAUSE)
