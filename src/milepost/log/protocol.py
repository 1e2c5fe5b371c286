"""What the rest of Milepost needs of a log: the smallest set of operations, and what each of them guarantees.

PostgreSQL is its only implementation, `milepost.log.postgres.log.PostgresLog`. Positions grow, may have gaps, and
a later one can be committed before an earlier one. What is at or below the horizon is final within one life of the
log's server: nothing appears there any more, and nothing changes but by retention and erasure. A life ends with a
crash or a failover, which may lose the newest commits; their positions are then drawn again. Therefore every
answer about positions can be tied to a life.

Every method raises `Unavailable` while the server cannot be reached. After that nothing is known of an append.

A `connection` is one of the caller's own: of psycopg, SQLAlchemy or Django. The call is then part of its
transaction, and errors of the driver come as they are. None: a connection of the log's own.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Protocol
from uuid import UUID

from milepost.log.message import Appended
from milepost.log.query import Now, Page, Query, Segment
from milepost.names import MAX_POSITION_NUMBER
from milepost.ranges import Ranges

HOLDER_NAMED_SECONDS = 1.0
"""Seconds after which whoever holds the horizon is named in the log."""


@dataclass(frozen=True, slots=True)
class HorizonHolder:
    """A transaction that appended, or may have, and has not ended."""

    transaction: str
    pid: int | None
    application: str
    state: str
    age: float | None
    """Seconds since it began; None where this role may not see what others do."""
    gid: str | None

    def __str__(self) -> str:
        age = "open for an unknown time" if self.age is None else f"open for {self.age:.1f} s"
        if self.pid is None:
            return f"{self.name}, {age}"
        return f"{self.name} ({self.application or 'no application name'}), {self.state}, {age}"

    @property
    def name(self) -> str:
        """What PostgreSQL knows it by, for whoever may see no more."""
        return f"pid {self.pid}" if self.pid is not None else f"prepared transaction {self.gid!r}"

    @property
    def ended_by(self) -> str:
        """The statement that ends it."""
        if self.pid is not None:
            return f"select pg_terminate_backend({self.pid})"
        gid = (self.gid or "").replace("'", "''")
        return f"rollback prepared '{gid}'"


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What lies beyond the horizon, and who keeps it there: for a moment, unless a transaction stays open."""

    horizon: int
    """The position up to which everything is final."""
    drawn: int
    """The newest position that was given to an append."""
    holders: tuple[HorizonHolder, ...] = ()
    """The transactions that may hold the horizon, the oldest first."""
    seconds: float = 0.0
    """The age of the oldest of them; where ages may not be seen, of the first message beyond the horizon."""

    @property
    def positions(self) -> int:
        """How many positions are held back."""
        return max(0, self.drawn - self.horizon) if self.holders else 0

    @property
    def lasting(self) -> tuple[HorizonHolder, ...]:
        """Those that hold it for longer than any short append takes; the oldest first."""
        ages = ((self.seconds if holder.age is None else holder.age) for holder in self.holders)
        return tuple(holder for holder, age in zip(self.holders, ages, strict=True) if age > HOLDER_NAMED_SECONDS)


class HorizonState(NamedTuple):
    """The horizon at one moment."""

    position: int
    """Everything up to it is final. It never goes back within one life."""
    drawn: int
    """The newest position that was given to an append; it may not be committed, or never be."""
    life: UUID | None
    """The life of the server that both are of; None before the first look."""


@dataclass(frozen=True, slots=True)
class PreparedAppend:
    """Messages for one stream, checked and encoded, to be appended now or at the end of a transaction."""

    stream: str
    messages: bytes
    """A JSON array."""
    count: int
    expected: int
    """The version that the stream must have; `ANY`, `NO_STREAM`, `STREAM_EXISTS` as their numbers."""


class StreamVersion(NamedTuple):
    """Which message of which stream stands at a position."""

    position: int
    stream: str
    version: int


