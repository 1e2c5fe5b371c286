"""A lane that this worker holds."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from milepost.dispatch import Delivery, Lane
from milepost.engine.order import Order
from milepost.engine.repeats import Repeats
from milepost.log.message import Message
from milepost.progress.protocol import Held


class Owned:
    """The core of a lane, the right to write it, and what of it runs here."""

    def __init__(self, held: Held, lane: Lane[Message[Any]], order: Order, *, looks_first: bool) -> None:
        self.held = held
        self.lane = lane
        self.repeats = Repeats(held.replay, held.memories, order)
        """What had been handled before and is repeated on purpose."""
        self.running = 0
        """How many calls of handlers are under way for it."""
        self.done: list[Delivery[Message[Any]]] = []
        """Handled in this step of the loop, and settled at its end."""
        self.lost = False
        """Whether what comes of those calls is of no use any more."""
        self.closing = False
        """Whether nothing more is handed out."""
        self.taken_back = False
        """Whether what runs is waited for no longer: it was taken back, and others get it."""
        self.acted = 0
        """The last action of a person that was known when the lane was taken."""
        self.leaves = False
        """Whether its last write has begun."""
        self._waited_for: list[Delivery[Message[Any]]] = []
        """What ran when it was last reopened."""
        self._reopened = 0
        """How often it was to be given back, and stayed."""
        self._full = False
        self.looks_first = looks_first
        """Whether rows are to be loaded before anything is handed out: some of them have to run alone."""
        self.exchanging = False
        self.is_unwritten = False
        """Whether it has to stay as it is stored."""
        self.written_at = -inf
        """When it was last written, by the loop's clock, which may have begun a moment ago."""
        self.written = 0
        """How often it was."""
        self._rest = asyncio.Event()

    @property
    def number(self) -> int:
        return self.held.lane

    @property
    def hands_out(self) -> bool:
        """Whether messages of it may go to handlers."""
        return not (self.lost or self.closing or self.looks_first)

    @property
    def is_hungry(self) -> bool:
        """Whether it wants messages. A full one does not before half of its window is free, or it starves."""
        if self.lost or self.closing:
            return False
        if self._full and not self.lane.is_half_free and not self.lane.is_starved:
            return False
        return self.lane.room() > 0

    def fill(self, messages: list[Message[Any]], keys: list[str] | None, up_to: int) -> None:
        """Takes messages, as far as there is room."""
        self._full = not self.lane.fill(messages, keys, up_to)

    def ended(self) -> None:
        """Calls have ended, and what came of them is settled."""
        self._rest.set()

    def take_back(self) -> list[Delivery[Message[Any]]]:
        """What is out goes to others, which is no attempt; returns that."""
        self.taken_back = True
        deliveries = self.lane.deliveries()
        refused = self.lane.give_back(deliveries)
        self._rest.set()
        return [delivery for delivery in deliveries if delivery not in refused]

    def exchange_ended(self) -> None:
        """An exchange has ended."""
        self.exchanging = False
        self._rest.set()

    @contextmanager
    def unwritten(self) -> Iterator[None]:
        """Within this block no exchange begins."""
        self.is_unwritten = True
        try:
            yield
        finally:
            self.is_unwritten = False
            self._rest.set()

    async def at_rest(self) -> None:
        """Waits until nothing of it runs, and no exchange is under way."""
        while self._is_at_work:
            await self.changes()

    async def closed(self) -> bool:
        """The same, of one that is to be given back; False if it stays after all."""
        reopened = self._reopened
        while self._is_at_work:
            await self.changes()
            if self._reopened != reopened:
                return False
        # From here on nothing can keep it.
        self.leaves = True
        return True

    @property
    def _is_at_work(self) -> bool:
        runs = self.running and not self.taken_back
        return bool(runs or self.done or self.exchanging or self.is_unwritten)

    @property
    def waits(self) -> bool:
        """Whether something still runs that ran when it was wanted back."""
        return (self.closing and not self.leaves) or any(each.is_in_force for each in self._waited_for)

    def reopen(self) -> None:
        """It stays: whatever wanted it back wants it no longer, or not now."""
        self._waited_for = self.lane.deliveries()
        self.closing = self.taken_back = False
        self._reopened += 1
        self._rest.set()

    async def changes(self) -> None:
        """Waits until calls or an exchange of it have ended, or it is here no longer."""
        self._rest.clear()
        await self._rest.wait()

    def is_idle(self, head: int, now: float) -> bool:
        """Whether all up to a position is handled, or cannot be handled now."""
        due = self.lane.wake_at()
        return (
            ((self.lane.reach >= head and self.lane.is_empty) or self._is_stuck(head))
            and not self.exchanging
            and not self.lane.urgent(now)
            and (due is None or due > now)
        )

    def _is_stuck(self, head: int) -> bool:
        """Whether a limit of rows keeps what is here from going on, and nothing else is to be done."""
        lane = self.lane
        if lane.stopped is None or lane.in_flight or lane.has_next or lane.dirty:
            return False
        return lane.reach >= head or not self.is_hungry
