"""Why a consumer connection ends, its close code, and what becomes of the consumer."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from milepost.engine.consumers import consumer
from milepost.wire.frames import (
    ACCESS_REASON,
    BAD_FRAME_REASON,
    GOING_AWAY_REASON,
    MOVED_REASON,
    REFUSED_REASON,
    RESUMED_REASON,
)

CLOSE_CODES: Final = {
    consumer.REASON_DRAINED: 1000,
    consumer.REASON_LEFT: 1000,
    GOING_AWAY_REASON: 1001,
    consumer.REASON_MILEPOST_CLOSED: 1001,
    ACCESS_REASON: 1008,
    BAD_FRAME_REASON: 1008,
    MOVED_REASON: 4001,
    consumer.REASON_DELETED: 4002,
    consumer.REASON_TOO_MANY_CONSUMERS: 4003,
    consumer.REASON_LOST: 4004,
    REFUSED_REASON: 4005,
    RESUMED_REASON: 4006,
}
"""With which code a connection is closed for each reason."""


class ConsumerDisposition(Enum):
    """What becomes of a consumer whose connection has ended."""

    LEAVES = "leaves"
    """What it has goes to others, and is no attempt."""
    LOST = "lost"
    """What its client has counts as an attempt."""
    KEPT = "kept"
    """It is kept for a while for a client that comes back."""
    HANDED_ON = "handed on"
    """Another connection has it."""


@dataclass(frozen=True)
class SessionEnd:
    """The end of a connection."""

    reason: str | None
    """None: the client ended it, and nothing is told."""
    disposition: ConsumerDisposition = ConsumerDisposition.LEAVES
    detail: str = ""
    to: str | None = None


class SessionEnded(Exception):
    """Raised where a connection cannot go on."""

    def __init__(self, ending: SessionEnd) -> None:
        self.ending = ending
        super().__init__(ending.reason)
