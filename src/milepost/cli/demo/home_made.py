"""A reader of the kind that people write themselves, for comparison."""

import asyncio
from collections import deque

from milepost.app import Milepost
from milepost.log.statements import in_schema

LOOK_EVERY = 0.05
"""Seconds between two looks."""
REMEMBERS = 10_000
"""How many of the positions that it saw are kept."""


class HomeMade:
    """Asks for positions above the last one that it has seen: what commits late it never sees."""

    def __init__(self) -> None:
        self._newest = 0
        self._seen: deque[int] = deque(maxlen=REMEMBERS)

    def skipped(self, positions: list[int]) -> int:
        """How many of these it passed without seeing them."""
        seen = set(self._seen)
        oldest = self._seen[0] if self._seen else 0
        return sum(oldest < position < self._newest and position not in seen for position in positions)

    async def run(self, mp: Milepost) -> None:
        """Looks for ever, from now on."""
        statement = in_schema(
            'select "position" from :"schema".messages where "position" > %(last)s order by "position" limit 1000',
            mp.settings["schema"].value,
        )
        self._newest = await mp.head()
        while True:
            rows = await mp.log.database.execute(statement, {"last": self._newest})
            self._seen.extend(row[0] for row in rows)
            self._newest = self._seen[-1] if self._seen else self._newest
            await asyncio.sleep(LOOK_EVERY)