class Fingerprint(NamedTuple):
    """Tells the message at a position from any other that ever stood there or will.

    One that was lost and is appended again has the same id and another time.
    """

    position: int
    id: UUID
    time: datetime


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A name that is used in the log, with the newest message that has it."""

    name: str
    count: int = 0
    """Of a stream its last version, of a type how many of the newest messages have it."""
    position: int | None = None
    """Of the newest message; None if there is none any more, or none was looked at."""
    type: str | None = None
    time: datetime | None = None
    share: float | None = None
    """Of a type its part of the whole log, as the database estimates it; None if it is rare, or not known yet."""


class CataloguePage(NamedTuple):
    """Names of one kind, sorted by their bytes."""

    entries: list[CatalogueEntry]
    after: str | None
    """What the next page begins with; None if this is the last."""


class RelatedMessage(NamedTuple):
    """A message with a correlation id, or caused by another message."""

    position: int
    stream: str
    version: int
    id: UUID
    type: str
    time: datetime
    causation_id: str | None


FindStart = Callable[[], Awaitable[int | Now]]
"""Finds out where a follower begins."""


class LogFeed(Protocol):
    """The head of the log, read once for all followers of a process, and the history behind it."""

    @property
    def life(self) -> UUID | None:
        """The life in which everything was read that `since` gives; None before the first look."""
        ...

    def survived_since(self, life: UUID) -> int:
        """Return the position up to which the log is what it was in an earlier life; 0 where nobody knows."""
        ...

    def followed(self) -> AbstractAsyncContextManager[None]:
        """Keep the feed running within the block. Without followers it costs nothing."""
        ...

    def waking(self, event: asyncio.Event) -> AbstractContextManager[None]:
        """Set the event, within the block, whenever there is more than before or the life is another.

        An append wakes within milliseconds where notifications arrive, elsewhere within `UNNOTIFIED_POLL_SECONDS`.
        """
        ...

    async def wait_until_current(self) -> None:
        """Wait until the feed knows the newest life and has gone back to what survived."""
        ...

    def since(self, position: int) -> Segment | None:
        """Return what the feed has after a position, all of it final; None if that is too far back for it."""
        ...

    def after(self, query: Query, position: int) -> AsyncGenerator[Segment, None]:
        """Yield what lies between a position and the horizon, in order and without gaps.

        Ends early while the log is unavailable; the last segment says how far it came. Readers of the same query
        at the same place share their pages.
        """
        ...

    def follow(self, query: Query, after: int | Now | FindStart) -> AsyncGenerator[Page, None]:
        """Yield messages after a position for ever, each once it is final and only once; waits out every outage.

        Where the log loses messages that were yielded, what stands at their positions then is yielded again.
        An `after` that has to be found out first is followed by an empty page.
        """
        ...


class TransactionLog(Protocol):
    """What can be done with a log on a connection of the caller's. For that it need not be open."""

    async def append(
        self, batches: Sequence[PreparedAppend], *, wake: bool = True, connection: object | None = None
    ) -> list[Appended]:
        """Append to one stream or several, all or nothing; the results are in the order given.

        Positions of one stream grow with its versions. Raises `WrongVersion` if a stream is not at the expected
        version, and `IdReused` if a message id is in its stream with other content: then nothing was written and
        the transaction stays usable. If all messages of a stream are in it already, by id and content, its result
        is a `duplicate`. Without ids a repetition appends again.

        With a `connection`, the horizon stays below the positions drawn until its transaction ends.
        `wake=False` notifies nobody: for a transaction that will be prepared.
        """
        ...

    def stream_pages(
        self,
        stream: str,
        query: Query,
        *,
        after: int = 0,
        after_version: int = 0,
        before_version: int = MAX_POSITION_NUMBER + 1,
        limit: int | None,
        connection: object | None = None,
        looked: Callable[[int], None] = lambda _: None,
    ) -> AsyncGenerator[Page, None]:
        """Yield the messages of one stream after a position and a version, and before a version, in pages.

        It needs no horizon: versions of a stream are committed in order, so that it is complete up to its last
        committed message. With a `connection` it also yields what that transaction has appended. As long as
        nothing was found, `looked` is called with the version from which to go on.
        """
        ...

    async def messages_at(
        self,
        positions: Sequence[int],
        *,
        life: UUID | None = None,
        max_bytes: int | None = None,
        connection: object | None = None,
        raw: bool = False,
    ) -> Page:
        """Return the messages at these positions, in order; those that are gone are left out.

        Raises `Unavailable` if `life` is given and is over, for other messages may stand there now. With
        `max_bytes` it stops there, after at least one message: ask again for what comes after the last.
        With `raw` no class of the program decodes payloads.
        """
        ...

    async def last_version(
        self, stream: str, *, up_to: int | None = None, connection: object | None = None
    ) -> int:
        """Return the highest committed version of a stream, or the highest at or below a position; 0 if none is.

        The cost does not depend on how long the stream is.
        """
        ...


