"""The obviously right PostgreSQL: one subscription's lanes, cursors and rows in plain dicts."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from msgspec.structs import replace

from dispatch.simulation.audit import Audit
from dispatch.simulation.evidence import Evidence
from dispatch.simulation.message import Log, Message
from dispatch.simulation.questions import Questions
from dispatch.simulation.setup import Setup
from milepost.dispatch.breaker import judged
from milepost.dispatch.delivery import Row, State
from milepost.dispatch.exchange import Answer, Counts, Cursor, Exchange, LaneState, Loaded, Move, Write


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
    rows: dict[int, Row] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    """Messages that the cursor or what is ahead of it covers."""

    @property
    def unsettled(self) -> bool:
        return any(row.state is not State.SKIPPED for row in self.rows.values())


class Store:
    """Lanes, rows and the log; and what is true of each message, which no database could say."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.now = START
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
        self._epochs = 0

    def append(self, key: int, number: int, size: int, gap: int) -> None:
        """A message comes."""
        message = self.log.append(f"k{key}", number, size, gap)
        self.lanes[self.lane_of(message)].messages.append(message)

    def lane_of(self, message: Message) -> int:
        return int(message.key[1:]) % self.setup.lanes

    def clear(self, position: int) -> None:
        """A message need not run alone any more."""
        self.suspects.pop(position, None)
        self.alone.discard(position)

    def counts(self) -> Counts:
        """Rows of all lanes by state."""
        states = [row.state for record in self.lanes for row in record.rows.values()]
        return Counts(states.count(State.WAITING), states.count(State.RETRYING), states.count(State.UNROUTED))

    # Ownership

    def take(self, lane: int, worker: int, definition: int, *, vanished: bool) -> LaneState[Message]:
        """Gives a lane to a worker under a new epoch; `vanished`: its last owner is gone without a word."""
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
            running=[Loaded(row, self.log.by_position[row.position]) for row in running],
            unclean=unclean,
            counts=self.counts(),
            streak=self.streak,
            stalled=self.stalled,
        )

    def release(self, lane: int, epoch: int) -> None:
        """The owner leaves the lane in good order."""
        if self.lanes[lane].epoch == epoch:
            self.lanes[lane].owner = None

    def _fence(self, record: LaneRecord) -> None:
        self._epochs += 1
        record.epoch = self._epochs
        record.revision += 1

    # Exchanges

    def commit(
        self, lane: int, epoch: int, revision: int, exchange: Exchange[Message], evidence: Evidence
    ) -> Answer[Message] | Refused:
        """One transaction: writes, then questions; all or nothing."""
        record = self.lanes[lane]
        if record.epoch != epoch or record.revision != revision:
            return Refused.STALE
        if exchange.write is not None and not self._is_met(record, exchange.write):
            return Refused.UNMET
        moved: list[bool] = []
        if exchange.write is not None:
            audit = Audit(self, record, exchange.write, evidence)
            moved = [self._moved(record, move) for move in exchange.write.moves]
            record.cursor = exchange.write.cursor
            record.revision += 1
            self.streak, self.stalled = judged(
                self.streak,
                self.stalled,
                exchange.write.tally,
                self.counts().retrying,
                evidence.settings.stall_after,
            )
            audit.check(moved)
        return self._answer(record, exchange, moved, evidence)

    def _is_met(self, record: LaneRecord, write: Write) -> bool:
        return all(self._finds(record, move) for move in write.moves if move.required)

    def _finds(self, record: LaneRecord, move: Move) -> bool:
        row = record.rows.get(move.position)
        return (row.revision if row else None) == move.replaces

    def _moved(self, record: LaneRecord, move: Move) -> bool:
        if not self._finds(record, move):
            return False
        if move.row is None:
            del record.rows[move.position]
        else:
            record.rows[move.position] = move.row
        return True

    def _answer(
        self, record: LaneRecord, exchange: Exchange[Message], moved: list[bool], evidence: Evidence
    ) -> Answer[Message]:
        counts = self.counts()
        if exchange.ask is None:
            return Answer(
                moved=moved, rows=record.unsettled, counts=counts, streak=self.streak, stalled=self.stalled
            )
        without_parked = evidence.settings.on_park == "continue"
        questions = Questions(self.log, record.rows, exchange.ask, without_parked=without_parked)
        held = questions.asked()
        due = questions.due()
        heads, heads_end = questions.heads()
        unrouted, unrouted_end = questions.unrouted()
        return Answer(
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
        rows = self.lanes[lane].rows
        revision = rows[position].revision + 1
        rows[position] = replace(rows[position], due=self.now, since=self.now, revision=revision, **changes)
        self.touched[position] = revision
        self.acted_at[position] = self.now

    def move(self, lane: int, position: int) -> None:
        """A person moves the cursor."""
        record = self.lanes[lane]
        self._fence(record)
        record.cursor = Cursor(position)
        for above in [above for above in record.rows if above > position]:
            del record.rows[above]
        for message in record.messages:
            if message.position > position:
                self.clear(message.position)
                self.settled.discard(message.position)
                self.touched.pop(message.position, None)
                record.passed.discard(message.position)
                continue
            record.passed.add(message.position)
            if message.position not in record.rows:
                self.settled.add(message.position)
