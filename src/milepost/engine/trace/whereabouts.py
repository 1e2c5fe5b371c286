"""Where a message is, for one subscription."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from milepost.dispatch import State
from milepost.engine.trace.deciding import Part
from milepost.engine.trace.traced import Fate
from milepost.log.message import Message
from milepost.progress.tracing import Flight, StoredRow, StoredSubscription

BY_ROW: dict[State, Fate] = {
    State.WAITING: "waiting",
    State.RUNNING: "in flight",
    State.RETRYING: "retrying",
    State.UNROUTED: "unrouted",
    State.PARKED: "parked",
    State.SKIPPED: "skipped",
    State.DONE: "done",
}
"""What the states of rows are called where they are told."""


@dataclass(frozen=True, kw_only=True)
class Whereabouts:
    """Where a message is, as far as that is known without its neighbours. The fields are those of `Traced`."""

    message: Message[Any]
    subscription: StoredSubscription
    state: Fate
    row: StoredRow | None = None
    flight: Flight | None = None
    why: str = ""
    parts: tuple[Part, ...] = ()
    definition: int | None = None
    reached: bool = True
    since: datetime | None = None
    lane: int | None = None
    key: str | None = None
    note: str | None = None
