"""How a subscription stands: what is stored of it and of its lanes."""

from datetime import datetime

import msgspec

from milepost.dispatch import Cursor


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


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription, whoever works on it."""

    group: str
    name: str
    status: str
    """`running`, `paused`: what a person wants."""
    stalled: str | None
    """Why it is stalled, if it is."""
    waiting: int
    retrying: int
    unrouted: int
    parked: int
    lanes: tuple[LaneStanding, ...]
