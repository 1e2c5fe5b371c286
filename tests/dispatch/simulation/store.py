"""The obviously right PostgreSQL: one subscription's lanes, cursors and rows in plain dicts."""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from dataclasses import replace as changed
from enum import Enum
from typing import Any

from msgspec.structs import replace

from dispatch.simulation.audit import Audit
from dispatch.simulation.evidence import Evidence
from dispatch.simulation.message import Log, Message, key_of
from dispatch.simulation.questions import Questions
from dispatch.simulation.setup import Setup
from dispatch.simulation.violation import ensure
from milepost.dispatch.breaker import breaker_state_after
from milepost.dispatch.delivery import DeliveryRow, State
from milepost.dispatch.exchange import (
    Cursor,
    Exchange,
    ExchangeAnswer,
    ExchangeWrite,
    LaneState,
    LoadedRow,
    RowChange,
    RowCounts,
)


class Refused(Enum):
    """Why nothing of a transaction holds."""

    STALE = "another owner or another write came first"
    UNMET = "a row that it required has another revision"


START = 1000.0
"""The time at which every schedule begins."""


@dataclass
class LaneRecord:
    """What is stored of a lane."""

    number: int
    epoch: int = 0
    revision: int = 0
    cursor: Cursor = field(default_factory=lambda: Cursor(0))
    owner: int | None = None
    """The worker that took it last and has not released it."""
    definition: int = 0
    messages: list[Message] = field(default_factory=list)
    """What of the log belongs to it."""
    rows: dict[int, DeliveryRow] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    """Messages that the cursor or what is ahead of it covers."""

    def copied(self) -> "LaneRecord":
        """Return a copy."""
        messages, rows, passed = list(self.messages), dict(self.rows), set(self.passed)
        return changed(self, messages=messages, rows=rows, passed=passed)

    @property
    def unsettled(self) -> bool:
        return any(row.state is not State.SKIPPED for row in self.rows.values())


@dataclass
class Clock:
    """The database's time, which never goes back."""

    now: float = START


