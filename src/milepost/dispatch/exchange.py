"""What a lane writes to the store and asks of it: one exchange at a time, each in one transaction.

The writes come first and the questions see them. Because no two exchanges overlap, what a lane knows of the
store is either known for certain or asked in the next one.
"""

from collections.abc import Mapping, Sequence
from typing import Generic

import msgspec

from milepost.dispatch.delivery import Delivery, M, Row
from milepost.ranges import Ranges


class Cursor(msgspec.Struct, frozen=True):
    """Up to where, and in which ranges beyond, each message is done or has a row."""

    position: int
    ahead: tuple[tuple[int, int], ...] = ()

    @property
    def end(self) -> int:
        """The last position that it passes."""
        return self.ahead[-1][1] if self.ahead else self.position

    def up_to(self, position: int) -> "Cursor":
        """What of it lies at or below a position."""
        return Cursor(min(self.position, position), tuple(Ranges(self.ahead).up_to(position)))


class Move(msgspec.Struct, frozen=True):
    """A compare-and-set of one row."""

    position: int
    replaces: int | None
    """The revision that the row must have; None: there is no row yet."""
    row: Row | None
    """What it becomes; None: it is done."""
    required: bool = False
    """Whether the transaction is rolled back unless the row has that revision."""

    @classmethod
    def of(cls, position: int, before: Row | None, after: Row | None, *, required: bool = False) -> "Move":
        """From what is stored to something else, one revision further."""
        revision = before.revision if before else 0
        row = after.changed(revision=revision + 1) if after else None
        return cls(position, revision if before else None, row, required)


class Tally(msgspec.Struct, frozen=True):
    """How attempts ended since the last write, for the circuit breaker of all lanes together."""

    succeeded: int = 0
    failed: int = 0
    """Those after the last success."""


class Write(msgspec.Struct, frozen=True):
    """What one transaction writes, fenced by the lane's epoch and revision."""

    cursor: Cursor
    moves: Sequence[Move]
    tally: Tally
    keep_done: float | None = None
    """For how many seconds rows are kept of what is done, for people to look at; None: they go at once."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a lane wants to know."""

    now: float
    limit: int
    """The most rows to look for that are due, and the most heads."""
    bytes: int
    """The most bytes of messages to load in all; the first, and the first of each of `keys`, may exceed it."""
    per_key: int
    """The most rows to load of each of `keys`; of a key that was found otherwise it is one."""
    holding: Mapping[int, int]
    """Revisions of the rows that the lane has in memory: while unchanged they are neither due nor loaded again."""
    keys: Sequence[str] = ()
    """Keys to look up: whether anything stored holds them."""
    due: bool = False
    """Whether to look for rows whose `due` has come, whatever their state."""
    heads_after: str | None = None
    """Once after a start: keys above this one whose lowest row is `waiting`; "" is the beginning."""
    unrouted_after: int | None = None
    """Unrouted rows above this position, in order."""
    unrouted_limit: int = 0
    routes: frozenset[str] | None = None
    """Only those unrouted rows that wait for room in one of these routes; None: all."""


class Exchange(msgspec.Struct, Generic[M], frozen=True):
    """Writes and questions for one transaction."""

    now: float
    write: Write | None
    ask: Ask | None
    commits: Sequence[Delivery[M]] = ()
    """Deliveries that are settled by this transaction itself, or not at all."""

    @property
    def plain(self) -> Write | None:
        """What is written, if that is a cursor and nothing else."""
        write = self.write
        if write is None or write.moves or write.tally.failed or self.ask is not None:
            return None
        return write


class Loaded(msgspec.Struct, Generic[M], frozen=True):
    """A row, and its message from the log."""

    row: Row
    message: M


class HeldKey(msgspec.Struct, Generic[M], frozen=True):
    """The unsettled rows of a key, lowest first; with `on_park="continue"` without the parked ones."""

    rows: Sequence[Loaded[M]]
    more: bool
    """Whether there are further ones behind those."""


class Counts(msgspec.Struct, frozen=True):
    """How many rows the subscription has, of all its lanes."""

    waiting: int = 0
    retrying: int = 0
    unrouted: int = 0


class Answer(msgspec.Struct, Generic[M], frozen=True, kw_only=True):
    """What the store says to an exchange. The questions that were not asked have empty answers."""

    moved: Sequence[bool] = ()
    """For each move, whether it found the revision that it names."""
    held: Mapping[str, HeldKey[M]] = msgspec.field(default_factory=dict)
    """For keys that were asked for, that have a row which is due, or that `heads_after` found:
    their rows. A key that was asked for and is not here is free."""
    due: Sequence[Loaded[M]] = ()
    """Rows that are due, lowest first, also those that a person skipped."""
    next_due: float | None = None
    """When the earliest of the other rows is due that the lane does not hold."""
    heads_end: str | None = None
    """Up to which key heads were looked for; None: there are no further ones."""
    unrouted: Sequence[Loaded[M]] = ()
    unrouted_end: int | None = None
    """Up to where unrouted rows were looked at; None: there are no further ones."""
    rows: bool = True
    """Whether this lane has any unsettled rows at all."""
    counts: Counts = Counts()
    streak: int = 0
    """Attempts of the whole subscription that failed since the last success."""
    stalled: str | None = None
    """Why the subscription is stalled, if it is."""


class LaneState(msgspec.Struct, Generic[M], frozen=True, kw_only=True):
    """What is stored of a lane when an owner takes it."""

    cursor: Cursor
    now: float
    rows: bool = False
    """Whether it has any unsettled rows."""
    running: Sequence[Loaded[M]] = ()
    """Rows that say `running`: their owner vanished."""
    unclean: bool = False
    """Whether the owner before this one vanished instead of releasing the lane."""
    counts: Counts = Counts()
    streak: int = 0
    stalled: str | None = None
