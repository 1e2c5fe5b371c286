"""What workers tell of what they do: for looking at, not for deciding."""

from datetime import datetime

import msgspec


class Slow(msgspec.Struct, frozen=True):
    """A message that has been in flight for seconds."""

    position: int
    since: float
    """Since when, about, in seconds since 1970."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker does for a subscription."""

    subscription: int
    rate: float
    """Messages handled, a second, over the last few."""
    in_flight: int
    """Messages that are with handlers."""
    slow: tuple[Slow, ...] = ()
    """Of those the ones that have been for seconds."""
    error: str | None = None
    """The last one."""
    error_at: float | None = None
    """When that was, in seconds since 1970."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers of a subscription have told, together."""

    rate: float = 0.0
    in_flight: int = 0
    error: str | None = None
    """The last one, as long as its worker lives or not long after."""
    error_at: datetime | None = None
