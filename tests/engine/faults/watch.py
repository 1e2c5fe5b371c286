"""Looks at the stored progress all the time: it never goes backwards."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import psycopg

from support import Connection

NEWEST = """
    select distinct on (subscription, lane) subscription, lane, revision, "position", ahead
    from "{}".cursors order by subscription, lane, revision desc
"""


@dataclass(frozen=True)
class Stand:
    """How far a lane is."""

    revision: int
    position: int
    ahead: Sequence[tuple[int, int]]

    def has(self, first: int, last: int) -> bool:
        """Whether all positions of a range are done."""
        first = max(first, self.position + 1)
        return first > last or any(low <= first and last <= high for low, high in self.ahead)

    def follows(self, before: "Stand") -> bool:
        """Whether everything that was done before still is."""
        return (
            self.revision >= before.revision
            and self.position >= before.position
            and all(self.has(first, last) for first, last in before.ahead)
        )


class Watch:
    """What it has seen of the lanes of a schema, and each step back."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._newest = NEWEST.format(schema)
        self._stands: dict[tuple[int, int], Stand] = {}
        self.looks = 0
        self.steps_back: list[tuple[tuple[int, int], Stand, Stand]] = []

    async def run(self) -> None:
        """Looks until it is cancelled; while the server is away there is nothing to see."""
        while True:
            with suppress(psycopg.OperationalError):
                async with await Connection.connect(self._url, autocommit=True) as connection:
                    while True:
                        await self._look(connection)
                        await asyncio.sleep(0.02)
            await asyncio.sleep(0.1)

    async def _look(self, connection: Connection) -> None:
        cursor = await connection.execute(self._newest.encode())
        for subscription, lane, revision, position, ahead in await cursor.fetchall():
            self._note((subscription, lane), Stand(revision, position, list(zip(*[iter(ahead)] * 2, strict=True))))
        self.looks += 1

    def _note(self, lane: tuple[int, int], stand: Stand) -> None:
        before = self._stands.get(lane)
        if before is not None and not stand.follows(before):
            self.steps_back.append((lane, before, stand))
        self._stands[lane] = stand


@asynccontextmanager
async def watching(url: str, schema: str) -> AsyncIterator[Watch]:
    """Watches for as long as the block lasts, and fails if anything went backwards."""
    watch = Watch(url, schema)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
        assert watch.looks > 0
        assert not task.done()
        assert watch.steps_back == []
    finally:
        task.cancel()
        await asyncio.wait([task])
