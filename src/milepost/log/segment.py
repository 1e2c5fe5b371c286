"""A stretch of the log in memory."""

from dataclasses import dataclass, replace
from uuid import UUID

from milepost.log.reader import Page

MESSAGE_BYTES = 1000
"""What a message takes in memory beside its content."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The messages between two positions: above `low`, up to `high`."""

    low: int
    high: int
    messages: Page
    life: UUID | None = None
    """The life of the server in which it was read; None: that does not matter to who reads it."""

    def up_to(self, position: int | None) -> "Segment":
        """What of it is not beyond a position, if there is one."""
        if position is None or self.high <= position:
            return self
        return replace(self, high=position, messages=[each for each in self.messages if each.position <= position])

    def beginning(self, max_weight: int) -> "Segment":
        """Return its first messages, up to the one that brings their weight to `max_weight`; all if none does."""
        taken = 0
        for count, message in enumerate(self.messages, 1):
            taken += message.size + MESSAGE_BYTES
            if taken >= max_weight:
                return replace(self, high=message.position, messages=self.messages[:count])
        return self

    @property
    def weight(self) -> int:
        """Roughly how many bytes it takes in memory."""
        return weight(self.messages)


def weight(page: Page) -> int:
    """Roughly how many bytes a page takes in memory."""
    return sum(message.size + MESSAGE_BYTES for message in page) + MESSAGE_BYTES
