"""Hands messages out to consumers, and takes back what takes them too long."""

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from milepost.engine.clock import Clock
from milepost.engine.owned import Owned
from milepost.engine.solitude import Solitude

if TYPE_CHECKING:
    from milepost.engine.consuming.consumer import AnyClaim
    from milepost.engine.consuming.desk import Desk

SHORTEST = 0.005
"""Seconds between two looks at the time, at least: what is due may have to wait for something else."""


class Handing:
    """One round after the other: what has timed out, then what can go out, then waiting for either."""

    def __init__(self, desk: "Desk", clock: Clock, solitude: Solitude) -> None:
        self._desk = desk
        self._clock = clock
        self._solitude = solitude
        self._changed = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """How many messages are out."""
        return self._desk.in_flight

    def wake(self) -> None:
        """Something may have become possible."""
        self._changed.set()

    async def run(self) -> None:
        """Hands out and takes back until it is cancelled."""
        self._solitude.join(self)
        try:
            while True:
                self._changed.clear()
                self._desk.settler.flush()
                owned = self._desk.owned
                if owned is not None:
                    self._take_back(owned)
                    self._hand_out(owned)
                await self._pause(owned)
        finally:
            self._solitude.leave(self)

    async def _pause(self, owned: Owned | None) -> None:
        """Until something may have become possible: told, or by the time."""
        moment = owned.lane.wake_at() if owned is not None else None
        seconds = None if moment is None else max(SHORTEST, self._clock.until(moment))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    # Out

    def _hand_out(self, owned: Owned) -> None:
        if not owned.hands_out:
            return
        lane = owned.lane
        self._solitude.wants(self, lane.suspects)
        if self._solitude.permits(self):
            self._give(lane.next(self._clock.now()))
        else:
            # What is promised counts as out: whoever waits to be alone waits until it was.
            self._give(lane.next(self._clock.now(), lane.promised))
        owned.running = lane.in_flight
        if lane.urgent(self._clock.now()):
            self._desk.writing.look()
        if not lane.has_next:
            self._desk.reading.room()

    def _give(self, claims: "list[AnyClaim]") -> None:
        given: defaultdict[str, list[AnyClaim]] = defaultdict(list)
        for claim in claims:
            given[claim.consumer or ""].append(claim)
        for name, of_consumer in given.items():
            consumer = self._desk.consumers[name]
            again = sum(claim.attempt > 1 for claim in of_consumer)
            for numbers in (consumer.numbers, self._desk.settler.numbers):
                numbers.delivered += len(of_consumer)
                numbers.redelivered += again
            consumer.take(of_consumer)

    # Back

    def _take_back(self, owned: Owned) -> None:
        overdue: defaultdict[str, list[AnyClaim]] = defaultdict(list)
        for claim in owned.lane.overdue(self._clock.now()):
            overdue[claim.consumer or ""].append(claim)
        for name, claims in overdue.items():
            self._desk.settler.timed_out(self._desk.consumers[name], claims)
        if overdue:
            self._desk.look()
