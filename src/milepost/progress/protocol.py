"""What the engine needs of whoever keeps progress, and of whoever says which lanes a worker may try."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from milepost.dispatch import Answer, Cursor, Exchange, LaneState


class Bare(msgspec.Struct, frozen=True):
    """Stands for a message where only its row is known: progress may be kept elsewhere than the log."""

    position: int
    size: int = 0

    @property
    def properties(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, kw_only=True)
class Definition:
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
    renamed_from: str | None = None


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A subscription as it is stored."""

    id: int
    number: int
    """Of the definition in force."""
    lanes: int
    status: str
    """`running`, `paused`."""
    created: bool
    """Whether it is new."""
    changed: str | None = None
    """What of its definition changed, in words."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """A lane that was taken: what is stored of it, and the right to write it."""

    subscription: int
    lane: int
    epoch: int
    revision: int
    state: LaneState[Bare]
    previous: int | None = None
    """The epoch that the lane had before: who held that itself, and did not crash, knows that nobody vanished."""


class Stale(Exception):
    """Somebody else has taken the lane, or moved its cursor: nothing was written."""


class Progress(Protocol):
    """Cursors and deliveries."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def now(self) -> float:
        """The time that decides, in seconds since 1970."""
        ...

    async def declare(self, definitions: Sequence[Definition]) -> list[Opened]:
        """Creates what is new, and tells what is there; safe from many processes at once."""
        ...

    async def take(self, subscription: int, lanes: Collection[int]) -> list[Held]:
        """Fences whoever had these lanes, by a new epoch and revision, and reads what is stored.

        Whether the previous owner had released it is said by `state.unclean`.
        """
        ...

    async def exchange(
        self, held: Held, exchange: Exchange[Any], *, stall_after: int, on_park: str, connection: Any = None
    ) -> "Exchanged":
        """One transaction: what is to be written, then what is asked.

        With a connection it is part of that connection's transaction, which the caller commits. Raises `Stale`,
        `RolledBack`, or `Unavailable`, after which the outcome is unknown.
        """
        ...

    async def release(self, held: Held, exchange: Exchange[Any] | None) -> None:
        """The last write of an owner, which leaves the lane in good order."""
        ...


@dataclass(frozen=True)
class Exchanged:
    """What came of an exchange: the lane as it is held now, and the answer."""

    held: Held
    answer: Answer[Bare]
    now: float


class RolledBack(Exception):
    """A required move did not find its revision: the transaction was rolled back, for certain."""


@dataclass(frozen=True)
class Share:
    """Which lanes of a subscription a worker may try, and which it should hand over."""

    take: Sequence[int] = field(default_factory=tuple)
    give: Sequence[int] = field(default_factory=tuple)


class Leases(Protocol):
    """Who may try which lanes. It only keeps workers out of each other's way: what makes a write valid is the
    epoch and the revision, which are progress's."""

    async def open(self, worker: str, group: str, lease: float) -> None:
        """This worker lives from now on."""
        ...

    async def beat(self) -> bool:
        """It still does; False if others think that it does not, and its lanes are lost."""
        ...

    async def balance(self, wanted: Mapping[int, int], held: Mapping[int, Collection[int]]) -> dict[int, Share]:
        """For subscriptions with so many lanes, of which this worker has some: what it should take and give, so
        that all live workers of the group that want them have about the same number."""
        ...

    async def release(self, subscription: int, lanes: Collection[int]) -> None:
        """Others may have these."""
        ...

    async def close(self) -> None:
        """This worker no longer lives; others may have all its lanes."""
        ...
