"""A lane that this worker holds."""

from typing import Any

from milepost.dispatch import Lane
from milepost.log.message import Message
from milepost.progress.protocol import Held


class Owned:
    """The core of a lane, the right to write it, and what of it runs here."""

    def __init__(self, held: Held, lane: Lane[Message[Any]]) -> None:
        self.held = held
        self.lane = lane
        self.running = 0
        """How many calls of handlers are under way for it."""
        self.lost = False
        """Whether what comes of those calls is of no use any more."""
        self.closing = False
        """Whether nothing more is handed out."""
        self.exchanging = False
        self.written_at = 0.0
        """When it was last written, by the loop's clock."""

    @property
    def number(self) -> int:
        return self.held.lane
