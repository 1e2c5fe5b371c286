"""A message on its way: its row, its entry in the window, and the claim that a consumer has on it."""

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from milepost.dispatch.routes import Member


class Dispatched(Protocol):
    """What dispatch has to know of a message."""

    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def properties(self) -> dict[str, Any]: ...


M = TypeVar("M", bound=Dispatched)


class State(StrEnum):
    """What a row says of its message."""

    WAITING = "waiting"
    """behind an earlier one of its key"""
    RUNNING = "running"
    """started, or about to be"""
    RETRYING = "retrying"
    """failed, and tried again when it is due"""
    UNROUTED = "unrouted"
    """no route takes it now"""
    PARKED = "parked"
    """given up, until a person decides"""
    SKIPPED = "skipped"
    """passed over by a person"""
    DONE = "done"
    """settled, and kept for a while"""


class Suspicion(StrEnum):
    """What is thought of a message that ran when a process vanished: it runs alone from then on."""

    POSSIBLE = "possible"
    """others ran there as well"""
    CERTAIN = "certain"
    """nothing else ran there"""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a message that needs attention of its own."""

    position: int
    key: str | None
    state: State
    since: float
    """When it came into this state."""
    attempts: int = 0
    """How often it was tried since a person last retried it."""
    total: int = 0
    """How often it was tried at all."""
    due: float | None = None
    """When the lane's owner has to look at it."""
    route: str | None = None
    """For an unrouted one: the route that had no room for it, if one matched."""
    suspicion: Suspicion | None = None
    """Whether it may have ended a process; None: nothing says so."""
    waits_since: float | None = None
    """Since when it waits for somebody who can read it; None: nobody has said that he cannot."""
    reason: str = ""
    error: str = ""
    consumer: str | None = None
    """Who had it at the last attempt; None: a handler, or nobody."""
    size: int = 0
    """Of its message, in bytes."""
    revision: int = 1
    """Counts the changes of the row, a person's too; a change names the revision that it replaces."""

    def changed(self, **changes: Any) -> "Row":
        """The row with these changes; its revision follows when it is written."""
        return msgspec.structs.replace(self, **changes)


# Where an entry is; small integers, because the hot path compares them.
BLOCKED: Final = 0
"""behind another of its key, or its key is not known to be free"""
READY: Final = 1
"""in a queue, to be handed out"""
GUARDED: Final = 2
"""promised to a consumer, until its row says that it runs"""
OPEN: Final = 3
"""handed out"""
ASIDE: Final = 4
"""to get the row that its fate says"""
GONE: Final = 5
"""settled, or in the store alone"""


class Entry(msgspec.Struct, Generic[M], eq=False, gc=False):
    """A message in the window."""

    position: int
    message: M
    key: str | None
    size: int
    place: int = BLOCKED
    guard: bool = False
    """Its row has to say that it runs before it does."""
    suspect: bool = False
    """It ran when a process vanished: it runs alone, and its row says so before it does."""
    next: "Entry[M] | None" = None
    """The following one of its key."""
    last: "Entry[M] | None" = None
    """At the first of a key with several: the last of them."""
    row: Row | None = None
    """What the store has of it."""
    fate: Row | None = None
    """What the store is to have of it."""
    delivery: "Delivery[M] | None" = None
    """The claim in force."""

    def as_row(self, state: State, now: float) -> Row:
        """What is stored of a message that had no row."""
        return Row(position=self.position, key=self.key, state=state, since=now, size=self.size)

    @property
    def attempts(self) -> int:
        """How often it was tried before."""
        return self.row.attempts if self.row else 0

    def __lt__(self, other: "Entry[M]") -> bool:
        return self.position < other.position


class Delivery(msgspec.Struct, Generic[M], eq=False, gc=False):
    """A message handed out, and the claim to settle it."""

    message: M
    attempt: int
    """From 1."""
    entry: Entry[M]
    member: "Member[M] | None" = None
    deadline: float | None = None
    begun: float | None = None
    """When its consumer began with it, by the clock of whoever drives the lane; None: it has not looked at it."""
    held_after: int = 0
    """How many its consumer had settled by then, or by when it got it."""

    @property
    def is_in_force(self) -> bool:
        """Whether it can still be settled."""
        return self.entry.delivery is self

    @property
    def alone(self) -> bool:
        """Whether nothing else may run in this process beside it."""
        return self.entry.suspect

    @property
    def consumer(self) -> str | None:
        """Whom it goes to; None is the lane's own process."""
        return self.member.consumer.name if self.member else None

    @property
    def route(self) -> str | None:
        """The consumer's route that matched: its name, or its expression."""
        return str(self.member.route) if self.member else None
