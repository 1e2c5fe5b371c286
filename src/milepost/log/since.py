"""A time from which on messages are wanted."""

from datetime import datetime
from typing import Any

import msgspec

from milepost.log.message import Message


class Since(msgspec.Struct, frozen=True):
    """Older messages are not wanted, but for those up to a position, where nobody asks."""

    time: datetime
    above: int = 0
    """The time says something of higher positions only."""

    def wants(self, message: Message[Any]) -> bool:
        """Whether a message is new enough, or below."""
        return message.time >= self.time or message.position <= self.above
