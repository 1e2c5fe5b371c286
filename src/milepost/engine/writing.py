"""Writes the progress of lanes: at the subscription's cadence, and at once where something waits for it."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from milepost.dispatch import Exchange, Settings
from milepost.engine.clock import Clock
from milepost.engine.owned import Owned
from milepost.engine.rows import Rows
from milepost.errors import Unavailable
from milepost.log.message import Message
from milepost.progress.protocol import Progress, RolledBack, Stale

logger = logging.getLogger("milepost.engine")


class Writing:
    """Exchanges with the store, one at a time for a lane."""

    def __init__(
        self,
        progress: Progress,
        rows: Rows,
        clock: Clock,
        settings: Settings,
        *,
        seconds: float,
        messages: int,
        changed: Callable[[Owned], None],
        lost: Callable[[Owned, Exception], None],
    ) -> None:
        self._progress = progress
        self._rows = rows
        self._clock = clock
        self._settings = settings
        self._seconds = seconds
        self.messages = messages
        """After so many settled messages a lane is written."""
        self._changed = changed
        self._lost = lost
        self._lanes: dict[int, Owned] = {}
        self._wake = asyncio.Event()

    def writes_for(self, lanes: dict[int, Owned]) -> None:
        """These are the lanes from now on."""
        self._lanes = lanes
        self._wake.set()

    def look(self) -> None:
        """Some lane may have something to write at once."""
        self._wake.set()

    def wants(self, owned: Owned) -> bool:
        """Whether a lane is to be written now."""
        lane = owned.lane
        return lane.settled >= self.messages or lane.urgent(self._clock.now())

    async def run(self) -> None:
        """Writes until it is cancelled."""
        while True:
            self._wake.clear()
            for owned in list(self._lanes.values()):
                if self._is_time(owned):
                    await self.exchange(owned)
            await self._pause()

    def _is_time(self, owned: Owned) -> bool:
        if owned.lost or owned.closing or owned.exchanging:
            return False
        elapsed = asyncio.get_running_loop().time() - owned.written_at
        return self.wants(owned) or (owned.lane.settled > 0 and elapsed >= self._seconds)

    async def _pause(self) -> None:
        """Until something is to be written: told, or by the time."""
        moments = [owned.lane.wake_at() for owned in self._lanes.values()]
        waits = [self._clock.until(moment) for moment in moments if moment is not None]
        if any(owned.lane.settled for owned in self._lanes.values()):
            waits.append(self._seconds)
        try:
            async with asyncio.timeout(min(waits, default=None)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def exchange(self, owned: Owned) -> bool:
        """One exchange of a lane; False if there was nothing to do, or the lane is lost."""
        now = self._clock.now()
        exchange = owned.lane.exchange(now)
        owned.written_at = asyncio.get_running_loop().time()
        if exchange is None:
            return False
        owned.exchanging = True
        try:
            await self._exchange(owned, exchange)
        except (Stale, Unavailable) as error:
            self._lost(owned, error)
            return False
        finally:
            owned.exchange_ended()
        self._changed(owned)
        return True

    async def _exchange(self, owned: Owned, exchange: Exchange[Message[Any]]) -> None:
        try:
            exchanged = await self._progress.exchange(
                owned.held, exchange, stall_after=self._settings.stall_after, on_park=self._settings.on_park
            )
        except RolledBack:
            owned.lane.abandon()
            owned.lane.poke()
            return
        owned.held = exchanged.held
        self._clock.set(exchanged.now)
        owned.lane.exchanged(await self._rows.answer(exchanged.answer))
