"""Write the cursors of all subscriptions of a process: those that come meanwhile go together."""

import asyncio
from collections.abc import Sequence

from milepost.concurrency import run_to_end
from milepost.dispatch import ExchangeWrite
from milepost.progress.protocol import ExchangeResult, LaneGrant, Progress

MAX_CURSOR_BATCH_LANES = 1000
"""The most lanes of one write, but for the first who waits."""


class _PendingWrite:
    """What one subscription wants to have written, and what came of it."""

    def __init__(self, cursors: Sequence[tuple[LaneGrant, ExchangeWrite]]) -> None:
        self.cursors = cursors
        self.written: list[ExchangeResult | None] = []
        self.error: BaseException | None = None


class CursorBatcher:
    """Writes one after the other: what comes while one is under way goes with the next.

    Lanes that were written together are due together the next time too. So ten subscriptions, each of which
    writes five times a second, come to five commits a second, and not to fifty.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._wishes: list[_PendingWrite] = []
        """Those that nobody is writing, in the order in which they came."""
        self._turn = asyncio.Lock()

    async def write(self, cursors: Sequence[tuple[LaneGrant, ExchangeWrite]]) -> list[ExchangeResult | None]:
        """As `Progress.write`; an error is that of all that went together."""
        mine = _PendingWrite(cursors)
        self._wishes.append(mine)
        try:
            # Whoever writes for others goes on when it is to end: theirs must not depend on it.
            await run_to_end(self._see_to(mine))
        finally:
            if mine in self._wishes:
                self._wishes.remove(mine)
        if mine.error is not None:
            raise mine.error
        return mine.written

    async def _see_to(self, wish: _PendingWrite) -> None:
        async with self._turn:
            # It may have gone with another, or be wanted no longer.
            if wish in self._wishes:
                await self._write_together()

    async def _write_together(self) -> None:
        """Writes for the first who waits, and for others as far as they are not too many."""
        together = self._take()
        try:
            written = await self._progress.write([each for wish in together for each in wish.cursors])
        except BaseException as error:
            for wish in together:
                wish.error = error
            if not isinstance(error, Exception):
                raise
            return
        answers = iter(written)
        for wish in together:
            wish.written = [next(answers) for _ in wish.cursors]

    def _take(self) -> list[_PendingWrite]:
        count = 1
        lanes = len(self._wishes[0].cursors)
        while count < len(self._wishes) and lanes + len(self._wishes[count].cursors) <= MAX_CURSOR_BATCH_LANES:
            lanes += len(self._wishes[count].cursors)
            count += 1
        together, self._wishes = self._wishes[:count], self._wishes[count:]
        return together
