"""What workers tell of what they do: for looking at, not for deciding."""

from datetime import datetime

import msgspec

from milepost.dispatch import LimitReached


class InFlight(msgspec.Struct, frozen=True):
    """A message that is with a handler, or a consumer."""

    position: int
    since: float
    """Since when, about, in seconds since 1970."""


class StoppedLane(msgspec.Struct, frozen=True):
    """A lane that reads no further."""

    lane: int
    limit: LimitReached


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker does for a subscription."""

    subscription: int
    rate: float
    """Messages handled, a second, over the last few."""
    in_flight: int
    """Messages that are with handlers."""
    flights: tuple[InFlight, ...] = ()
    """These; of many the ones that have been for longest."""
    stopped: tuple[StoppedLane, ...] = ()
    """Its lanes that read no further."""
    attempts: int = 0
    """Attempts that have ended since it began."""
    handling_seconds: float = 0.0
    """How long these took, together."""
    latencies: tuple[float, ...] = ()
    """Of what was pulled, how long some took of the last ones, evenly spread from the shortest to the longest."""
    error: str | None = None
    """The last one."""
    error_at: float | None = None
    """When that was, in seconds since 1970."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers of a subscription have told, together."""

    rate: float = 0.0
    in_flight: int = 0
    attempts: int = 0
    """Of all that told anything within a day, so that it grows when one begins anew."""
    handling_seconds: float = 0.0
    latencies: tuple[float, ...] = ()
    """Of those that tell just now."""
    error: str | None = None
    """The last one, as long as its worker lives or not long after."""
    error_at: datetime | None = None
