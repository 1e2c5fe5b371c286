"""A lane that this worker holds."""

import asyncio
from typing import Any

from milepost.dispatch import Lane
from milepost.log.message import Message
from milepost.progress.protocol import Held


class Owned:
    """The core of a lane, the right to write it, and what of it runs here."""

    def __init__(self, held: Held, lane: Lane[Message[Any]], *, looks_first: bool) -> None:
        self.held = held
        self.lane = lane
        self.running = 0
        """How many calls of handlers are under way for it."""
        self.lost = False
        """Whether what comes of those calls is of no use any more."""
        self.closing = False
        """Whether nothing more is handed out."""
        self.looks_first = looks_first
        """Whether rows are to be loaded before anything is handed out: some of them have to run alone."""
        self.exchanging = False
        self.written_at = 0.0
        """When it was last written, by the loop's clock."""
        self._rest = asyncio.Event()

    @property
    def number(self) -> int:
        return self.held.lane

    @property
    def hands_out(self) -> bool:
        """Whether messages of it may go to handlers."""
        return not (self.lost or self.closing or self.looks_first)

    def ended(self) -> None:
        """A call has ended."""
        self.running -= 1
        self._rest.set()

    def exchange_ended(self) -> None:
        """An exchange has ended."""
        self.exchanging = False
        self._rest.set()

    async def at_rest(self) -> None:
        """Waits until nothing of it runs, and no exchange is under way."""
        while self.running or self.exchanging:
            self._rest.clear()
            await self._rest.wait()

    def is_idle(self, head: int, now: float) -> bool:
        """Whether all up to a position is handled, or cannot be handled now."""
        due = self.lane.wake_at()
        return (
            self.lane.reach >= head
            and self.lane.is_empty
            and not self.exchanging
            and not self.lane.urgent(now)
            and (due is None or due > now)
        )
