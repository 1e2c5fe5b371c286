"""Why a connection ends, and what becomes of its consumer."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from milepost.engine.consuming import endings as consumer

GOING_AWAY: Final = "going away"
"""The server stops; `to` is another one, if there is."""
ACCESS: Final = "access"
"""The token was revoked, or has expired."""
BAD_FRAME: Final = "bad frame"
"""What the client sent is no frame, or it sent too many that could not be."""
TOO_SLOW: Final = "too slow"
"""The client did not read: it is cut off, since it would not read this either."""
MOVED: Final = "moved"
"""Another server has the subscription: `to` is its address."""
REFUSED: Final = "refused"
"""The hello cannot be: the problem before it says why."""
RESUMED: Final = "resumed"
"""Another connection goes on with the consumer of this one."""

CODES: Final = {
    consumer.DRAINED: 1000,
    consumer.LEFT: 1000,
    GOING_AWAY: 1001,
    consumer.CLOSED: 1001,
    ACCESS: 1008,
    BAD_FRAME: 1008,
    MOVED: 4001,
    consumer.DELETED: 4002,
    consumer.TOO_MANY: 4003,
    consumer.LOST: 4004,
    REFUSED: 4005,
    RESUMED: 4006,
}
"""With which code a connection is closed for each reason."""


class Fate(Enum):
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
class Ending:
    """The end of a connection."""

    reason: str | None
    """None: the client ended it, and nothing is told."""
    fate: Fate = Fate.LEAVES
    detail: str = ""
    to: str | None = None


class Ended(Exception):
    """Raised where a connection cannot go on."""

    def __init__(self, ending: Ending) -> None:
        self.ending = ending
        super().__init__(ending.reason)
