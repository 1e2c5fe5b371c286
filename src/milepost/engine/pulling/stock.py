"""A part of the log that was read ahead, for whoever pulls next in this process."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

from milepost.log.message import Message
from milepost.log.reader import Page
from milepost.progress.pulling import Reply, Scanned


@dataclass(frozen=True)
class Found:
    """A part of the log, as it is offered."""

    scanned: Scanned
    messages: Mapping[int, Message[Any]]
    """By position."""


@dataclass(frozen=True, kw_only=True)
class Stock:
    """What a subscription wants of the log between two positions, by one definition."""

    number: int
    epoch: int
    life: UUID | None
    low: int
    high: int
    messages: Page
    keys: Sequence[str] | None
    fresh: Set[int] = frozenset()
    """The positions that had not been handled before, where a replay is under way."""

    @cached_property
    def size(self) -> int:
        """Bytes of its messages."""
        return sum(message.size for message in self.messages)

    @cached_property
    def middle(self) -> int:
        """The position of the message in its middle."""
        return self.messages[len(self.messages) // 2].position if self.messages else self.high

    def is_for(self, reply: Reply) -> bool:
        """Whether the cursor is within, and nothing has changed."""
        within = self.low <= reply.position < self.high
        return within and (self.number, self.epoch) == (reply.number, reply.epoch)

    def part(self, above: int, most: int) -> Found:
        """At most so many messages above a position."""
        begin = bisect_right(self.messages, above, key=_position)
        messages = self.messages[begin : begin + most]
        is_last = begin + most >= len(self.messages)
        scanned = Scanned(
            number=self.number,
            epoch=self.epoch,
            above=above,
            position=self.high if is_last else messages[-1].position,
            life=self.life,
            positions=[message.position for message in messages],
            sizes=[message.size for message in messages],
            keys=None if self.keys is None else self.keys[begin : begin + most],
            fresh=[message.position for message in messages if message.position in self.fresh],
        )
        return Found(scanned, {message.position: message for message in messages})


def _position(message: Message[Any]) -> int:
    return message.position
