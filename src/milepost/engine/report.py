"""What a run came to."""

from dataclasses import dataclass


@dataclass
class Tally:
    """How many messages of a subscription ended how."""

    handled: int = 0
    skipped: int = 0
    failed: int = 0
    """Attempts that failed."""
    parked: int = 0
    stopped: str | None = None
    """Why lanes of it read no further, if they do: `max_waiting` is reached, and behind which key."""
