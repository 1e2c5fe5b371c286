"""What is stored of subscriptions and of single messages, for whoever asks where one is."""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from milepost.dispatch import Cursor, LimitReached, State
from milepost.log.query import Since
from milepost.postgres.pool import Database
from milepost.postgres.statements import Statements
from milepost.progress.protocol import PassedBeforeReplay
from milepost.ranges import Ranges

MAX_NAMED_WAITING_MESSAGES = 5
"""How many of those that wait behind a message are named."""
MAX_COUNTED_WAITING_MESSAGES = 1000
"""How many of them are counted at most."""
TRACE_SPAN_POSITIONS = 10_000
"""How many positions one statement gives, or is given."""


class StoredDefinition(msgspec.Struct, frozen=True):
    """What a subscription selected and how it ordered, from when it was declared on."""

    number: int
    selects: str
    orders: str
    lanes: int
    since: datetime
    positions: list[int]
    """Where each lane stood then."""
    aheads: list[list[int]]
    """What each had settled ahead of that."""

    def begins(self, lane: int) -> Cursor:
        """What a lane had passed by the one before; of the first one, when the subscription began."""
        return cursor_from_flat(self.positions[lane], self.aheads[lane])


class StoredLane(msgspec.Struct, frozen=True):
    """How far a lane is, and who has it."""

    position: int
    ahead: list[int]
    replay: list[int]
    """What comes again on purpose, as ranges."""
    owner: str | None
    held: bool
    stopped: LimitReached | None
    """The limit at which it reads no further."""

    @property
    def cursor(self) -> Cursor:
        """Its cursor."""
        return cursor_from_flat(self.position, self.ahead)


class LaneLeap(msgspec.Struct, frozen=True):
    """What a lane passed over because somebody moved it."""

    number: int
    """Of the definition then."""
    lane: int
    low: int
    high: int
    at: datetime


class TracedWorker(msgspec.Struct, frozen=True):
    """A worker of a subscription."""

    subscription: int
    name: str


class TracedFlight(msgspec.Struct, frozen=True):
    """A message that a live worker said to be handling."""

    worker: str
    position: int
    since: datetime


class StoredSubscription(msgspec.Struct, frozen=True):
    """A subscription, by one snapshot."""

    id: int
    group: str
    name: str
    status: str
    stalled: str | None
    barrier: str | None
    """What its lanes are brought to a place for, while they are."""
    since: Since | None
    """Older messages are passed over."""
    now: datetime
    definitions: list[StoredDefinition]
    """In order; the last one is in force."""
    leaps: list[LaneLeap]
    memories: list[PassedBeforeReplay] | None
    """What had been handled before, while a replay is under way."""
    lanes: list[StoredLane]
    flights: list[TracedFlight]

    @property
    def cursors(self) -> list[Cursor]:
        """Of each lane."""
        return [lane.cursor for lane in self.lanes]


class StoredRow(msgspec.Struct, frozen=True):
    """A delivery as it is stored."""

    subscription: int
    position: int
    lane: int
    key: str | None
    state: State
    since: datetime
    attempts: int
    total: int
    due: datetime | None
    reason: str
    error: str


class KeyedMessage(msgspec.Struct, frozen=True):
    """A message in the order of its key."""

    subscription: int
    lane: int
    key: str
    position: int


class KeyNeighbours(msgspec.Struct, frozen=True):
    """What is stored of a message's key before it and after it."""

    holder: int | None
    """The position before it that holds the key."""
    holder_state: State | None
    waiting: int
    """How many after it wait for it; at most `MAX_COUNTED_WAITING_MESSAGES` are counted."""
    first: list[int]
    """Where the first of those are."""


_subscription_decoder = msgspec.json.Decoder(StoredSubscription)


