"""How a subscription stands: what is stored of it and of its lanes."""

from datetime import datetime
from typing import Any

import msgspec

from milepost.dispatch import Cursor, LimitReached
from milepost.progress.reports import Told
from milepost.ranges import NOTHING, Ranges

NOTHING_TOLD = Told()


class LaneStanding(msgspec.Struct, frozen=True, kw_only=True):
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
    replay: Ranges = NOTHING
    """What had been handled before and is repeated on purpose."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
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
    told: Told = NOTHING_TOLD
    """What its workers say that they do."""
    lanes: tuple[LaneStanding, ...]
    outdated: tuple[str, ...] = ()
    """Workers that wait, since newer ones run it with another definition."""
    settings: dict[str, Any] | None = None
    """All its options, by their names, if it was created for consumers; else they are in a program."""
    consumers: int = 0
    """How many it has, in all processes."""
    standby: tuple[str, ...] = ()
    """Processes with consumers that stand by, since another has the lane."""
