"""The two services that can be replaced: `Progress` keeps cursors and deliveries, `Leases` says which lanes a
worker may try."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable
from uuid import UUID

import msgspec

from milepost.dispatch import Cursor, Exchange, ExchangeAnswer, ExchangeWrite, LaneState
from milepost.errors import Unavailable
from milepost.log.query import Since
from milepost.progress.reports import SubscriptionState, WorkerReport
from milepost.ranges import NO_POSITIONS, Ranges

BARRIER_RENEW_SECONDS = 3.0
"""Seconds after which whoever needs a barrier sets it again: it falls by itself when that stops."""

HandledBefore = Mapping[tuple[int, int], Ranges]
"""By the number of a definition and a lane of it."""


class PassedBeforeReplay(msgspec.Struct, frozen=True):
    """What one definition had passed before a replay."""

    number: int
    selects: str
    """What it selected: anything else it had passed without handling it."""
    orders: str
    """What it ordered by, which says whose a message was."""
    lanes: int
    ranges: dict[int, list[int]]
    """For each of its lanes that has some: first, last, first, last, …"""


RowLocation: TypeAlias = tuple[int, int, str | None]
"""The position of a row, its lane and its key."""
LocateRows: TypeAlias = Callable[[Sequence[int]], Awaitable[Sequence[RowLocation]]]


class RowOnly(msgspec.Struct, frozen=True):
    """Stands for a message where only its row is known: progress may be kept elsewhere than the log."""

    position: int
    size: int = 0

    @property
    def properties(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class WorkerLease:
    """A sign of life: this worker lives, for so many seconds from now on."""

    worker: str
    lease: float


class ServingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker does for a subscription."""

    id: int
    number: int
    """Of the definition that it knows."""
    runs: bool
    """Whether it works; else it waits, for another order to be in force or for a newer program to end."""
    lanes: Sequence[int]
    """Those that it has, or of which something still runs."""
    waits: bool = False
    """Whether something still runs that ran when lanes were wanted back."""
    keep_done: float | None = None
    """For how many seconds rows are kept of what is done; None: not at all."""


@dataclass(frozen=True, kw_only=True)
class SubscriptionDefinition:
    """A subscription as a program declares it."""

    group: str
    name: str
    lanes: int
    selects: str
    """What it selects, in one canonical text: category, stream, types, filter."""
    orders: str
    """What it orders by, in one canonical text."""
    start: Cursor
    """Where it begins if it is new."""
    since: Since | None = None
    """If it is new: older messages are passed over, wherever they are, since some may commit late."""
    paused: bool = False
    """If it is new: it waits until somebody resumes it."""
    renamed_from: str | None = None
    exactly_once: bool = False
    """Whether its handlers write in the transaction of the progress: then nothing may come twice."""
    life: UUID | None = None
    """Of the server that keeps progress, when this was reckoned: refused in another one. None: in any."""
    log_life: UUID | None = None
    """The same of the log's server, for the start. None: the start is a position that somebody has named."""


class SubscriptionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as it is stored, for a worker of one of its definitions."""

    id: int
    number: int
    """Of the worker's definition."""
    newest: int
    """Of the definition in force."""
    lanes: int
    orders: str
    """What the definition orders by, in one canonical text."""
    status: str
    """`running`, `paused`: what a person wants."""
    since: Since | None
    """Older messages are passed over."""
    in_code: bool = True
    """Whether a program declares it; else it was created for consumers."""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    """What it was created with, all options by their names."""
    acted: int = 0
    """Grows with everything that a person does to it."""
    forced: int = 0
    """The last action by which what is out is to be given back without waiting for it, as a number of `acted`."""
    rekeys: bool = False
    """Whether rows still have their keys by an order before."""
    limits: dict[str, int] = msgspec.field(default_factory=dict)
    """What operators set beside what the code says."""
    barrier: str | None = None
    """Why nothing may run, or nothing beyond a position, in words."""
    barrier_at: int | None = None
    """That position."""
    life: UUID | None = None
    """The life of the server that keeps progress in which this was read."""
    begun: int | None = None
    """The position after which it began; None: that is not known."""
    created: bool = False
    """Whether it is new."""
    changed: str | None = None
    """What of its definition changed, in words."""
    pending: Literal["wait", "help", "ready", "refused"] | None = None
    """What keeps another order, or other lanes, from being in force, if something does: the lanes have to come to
    one position, by others or with this worker's help; or they are there; or nobody can bring them there, and as
    they are messages would come twice."""

    @property
    def may_run(self) -> bool:
        """Whether nobody else has to run it first."""
        return not self.is_outdated and self.pending in (None, "help")

    @property
    def is_outdated(self) -> bool:
        """Whether a newer program runs it."""
        return self.newest > self.number

    @property
    def is_in_force(self) -> bool:
        """Whether it runs as the worker's program declares it."""
        return not self.is_outdated and self.pending is None

    @property
    def rests(self) -> bool:
        """Whether nothing of it may run."""
        return self.status == "paused" or (self.barrier is not None and self.barrier_at is None)