class PostgresTrace:
    """Looks at what is stored in a schema of a database; each call is a statement."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database.within(None)
        self._statements = Statements(schema, "milepost.progress.postgres")

    async def subscriptions(self, group: str | None = None, name: str | None = None) -> list[StoredSubscription]:
        """All, or those of this group, or of this name, in the order of their addresses."""
        rows = await self._execute("trace_subscriptions", group=group, name=name)
        return [_subscription_decoder.decode(row[0]) for row in rows]

    async def rows(
        self, subscriptions: Sequence[int], positions: Sequence[int]
    ) -> dict[tuple[int, int], StoredRow]:
        """By subscription and position, the deliveries that there are."""
        rows = await self._execute("trace_rows", subscriptions=list(subscriptions), positions=list(positions))
        fields = StoredRow.__struct_fields__
        stored = [msgspec.convert(dict(zip(fields, row, strict=True)), StoredRow) for row in rows]
        return {(row.subscription, row.position): row for row in stored}

    async def ask(self) -> datetime:
        """Workers are to say what they have in hand; when that was asked."""
        rows = await self._execute("trace_ask")
        asked: datetime = rows[0][1]
        return asked

    async def answered(self, since: datetime) -> set[TracedWorker]:
        """Who has told what it does since then."""
        return {TracedWorker(*row) for row in await self._execute("trace_answered", since=since)}

    async def around(self, messages: Sequence[KeyedMessage]) -> list[KeyNeighbours]:
        """For each message, what is stored of its key."""
        if not messages:
            return []
        rows = await self._execute(
            "trace_keys",
            subscriptions=[each.subscription for each in messages],
            lanes=[each.lane for each in messages],
            keys=[each.key for each in messages],
            positions=[each.position for each in messages],
            most=MAX_COUNTED_WAITING_MESSAGES,
            shown=MAX_NAMED_WAITING_MESSAGES,
        )
        return [KeyNeighbours(row[0], State(row[1]) if row[1] else None, row[2], row[3] or []) for row in rows]

    async def lowest_of_key(self, subscription: int, lane: int, key: str) -> int | None:
        """The lowest position of a key that has an unsettled delivery."""
        rows = await self._execute("trace_lowest_of_key", subscription=subscription, lane=lane, key=key)
        found: int | None = rows[0][0]
        return found

    async def lowest_unsettled(self, subscription: int, positions: Sequence[int]) -> int | None:
        """The lowest of these positions that has an unsettled delivery; at most `TRACE_SPAN_POSITIONS` are
        given."""
        rows = await self._execute("trace_unsettled_at", subscription=subscription, positions=list(positions))
        found: int | None = rows[0][0]
        return found

    async def unsettled(self, subscription: int) -> AsyncGenerator[list[int], None]:
        """The positions of all unsettled deliveries, in order, in lists of at most `TRACE_SPAN_POSITIONS`."""
        after = 0
        while True:
            rows = await self._execute(
                "trace_unsettled_after", subscription=subscription, after=after, limit=TRACE_SPAN_POSITIONS
            )
            positions = [row[0] for row in rows]
            if positions:
                yield positions
            if len(positions) < TRACE_SPAN_POSITIONS:
                return
            after = positions[-1]

    async def _execute(self, statement: str, **parameters: Any) -> Sequence[Any]:
        return await self._database.execute(self._statements.get(statement), parameters)


def ranges_from_flat(stored: Sequence[int]) -> Ranges:
    """Ranges that are stored as first, last, first, last, …"""
    return Ranges(zip(stored[::2], stored[1::2], strict=True))


def cursor_from_flat(position: int, ahead: Sequence[int]) -> Cursor:
    """A cursor whose ranges are stored as first, last, first, last, …"""
    return Cursor(position, tuple(zip(ahead[::2], ahead[1::2], strict=True)))


def has_passed(cursor: Cursor, position: int) -> bool:
    """Whether a cursor has passed a position, or it is settled ahead of it."""
    return position <= cursor.position or any(first <= position <= last for first, last in cursor.ahead)
