"""The contract with the store: the writes and questions of one transaction, and the answer.

A lane has one exchange under way at a time. The writes come first and the questions see them. Because no two
exchanges overlap, what a lane knows of the store is either certain or asked in the next one.
"""

from collections.abc import Mapping, Sequence
from typing import Generic

import msgspec

from milepost.dispatch.delivery import DeliveryRow, LaneDelivery, M
from milepost.ranges import Ranges


class Cursor(msgspec.Struct, frozen=True):
    """The position, and the ranges beyond it, in which each message is done or has a row."""

    position: int
    ahead: tuple[tuple[int, int], ...] = ()

    @property
    def end(self) -> int:
        """The last position that it passes."""
        return self.ahead[-1][1] if self.ahead else self.position

    def up_to(self, position: int) -> "Cursor":
        """Return the part of it at or below a position."""
        return Cursor(min(self.position, position), tuple(Ranges(self.ahead).up_to(position)))


class RowChange(msgspec.Struct, frozen=True):
    """A compare-and-set of one row."""

    position: int
    replaces: int | None
    """The revision that the row must have; None: there is no row yet."""
    row: DeliveryRow | None
    """The new row; None: the row is removed or kept as done."""
    required: bool = False
    """True if the transaction is rolled back unless the row has that revision."""

    @classmethod
    def of(
        cls, position: int, before: DeliveryRow | None, after: DeliveryRow | None, *, required: bool = False
    ) -> "RowChange":
        """Return the change from the stored row to another, one revision further."""
        revision = before.revision if before else 0
        row = after.changed(revision=revision + 1) if after else None
        return cls(position, revision if before else None, row, required)


class AttemptTally(msgspec.Struct, frozen=True):
    """The outcomes of attempts since the last write, for the circuit breaker of all lanes together."""

    succeeded: int = 0
    failed: int = 0
    """Failures after the last success."""


class ExchangeWrite(msgspec.Struct, frozen=True):
    """The writes of one transaction, fenced by the lane's epoch and revision."""

    cursor: Cursor
    moves: Sequence[RowChange]
    tally: AttemptTally
    keep_done: float | None = None
    """Seconds for which rows of done messages are kept, for people to look at; None: they are removed at once."""


class ExchangeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The questions of a lane to the store."""

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
    """Keys to look up: does any stored row hold them?"""
    due: bool = False
    """True to look for rows whose `due` has come, whatever their state."""
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
    write: ExchangeWrite | None
    ask: ExchangeQuery | None
    commits: Sequence[LaneDelivery[M]] = ()
    """Deliveries that are settled by this transaction itself, or not at all."""

    @property
    def plain(self) -> ExchangeWrite | None:
        """The write, if it is a cursor and nothing else; otherwise None."""
        write = self.write
        if write is None or write.moves or write.tally.failed or self.ask is not None:
            return None
        return write


class LoadedRow(msgspec.Struct, Generic[M], frozen=True):
    """A row, and its message from the log."""

    row: DeliveryRow
    message: M


class HeldKey(msgspec.Struct, Generic[M], frozen=True):
    """The unsettled rows of a key, lowest first; with `on_park="continue"` without the parked ones."""

    rows: Sequence[LoadedRow[M]]
    more: bool
    """True if there are further rows behind those."""


class RowCounts(msgspec.Struct, frozen=True):
    """The numbers of rows of a subscription, over all its lanes."""

    waiting: int = 0
    retrying: int = 0
    unrouted: int = 0


class ExchangeAnswer(msgspec.Struct, Generic[M], frozen=True, kw_only=True):
    """The answer of the store to an exchange. Questions that were not asked have empty answers."""

    moved: Sequence[bool] = ()
    """For each move: True if it found the revision that it names."""
    held: Mapping[str, HeldKey[M]] = msgspec.field(default_factory=dict)
    """For keys that were asked for, that have a row which is due, or that `heads_after` found:
    their rows. A key that was asked for and is not here is free."""
    due: Sequence[LoadedRow[M]] = ()
    """Rows that are due, lowest first, also those that a person skipped."""
    next_due: float | None = None
    """Time at which the earliest of the other rows is due that the lane does not hold."""
    heads_end: str | None = None
    """The key up to which heads were looked for; None: there are no further ones."""
    unrouted: Sequence[LoadedRow[M]] = ()
    unrouted_end: int | None = None
    """The position up to which unrouted rows were looked at; None: there are no further ones."""
    rows: bool = True
    """True if this lane has any unsettled rows."""
    counts: RowCounts = RowCounts()
    streak: int = 0
    """Attempts of the whole subscription that failed since the last success."""
    stalled: str | None = None
    """The reason why the subscription is stalled; None: it is not."""


class LaneState(msgspec.Struct, Generic[M], frozen=True, kw_only=True):
    """The stored state of a lane when an owner takes it."""

    cursor: Cursor
    now: float
    rows: bool = False
    """True if it has any unsettled rows."""
    running: Sequence[LoadedRow[M]] = ()
    """Rows that say `running`: their owner vanished."""
    unclean: bool = False
    """True if the owner before this one vanished instead of releasing the lane."""
    counts: RowCounts = RowCounts()
    streak: int = 0
    stalled: str | None = None
