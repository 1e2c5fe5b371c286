"""Write the progress of lanes: at the subscription's cadence, and at once where something waits for it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from milepost.dispatch import Exchange, ExchangeWrite, Settings
from milepost.engine.clock import Clock
from milepost.engine.cursor_batcher import CursorBatcher
from milepost.engine.declare.declaration import Checkpoint
from milepost.engine.lanes.held_lane import HeldLane
from milepost.engine.lanes.message_loader import MessageLoader
from milepost.errors import Unavailable
from milepost.log.message import Message
from milepost.progress.protocol import ExchangeResult, Progress, RolledBack, StaleLane, stale_lane_error

WRITE_CHECK_SECONDS = 0.005
"""Seconds between two looks at the time, at least: what is due may have to wait for something else."""
IDLE_WRITE_SECONDS = 2.0
"""Seconds after which a lane is written that only passed messages which it did not want."""
JOINT_WRITE_SECONDS = 0.5
"""Seconds after which it is, if another is written anyway."""


class CheckpointWriter:
    """Exchanges with the store, one at a time for a lane."""

    def __init__(
        self,
        progress: Progress,
        cursors: CursorBatcher,
        rows: MessageLoader,
        clock: Clock,
        settings: Settings,
        *,
        seconds: float,
        messages: int,
        on_written: Callable[[HeldLane], None],
        on_wake: Callable[[], None],
        on_lost: Callable[[HeldLane, Exception], None],
    ) -> None:
        self._progress = progress
        self._cursors = cursors
        self._rows = rows
        self._clock = clock
        self._settings = settings
        self._seconds = seconds
        self.messages = messages
        """After so many settled messages a lane is written."""
        self.hurries = False
        """Whether everything is written at once: somebody waits until there is nothing left to do."""
        self._on_written = on_written
        self._on_wake = on_wake
        self._on_lost = on_lost
        self._lanes: dict[int, HeldLane] = {}
        self._wake = asyncio.Event()

    def change(self, settings: Settings, checkpoint: Checkpoint) -> None:
        """Other settings from now on."""
        self._settings = settings
        self._seconds, self.messages = checkpoint.seconds, checkpoint.messages
        self._wake.set()

    def writes_for(self, lanes: dict[int, HeldLane]) -> None:
        """These are the lanes from now on."""
        self._lanes = lanes
        self._wake.set()

    def wake(self) -> None:
        """Some lane may have something to write at once."""
        self._wake.set()

    async def run(self) -> None:
        """Writes until it is cancelled."""
        while True:
            self._wake.clear()
            await self._write([owned for owned in self._lanes.values() if self._may_write(owned)])
            await self._pause()

    def _may_write(self, owned: HeldLane) -> bool:
        return not (owned.lost or owned.closing or owned.exchanging or owned.is_unwritten)

    async def _write(self, lanes: Sequence[HeldLane]) -> None:
        """Writes the lanes for which it is time, and with them those that would be next."""
        if not any(self._is_time(owned) for owned in lanes):
            return
        wanted = [
            owned for owned in lanes if owned.lane.settled or self._goes_along(owned) or self._is_time(owned)
        ]
        begun = [(owned, exchange) for owned in wanted if (exchange := self._begin(owned)) is not None]
        plain = [(owned, exchange.plain) for owned, exchange in begun if exchange.plain is not None]
        others = [(owned, exchange) for owned, exchange in begun if exchange.plain is None]
        try:
            if plain:
                await self._guarded([owned for owned, _ in plain], self._write_cursors(plain))
            while others:
                owned, exchange = others.pop(0)
                await self._guarded([owned], self._exchange(owned, exchange))
        finally:
            for owned, _ in others:
                owned.lane.abandon()
                owned.exchange_ended()

    def _is_time(self, owned: HeldLane) -> bool:
        lane = owned.lane
        if lane.settled >= self.messages or lane.urgent(self._clock.now()):
            return True
        elapsed = asyncio.get_running_loop().time() - owned.written_at
        if elapsed >= IDLE_WRITE_SECONDS and lane.stopped is not None:
            # Rows of other processes may have gone, and nothing of its own changes by that: it asks.
            lane.poke()
            return True
        return (self.hurries or elapsed >= (self._seconds if lane.settled else IDLE_WRITE_SECONDS)) and lane.dirty

    def _goes_along(self, owned: HeldLane) -> bool:
        if owned.lane.settled:
            return True
        return asyncio.get_running_loop().time() - owned.written_at >= JOINT_WRITE_SECONDS and owned.lane.dirty

    async def _pause(self) -> None:
        """Until something is to be written, or something that had to wait can go on: told, or by the time."""
        lanes = [owned.lane for owned in self._lanes.values() if self._may_write(owned)]
        moments = [lane.wake_at() for lane in lanes]
        waits = [self._clock.until(moment) for moment in moments if moment is not None]
        if any(lane.settled for lane in lanes):
            waits.append(self._seconds)
        try:
            async with asyncio.timeout(max(WRITE_CHECK_SECONDS, min([IDLE_WRITE_SECONDS, *waits]))):
                await self._wake.wait()
        except TimeoutError:
            self._on_wake()

    def _begin(self, owned: HeldLane) -> Exchange[Message[Any]] | None:
        exchange = owned.lane.exchange(self._clock.now())
        owned.written_at = asyncio.get_running_loop().time()
        owned.exchanging = exchange is not None
        return exchange

    async def _guarded(self, lanes: Sequence[HeldLane], exchange: Coroutine[None, None, None]) -> None:
        """An exchange of lanes, to its end, whatever that is."""
        try:
            await exchange
        except RolledBack:
            # Nothing was learned: it is tried again.
            for owned in lanes:
                owned.lane.abandon()
                owned.lane.poke()
            self._wake.set()
            return
        except (StaleLane, Unavailable) as error:
            for owned in lanes:
                self._on_lost(owned, error)
        except asyncio.CancelledError:
            # The worker ends by an error. If this was written all the same, the last write finds another revision.
            for owned in lanes:
                owned.lane.abandon()
            raise
        finally:
            for owned in lanes:
                owned.exchange_ended()
        for owned in lanes:
            if not owned.lost:
                self._on_written(owned)

    async def _exchange(self, owned: HeldLane, exchange: Exchange[Message[Any]]) -> None:
        if owned.lost:
            return
        exchanged = await self._progress.exchange(
            owned.held, exchange, stall_after=self._settings.stall_after, on_park=self._settings.on_park
        )
        await self._learn(owned, exchanged)

    async def _write_cursors(self, lanes: Sequence[tuple[HeldLane, ExchangeWrite]]) -> None:
        """The usual case: several lanes in one statement, with those of other subscriptions."""
        written = await self._cursors.write([(owned.held, write) for owned, write in lanes])
        for (owned, _), exchanged in zip(lanes, written, strict=True):
            if exchanged is None:
                self._on_lost(owned, stale_lane_error())
            else:
                await self._learn(owned, exchanged)

    async def _learn(self, owned: HeldLane, exchanged: ExchangeResult) -> None:
        self._clock.set(exchanged.now)
        answer = await self._rows.answer(exchanged.answer, log_life=owned.held.log_life)
        # Not before the lane knows what was written: whoever is cancelled in between may write no more.
        owned.held = exchanged.held
        if not owned.lost:
            owned.lane.exchanged(answer)
            owned.written += 1