@dataclass(frozen=True, kw_only=True)
class LaneGrant:
    """A lane that was taken: what is stored of it, and the right to write it."""

    subscription: int
    lane: int
    epoch: int
    revision: int
    state: LaneState[RowOnly]
    replay: Ranges = NO_POSITIONS
    """What is repeated on purpose; of this, what had been handled before is in memory."""
    memories: tuple[PassedBeforeReplay, ...] = ()
    previous: int | None = None
    """The epoch that the lane had before: who held that itself, and did not crash, knows that nobody vanished."""
    worker: str | None = None
    """Who has taken it; None: whoever asks does not say."""
    life: UUID | None = None
    """Of the server that keeps progress, when it was taken. None: it has no server."""
    log_life: UUID | None = None
    """Of the log's server: it gets messages of this life, for in another one others may be at their positions."""


class StaleLane(Exception):
    """Another has taken the lane or moved its cursor, or the server has another life: nothing was written."""


class OutdatedDefinition(Exception):
    """The subscription has a newer definition than this worker's: it may not have its lanes."""

    def __init__(self, number: int) -> None:
        super().__init__(f"it has definition {number}")
        self.number = number


@runtime_checkable
class Progress(Protocol):
    """Cursors and deliveries."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def now(self) -> float:
        """The time that decides, in seconds since 1970."""
        ...

    async def life(self) -> UUID | None:
        """The present life of the server that keeps progress; None: there is no server that could lose commits."""
        ...

    async def follow(self, log_life: UUID, survived_since: Callable[[UUID], int]) -> None:
        """The log's server has this life now, perhaps another one than before.

        `survived_since` says up to which position the log is what it was in an earlier life: what comes after that
        may have been lost, and its positions drawn again. Progress that is kept with the log went back with it.
        """
        ...

    async def declare(
        self, definitions: Sequence[SubscriptionDefinition], sign: WorkerLease | None = None
    ) -> list[SubscriptionRecord]:
        """Creates what is new, and tells what is there; safe from many processes at once.

        Without a sign of life nobody runs what is declared, so far.
        """
        ...

    async def known(self, group: str) -> set[str]:
        """The names of the subscriptions of a group."""
        ...

    async def look(self, sign: WorkerLease, serving: Sequence[ServingStatus]) -> dict[int, SubscriptionRecord]:
        """These subscriptions as workers of definitions of these numbers have to know them now.

        One that was deleted is missing, and one that a crash took back. What is told holds until it is told
        otherwise, or the worker is dead.
        """
        ...

    async def leave(self, worker: str) -> None:
        """A worker does nothing any more."""
        ...

    async def reorder(
        self,
        subscription: int,
        definition: SubscriptionDefinition,
        places: LocateRows,
        sign: WorkerLease | None = None,
    ) -> str | None:
        """Puts another order, or other lanes, in force, and says so; None if the lanes are not `ready` any more.

        `places` says for rows at given positions in which lane they are then, and under which key.
        """
        ...

    async def take(
        self,
        subscription: int,
        lanes: Collection[int],
        number: int | None = None,
        acted: int | None = None,
        *,
        worker: str | None = None,
        log_life: UUID | None = None,
    ) -> list[LaneGrant]:
        """Fences whoever had these lanes, by a new epoch and revision, and reads what is stored.

        Raises `OutdatedDefinition` for a worker whose definition, by its number, is not the newest. Nothing is
        taken by one
        that does not know what people have done meanwhile: it has to look first. Nor by one that reads the log in
        another life of its server than the present one, as far as that can be told: it has to look at the log.

        Whether the previous owner had released it is said by `state.unclean`.
        """
        ...

    async def exchange(
        self, held: LaneGrant, exchange: Exchange[Any], *, stall_after: int, on_park: str, connection: Any = None
    ) -> "ExchangeResult":
        """One transaction: what is to be written, then what is asked.

        With a connection it is part of that connection's transaction, which the caller commits. Raises
        `StaleLane`,
        `RolledBack`, or `Unavailable`, after which the outcome is unknown.
        """
        ...

    async def write(self, cursors: Sequence[tuple[LaneGrant, ExchangeWrite]]) -> "list[ExchangeResult | None]":
        """The cursors of several lanes, of any subscriptions, where nothing else is to be written or asked.

        None stands for a lane that is stale. Raises `RolledBack`, or `Unavailable`, after which the outcome is
        unknown, for all of them.
        """
        ...

    async def release(self, held: LaneGrant, exchange: Exchange[Any] | None) -> None:
        """The last write of an owner, which leaves the lane in good order."""
        ...

    async def report(self, worker: str, reports: Sequence[WorkerReport]) -> None:
        """What a worker does, for whoever looks at `standings`."""
        ...

    async def standings(self, group: str | None = None, name: str | None = None) -> list[SubscriptionState]:
        """How all subscriptions stand, or the one of this group and name, in the order of their addresses."""
        ...


@dataclass(frozen=True)
class ExchangeResult:
    """What came of an exchange: the lane as it is held now, and the answer."""

    held: LaneGrant
    answer: ExchangeAnswer[RowOnly]
    now: float
    transaction: str | None = None
    """The transaction that it was part of, as PostgreSQL names it once it writes."""


class RolledBack(Exception):
    """A required move did not find its revision: the transaction was rolled back, for certain."""


@dataclass(frozen=True)
class LaneShare:
    """Which lanes of a subscription a worker may try, and which it should hand over."""

    take: Sequence[int] = field(default_factory=tuple)
    give: Sequence[int] = field(default_factory=tuple)


@dataclass(frozen=True)
class LeaseHome:
    """Where in PostgreSQL a program keeps what it shares with others like it."""

    url: str
    schema: str


@runtime_checkable
class Leases(Protocol):
    """Who may try which lanes. It only keeps workers out of each other's way: what makes a write valid is the
    epoch and the revision, which are progress's.

    One object may serve several workers. All that a worker asks for it asks for on one event loop, in a thread of
    its own, so that no handler can keep it from beating.
    """

    async def admit(self, worker: str, group: str, lease: float, home: LeaseHome) -> "LeaseMembership":
        """This worker lives from now on, for `lease` seconds after each beat."""
        ...


class LeaseMembership(Protocol):
    """A worker among those that share lanes. Its methods raise `Unavailable` while they cannot tell."""

    async def beat(self) -> bool:
        """The worker still lives; False if others think that it does not, and its lanes are lost."""
        ...

    async def change_lease(self, lease: float) -> None:
        """From now on the worker lives for so many seconds after each beat, of which this is one."""
        ...

    async def balance(
        self, wanted: Mapping[int, int], held: Mapping[int, Collection[int]]
    ) -> dict[int, LaneShare]:
        """For subscriptions with so many lanes, of which this worker has some: what it should take and give, so
        that all live workers of the group that want them have about the same number."""
        ...

    async def release(self, subscription: int, lanes: Collection[int]) -> None:
        """Others may have these."""
        ...

    async def close(self) -> None:
        """This worker no longer lives; others may have all its lanes."""
        ...


class AnotherLife(Unavailable):
    """What was to be written was reckoned before a crash or a failover: nothing was, and it can be tried again."""


def stale_lane_error() -> StaleLane:
    return StaleLane("the lane has another owner, or its cursor has moved")