class Store:
    """Lanes, rows and the log; and what is true of each message, which no database could say.

    One object is one life of the server. When the store goes back, an earlier state begins the next life, and this
    object stays as it was: owners that have not noticed still see it.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.order = "key" if setup.ordered else "none"
        self.loose: set[int] = set()
        """Messages that went out by another order: they may come again before lower ones of their key."""
        self.life = 1
        self.is_over = False
        """Whether another life has begun."""
        self.clock = Clock()
        self.log = Log()
        self.lanes = [LaneRecord(number) for number in range(setup.lanes)]
        self.streak = 0
        self.stalled: str | None = None
        self.settled: set[int] = set()
        """Messages that are done for good: acked, rejected, or moved past, and committed."""
        self.touched: dict[int, int] = {}
        """Messages whose rows a person has changed, and the revision of the last such change."""
        self.acted_at: dict[int, float] = {}
        """When a person last changed a message's row."""
        self.suspects: dict[int, bool] = {}
        """Messages that have to run alone, since they ran when a process vanished; True: they were alone then."""
        self.alone: set[int] = set()
        """Those whose rows say that they do so now."""
        self.unhandled: set[int] = set()
        """Messages that are settled though nobody handled them: rejected, or moved past."""
        self.effects: list[int] = []
        """The ids of messages whose handlers wrote in a transaction that committed, once for each time."""
        self.handled: set[int] = set()
        """The ids of all messages that were ever handled. Shared by all lives: this is not stored."""
        self.past: list[Store] = []
        """The states before each transaction, the oldest first."""
        self._epochs = 0

    @property
    def now(self) -> float:
        return self.clock.now

    @now.setter
    def now(self, now: float) -> None:
        self.clock.now = now

    def copied(self) -> "Store":
        """Return a copy of the state, without its past."""
        other = copy(self)
        other.log = self.log.copied()
        other.lanes = [record.copied() for record in self.lanes]
        for name in ("settled", "suspects", "touched", "acted_at", "alone", "unhandled", "effects", "loose"):
            setattr(other, name, copy(getattr(self, name)))
        other.past = []
        return other

    def next_life(self, lost: int) -> "Store":
        """End this life; return the next one, which begins without the newest `lost` transactions."""
        lost = min(lost, len(self.past))
        kept = self.past[: len(self.past) - lost]
        begun = self.past[-lost].copied() if lost else self.copied()
        begun.past, begun.life = kept, self.life + 1
        self.is_over = True
        return begun

    def _remember(self) -> None:
        """Keep the state before a transaction, if it may have to come back."""
        if self.setup.lossy:
            self.past.append(self.copied())

    def append(self, key: int, number: int, size: int, gap: int) -> None:
        """A message comes."""
        self._remember()
        message = self.log.append(f"k{key}", number, size, gap)
        self.lanes[self.lane_of(message)].messages.append(message)

    def lane_of(self, message: Message) -> int:
        return int(message.key[1:]) % self.setup.lanes

    def reorder(self, order: str, out: Iterable[int]) -> None:
        """All rows get their keys by another order, while these are out; what waits for nothing can run."""
        self._remember()
        self.order = order
        self.loose.update(out)
        for record in self.lanes:
            self.loose.update(record.rows)
            for position, row in record.rows.items():
                if self.touched.get(position) == row.revision:
                    self.touched[position] += 1
                key = self.key_of(self.log.by_position[position])
                record.rows[position] = replace(row, key=key, revision=row.revision + 1)
                if row.state is State.WAITING and key is None:
                    record.rows[position] = replace(record.rows[position], state=State.RETRYING, due=self.now)

    def key_of(self, message: Message) -> str | None:
        return key_of(message, self.order)

    def clear(self, position: int) -> None:
        """A message need not run alone any more."""
        self.suspects.pop(position, None)
        self.alone.discard(position)

    def counts(self) -> RowCounts:
        """Rows of all lanes by state."""
        states = [row.state for record in self.lanes for row in record.rows.values()]
        return RowCounts(states.count(State.WAITING), states.count(State.RETRYING), states.count(State.UNROUTED))

    # Ownership

    def take(self, lane: int, worker: int, definition: int, *, vanished: bool) -> LaneState[Message]:
        """Gives a lane to a worker under a new epoch; `vanished`: its last owner is gone without a word."""
        self._remember()
        record = self.lanes[lane]
        self._fence(record)
        unclean = record.owner is not None and vanished
        record.owner = worker
        record.definition = definition
        running = [row for row in record.rows.values() if row.state is State.RUNNING]
        for row in running:
            self.suspects.setdefault(row.position, False)
        return LaneState(
            cursor=record.cursor,
            now=self.now,
            rows=record.unsettled,
            running=[LoadedRow(row, self.log.by_position[row.position]) for row in running],
            unclean=unclean,
            counts=self.counts(),
            streak=self.streak,
            stalled=self.stalled,
        )

    def release(self, lane: int, epoch: int) -> None:
        """The owner leaves the lane in good order."""
        self._remember()
        if self.lanes[lane].epoch == epoch:
            self.lanes[lane].owner = None

    def _fence(self, record: LaneRecord) -> None:
        self._epochs += 1
        record.epoch = self._epochs
        record.revision += 1

    # Exchanges

    def commit(
        self, lane: int, epoch: int, revision: int, exchange: Exchange[Message], evidence: Evidence
    ) -> ExchangeAnswer[Message] | Refused:
        """One transaction: writes, then questions; all or nothing."""
        record = self.lanes[lane]
        if record.epoch != epoch or record.revision != revision:
            return Refused.STALE
        if exchange.write is not None and not self._is_met(record, exchange.write):
            return Refused.UNMET
        moved: list[bool] = []
        if exchange.write is not None:
            self._remember()
            audit = Audit(self, record, exchange.write, evidence)
            moved = [self._moved(record, move) for move in exchange.write.moves]
            record.cursor = exchange.write.cursor
            record.revision += 1
            self.streak, self.stalled = breaker_state_after(
                self.streak,
                self.stalled,
                exchange.write.tally,
                self.counts().retrying,
                evidence.settings.stall_after,
            )
            audit.check(moved)
            self._take_effect([delivery.message for delivery in exchange.commits])
        return self._answer(record, exchange, moved, evidence)

    def _take_effect(self, messages: Sequence[Message]) -> None:
        """Store what handlers wrote in the transaction."""
        for message in messages:
            there = self.log.by_position.get(message.position)
            ensure(there == message, f"{message} took effect, and {there} is in its place")
            ensure(message.id not in self.effects, f"{message} took effect a second time")
            self.effects.append(message.id)
            self.handled.add(message.id)

    def _is_met(self, record: LaneRecord, write: ExchangeWrite) -> bool:
        return all(self._finds(record, move) for move in write.moves if move.required)

    def _finds(self, record: LaneRecord, move: RowChange) -> bool:
        row = record.rows.get(move.position)
        return (row.revision if row else None) == move.replaces

    def _moved(self, record: LaneRecord, move: RowChange) -> bool:
        if not self._finds(record, move):
            return False
        if move.row is None:
            del record.rows[move.position]
        else:
            record.rows[move.position] = move.row
        return True

    def _answer(
        self, record: LaneRecord, exchange: Exchange[Message], moved: list[bool], evidence: Evidence
    ) -> ExchangeAnswer[Message]:
        counts = self.counts()
        if exchange.ask is None:
            return ExchangeAnswer(
                moved=moved, rows=record.unsettled, counts=counts, streak=self.streak, stalled=self.stalled
            )
        without_parked = evidence.settings.on_park == "continue"
        questions = Questions(self.log, record.rows, exchange.ask, without_parked=without_parked)
        held = questions.asked()
        due = questions.due()
        heads, heads_end = questions.heads()
        unrouted, unrouted_end = questions.unrouted()
        return ExchangeAnswer(
            moved=moved,
            held={**questions.found(loaded.row.key for loaded in due), **heads, **held},
            due=due,
            next_due=questions.next_due(due),
            heads_end=heads_end,
            unrouted=unrouted,
            unrouted_end=unrouted_end,
            rows=record.unsettled,
            counts=counts,
            streak=self.streak,
            stalled=self.stalled,
        )

    # People

    def retry(self, lane: int, position: int) -> None:
        """A person has a message tried again, and counted anew."""
        self._change(lane, position, state=State.RETRYING, attempts=0)

    def skip(self, lane: int, position: int) -> None:
        """A person passes a message over."""
        self._change(lane, position, state=State.SKIPPED)

    def _change(self, lane: int, position: int, **changes: Any) -> None:
        self._remember()
        rows = self.lanes[lane].rows
        revision = rows[position].revision + 1
        rows[position] = replace(rows[position], due=self.now, since=self.now, revision=revision, **changes)
        self.touched[position] = revision
        self.acted_at[position] = self.now

    def move(self, lane: int, position: int) -> None:
        """A person moves the cursor."""
        self._remember()
        record = self.lanes[lane]
        self._fence(record)
        record.cursor = Cursor(position)
        for above in [above for above in record.rows if above > position]:
            del record.rows[above]
        for message in record.messages:
            if message.position > position:
                self.clear(message.position)
                self.settled.discard(message.position)
                self.unhandled.discard(message.position)
                if message.id in self.effects:
                    # It comes again because a person wants that.
                    self.effects.remove(message.id)
                self.touched.pop(message.position, None)
                record.passed.discard(message.position)
                continue
            record.passed.add(message.position)
            if message.position not in record.rows:
                self.settled.add(message.position)
                self.unhandled.add(message.position)
