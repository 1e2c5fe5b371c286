"""What workers, owners of consumers and servers report of themselves, and the state of a subscription and its
lanes."""

from datetime import datetime
from typing import Any

import msgspec

from milepost.dispatch import Cursor, LimitReached
from milepost.ranges import NO_POSITIONS, Ranges


class InFlight(msgspec.Struct, frozen=True):
    """A message that is with a handler, or a consumer."""

    position: int
    since: float
    """Since when, about, in seconds since 1970."""


class StoppedLane(msgspec.Struct, frozen=True):
    """A lane that reads no further."""

    lane: int
    limit: LimitReached


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
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


class SubscriptionActivity(msgspec.Struct, frozen=True, kw_only=True):
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


NO_ACTIVITY = SubscriptionActivity()


class LaneStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One lane of a subscription."""

    number: int
    cursor: Cursor
    held: bool
    """Whether a worker has it, as far as is known: it was taken, not released, and its owner is not known dead."""
    owner: str | None = None
    """The worker that has it; None: nobody has, or leases are not kept in rows."""
    since: datetime | None = None
    """When that came to be."""
    stopped: LimitReached | None = None
    """The limit at which it reads no further, as its worker told a moment ago."""
    replay: Ranges = NO_POSITIONS
    """What had been handled before and is repeated on purpose."""


class SubscriptionState(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription, whoever works on it."""

    id: int
    group: str
    name: str
    status: str
    """`running`, `paused`: what a person wants."""
    barrier: str | None = None
    """Why nothing may run for a moment, or nothing beyond a position, in words."""
    stalled: str | None
    """Why it is stalled, if it is."""
    waiting: int
    retrying: int
    unrouted: int
    parked: int
    told: SubscriptionActivity = NO_ACTIVITY
    """What its workers say that they do."""
    lanes: tuple[LaneStatus, ...]
    outdated: tuple[str, ...] = ()
    """Workers that wait, since newer ones run it with another definition."""
    settings: dict[str, Any] | None = None
    """All its options, by their names, if it was created for consumers; else they are in a program."""
    consumers: int = 0
    """How many it has, in all processes."""
    standby: tuple[str, ...] = ()
    """Processes with consumers that stand by, since another has the lane."""


class ConsumerPresence(msgspec.Struct, frozen=True, kw_only=True):
    """What a process with consumers of a subscription tells."""

    acted: int
    """Which change of the subscription it follows, by the number of them."""
    owns: bool
    """Whether it has the lane; else it stands by."""
    consumers: int
    statistics: Any
    """What its consumers do, if it has the lane."""
    node: str | None
    """The address at which it serves consumers elsewhere, if it does."""


class ConsumerOwnerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner of a subscription has told last, and what is stored of messages that nobody takes."""

    owner: str | None
    at: datetime | None
    statistics: str | None
    """As JSON."""
    unrouted: int | None
    """The position of the first message that no consumer takes."""
    unrouted_since: datetime | None
    now: float
    """The database's time, in seconds since 1970."""


class Node(msgspec.Struct, frozen=True):
    """A server that lives."""

    address: str
    """Where clients reach it: a URL."""
    version: str
    """Of its program."""
    since: datetime
    """When it came, by the database's clock."""


class ConsumerOwner(msgspec.Struct, frozen=True):
    """The process that serves the consumers of a subscription."""

    worker: str
    address: str | None
    """Of the server that it is; None: nobody here can be sent there."""