class Log(TransactionLog, Protocol):
    """An open log: messages in streams, in one order of positions."""

    async def identity(self) -> UUID:
        """Return what tells this log from others. It stays the same when the log is restored from a backup."""
        ...

    async def close(self) -> None:
        """End all following and all connections. Whoever still follows gets a `MilepostError`."""
        ...

    def limit_statement_time(self, lease: float) -> None:
        """From now on no call takes longer than a share of a lease of so many seconds: it raises `Unavailable`."""
        ...

    # Read

    async def page(
        self, query: Query, *, low: int, high: int, limit: int, life: UUID | None, raw: bool = False
    ) -> Page:
        """Return messages with `low < position <= high`, in the order of the query.

        At most `limit` and the query's `page_bytes` of them, and at least one if there is one; `query.cuts` says
        whether there may be more in the range. `query.filter` is not applied: see `Query.filtered`.
        Returns nothing if the server has another life than `life`: ask `is_in_life` before taking it for an end.
        Above the horizon it returns what is committed by now. With `raw` no class of the program decodes payloads.
        """
        ...

    def pages(
        self,
        query: Query,
        *,
        low: int,
        high: int,
        limit: int | None,
        life: UUID | None,
        looked: Callable[[int], None] = lambda _: None,
    ) -> AsyncGenerator[Page, None]:
        """Yield all messages with `low < position <= high`, the range being final, in pages as `page` has them.

        The filter is applied. As long as nothing was found, `looked` is called with the position from which to go
        on. Raises `Unavailable` at the end if the server has another life than `life`.
        """
        ...

    async def streams_at(self, positions: Sequence[int]) -> list[StreamVersion]:
        """Return stream and version of the messages at these positions, as far as they are there."""
        ...

    async def find(self, id: UUID, *, limit: int) -> list[int]:
        """Return the positions of messages with this id, in order: each stream may have one."""
        ...

    async def stream_positions(self, stream: str, *, limit: int) -> list[StreamVersion]:
        """Return where the first messages of a stream stand, in order."""
        ...

    async def position_before(self, time: datetime) -> int:
        """Return the position before the first committed message of this time or later, by the log's clock.

        Older messages may come above it: check the time of each. Above the horizon newer ones may still be
        committed below it: take the lower of both.
        """
        ...

    async def count(self, above: int, up_to: int) -> int:
        """Return how many messages are between two positions, the second included. It has no time limit."""
        ...

    async def oldest_ages(self, sets: Mapping[int, Sequence[tuple[int, int]]]) -> dict[int, float]:
        """Return for each set of ranges of positions the age in seconds of its first message, if it has one."""
        ...

    # The horizon

    @property
    def known_horizon(self) -> HorizonState:
        """The horizon as it was last looked at. Asks nothing."""
        ...

    async def current_horizon(self, *, wait_for_short_appends: bool = True) -> HorizonState:
        """Look at the horizon now; calls that overlap share one look.

        Everything that was committed before the call is at or below its position, unless an older transaction
        that may have appended is still open. Short ones are waited for, some 15 ms at most.
        """
        ...

    async def is_in_life(self, life: UUID | None) -> bool:
        """Return True if the server still has this life."""
        ...

    async def horizon_holders(self) -> list[HorizonHolder]:
        """Return the transactions that may hold the horizon now, the oldest first."""
        ...

    async def held_back(self) -> HeldBack:
        """Return what lies beyond the horizon as it was last looked at, and who holds it there."""
        ...

    async def visible_above(self, position: int) -> Ranges:
        """Return the positions above this one whose messages are committed: a start at `NOW` has passed them."""
        ...

    async def fingerprints(self, positions: Sequence[int], *, nearest: bool = False) -> list[Fingerprint]:
        """Return what identifies the messages at these positions; where one is gone, nothing.

        `nearest` takes for each position the newest message at or below it. Who keeps fingerprints learns by them,
        in any process and after any crash, up to where the log is still what it was: whatever drew a surviving
        position was on disk, so nothing below it was lost.
        """
        ...

    # Follow, and what is there

    @property
    def feed(self) -> LogFeed:
        """The live feed of this process."""
        ...

    async def catalogue(
        self,
        kind: Literal["category", "stream", "type"],
        *,
        prefix: str = "",
        after: str = "",
        within: Sequence[str] | None = None,
        limit: int,
        newest: int = 0,
    ) -> CataloguePage:
        """Return names that begin with a prefix, from `after` on, sorted by their bytes.

        `within` are the only categories to look at. Categories and streams are exact. Types are those of the
        `newest` messages, of the log or of each category, and without `within` also those that are common in the
        whole log: no index has them, and all of them come at once.
        """
        ...

    async def related(
        self, correlation: str, id: UUID, *, low: int, below: int, above: int, high: int, limit: int
    ) -> list[RelatedMessage]:
        """Return messages with this correlation id, or caused by the message with this id, in order.

        Looks at `low <= position < below` and `above < position <= high`, for at most `limit` on each side, those
        nearest to what lies between. No index has either: the cost is that of the ranges.
        """
        ...
