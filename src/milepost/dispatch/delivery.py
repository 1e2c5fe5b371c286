"""A message on its way: its row in the store, its entry in memory, and its delivery to a consumer."""

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from milepost.dispatch.routing.route import RouteMember


class DispatchedMessage(Protocol):
    """The fields of a message that dispatch needs."""

    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def properties(self) -> dict[str, Any]: ...


M = TypeVar("M", bound=DispatchedMessage)


class State(StrEnum):
    """The state of a message that has a row."""

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
    """The suspicion against a message that ran when a process vanished: it runs alone from then on."""

    POSSIBLE = "possible"
    """others ran there as well"""
    CERTAIN = "certain"
    """nothing else ran there"""


class DeliveryRow(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a message that is not simply passed by the cursor: failed, held, unrouted or parked."""

    position: int
    key: str | None
    state: State
    since: float
    """Time at which it came into this state."""
    attempts: int = 0
    """Number of attempts since a person last retried it."""
    total: int = 0
    """Number of all attempts."""
    due: float | None = None
    """Time at which the lane's owner has to look at it; None: it waits for something else."""
    route: str | None = None
    """Of an unrouted row: the label of the group that had no room for it; None: no route matched."""
    suspicion: Suspicion | None = None
    """The suspicion that it ended a process; None: there is none."""
    waits_since: float | None = None
    """Time since which it waits for a consumer that can read it; None: none has reported that it cannot."""
    reason: str = ""
    error: str = ""
    consumer: str | None = None
    """Name of the consumer at the last attempt; None: a handler, or no attempt."""
    size: int = 0
    """Bytes of the message."""
    revision: int = 1
    """Counts the changes of the row, a person's too; a change names the revision that it replaces."""

    def changed(self, **changes: Any) -> "DeliveryRow":
        """Return the row with these changes; its revision follows when it is written."""
        return msgspec.structs.replace(self, **changes)


# The status of an entry: small integers, because the hot path compares them.
STATUS_BLOCKED: Final = 0
"""behind another entry of its key, or its key is not known to be free"""
STATUS_READY: Final = 1
"""in a queue, to be handed out"""
STATUS_GUARDED: Final = 2
"""promised to a consumer, until its row says that it runs"""
STATUS_OPEN: Final = 3
"""handed out"""
STATUS_ASIDE: Final = 4
"""to get the row that its fate says"""
STATUS_GONE: Final = 5
"""settled, or in the store alone"""


class LaneEntry(msgspec.Struct, Generic[M], eq=False, gc=False):
    """A message in the memory of a lane."""

    position: int
    message: M
    key: str | None
    size: int
    status: int = STATUS_BLOCKED
    guard: bool = False
    """True if its row has to say that it runs before it does."""
    suspect: bool = False
    """True if it ran when a process vanished: it runs alone, and its row says so before it does."""
    next: "LaneEntry[M] | None" = None
    """The following entry of its key."""
    last: "LaneEntry[M] | None" = None
    """On the first of several entries of a key: the last of them."""
    row: DeliveryRow | None = None
    """Its row as it is stored; None: it has none."""
    fate: DeliveryRow | None = None
    """The row to be stored; None: none is to be written."""
    delivery: "LaneDelivery[M] | None" = None
    """The delivery in force."""

    def as_row(self, state: State, now: float) -> DeliveryRow:
        """Return the first row of a message that has none."""
        return DeliveryRow(position=self.position, key=self.key, state=state, since=now, size=self.size)

    @property
    def attempts(self) -> int:
        """Number of attempts before this one."""
        return self.row.attempts if self.row else 0

    def __lt__(self, other: "LaneEntry[M]") -> bool:
        return self.position < other.position


class LaneDelivery(msgspec.Struct, Generic[M], eq=False, gc=False):
    """A message that was handed out or promised, and the claim to settle it."""

    message: M
    attempt: int
    """From 1."""
    entry: LaneEntry[M]
    member: "RouteMember[M] | None" = None
    deadline: float | None = None
    begun: float | None = None
    """Time at which its consumer began with it, by the caller's clock; None: it has not begun."""
    held_after: int = 0
    """Number of messages that its consumer had settled by then, or before it got this one."""

    @property
    def is_in_force(self) -> bool:
        """True if it can still be settled."""
        return self.entry.delivery is self

    @property
    def alone(self) -> bool:
        """True if nothing else may run in this process beside it."""
        return self.entry.suspect

    @property
    def consumer(self) -> str | None:
        """Name of the consumer; None: the lane's own process."""
        return self.member.consumer.name if self.member else None
