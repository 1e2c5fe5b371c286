"""What an owner of a lane knows and did, in plain sets: what its writes are held against."""

from dispatch.simulation.evidence import Evidence, Fate
from dispatch.simulation.message import Message
from dispatch.simulation.setup import waits_of
from dispatch.simulation.store import LaneRecord, Store
from milepost.dispatch.delivery import DeliveryRow, State
from milepost.dispatch.exchange import ExchangeAnswer, LaneState
from milepost.dispatch.settings import Settings


class Account:
    """The account of one taking of a lane by one worker."""

    def __init__(self, store: Store, number: int, settings: Settings, state: LaneState[Message]) -> None:
        self.store = store
        self.number = number
        self.settings = settings
        self.record: LaneRecord = store.lanes[number]
        self.passed = frozenset(self.record.passed)
        """What was passed before it came."""
        self.ranges = len(state.cursor.ahead)
        self.counts = state.counts
        self.unclean = state.unclean
        self.taken_at = state.now
        self.begin_attempts(state)
        self.begin_people()

    def begin_attempts(self, state: LaneState[Message]) -> None:
        """What it did."""
        self.acked: set[int] = set()
        self.rejected: set[int] = set()
        self.fates: dict[int, Fate] = {}
        """What is to be stored of messages that were settled other than by an ack."""
        self.known: dict[int, int] = {}
        """Attempts in rows, as this owner was told last."""
        self.vanished = len(state.running)
        """Attempts that ended with a process: they count as failures, and settled nothing."""
        self.outcomes: list[bool | None] = [False] * self.vanished
        """How attempts ended since the last write: well, badly, or without counting."""
        self._blame(state)

    def begin_people(self) -> None:
        """What it heard of people."""
        self.answers = 0
        self.untold: dict[int, int] = {}
        """Rows that a person retried and that do not hold their key for this owner yet, with their revisions."""
        self.retries: dict[int, int] = {}
        """Messages that a person retried, and with which answer this owner was told that they hold their key."""
        self.told_skips: set[int] = set()
        self.unpoked: set[int] = set()
        """Messages that a person acted on, while nobody has told the owner so."""

    def _blame(self, state: LaneState[Message]) -> None:
        """What ran alone when its process vanished has failed, and did so before if it ran with others then.

        Where no process vanished it has only ended.
        """
        now, retry = state.now, self.settings.retry
        for row in (loaded.row for loaded in state.running if loaded.row.position in self.store.alone):
            if not state.unclean:
                self.fates[row.position] = Fate(((row.attempts, False),), now, (now, now), ended=True)
            else:
                attempts = row.attempts + (1 if self.store.suspects[row.position] else 2)
                low, high = waits_of(self.settings, None, attempts)
                options = ((attempts, attempts >= retry.attempts),)
                self.fates[row.position] = Fate(options, now, (now + low, now + high), blamed=True)

    # What it knows

    def row(self, position: int) -> DeliveryRow | None:
        return self.record.rows.get(position)

    def attempts(self, position: int) -> set[int]:
        """How many attempts of a message count; several if a person started the count anew."""
        if (fate := self.fates.get(position)) is not None:
            return {attempts for attempts, _ in fate.options}
        row = self.row(position)
        stored = row.attempts if row else 0
        if position in self.store.touched:
            return {stored, self.known.get(position, stored)}
        return {stored}

    def failed_since(self) -> int:
        """How many attempts failed after the last success, as far as they are not written."""
        failed = 0
        for outcome in self.outcomes:
            failed = 0 if outcome is True else failed + (outcome is False)
        return failed

    def evidence(self, committing: frozenset[int], reach: int) -> Evidence:
        """A copy of it, for an exchange that settles these messages itself."""
        return Evidence(
            settings=self.settings,
            acked=frozenset(self.acked),
            committing=committing,
            rejected=frozenset(self.rejected),
            fates=dict(self.fates),
            counts=self.counts,
            outcomes=tuple(self.outcomes),
            reach=reach,
            ranges=self.ranges,
        )

    # What it learns

    def learn_moved(self, position: int, row: DeliveryRow | None, evidence: Evidence) -> None:
        """A row is what it was to be."""
        if self.fates.get(position) is evidence.fates.get(position):
            self.fates.pop(position, None)
        if row is not None:
            self.known[position] = row.attempts

    def learn_refused(self, position: int) -> None:
        """A person has changed a row meanwhile."""
        self.acked.discard(position)
        self.fates.pop(position, None)
        # It knows that a person acted, though nobody said so.
        self.unpoked.discard(position)
        row = self.row(position)
        if row is not None and row.state is not State.SKIPPED:
            self.untold[position] = row.revision

    def learn_rows(self, answer: ExchangeAnswer[Message]) -> None:
        """Rows are as an answer says."""
        self.answers += 1
        rows = [loaded.row for loaded in (*answer.due, *answer.unrouted)]
        rows += [loaded.row for held in answer.held.values() for loaded in held.rows]
        for row in rows:
            self.known[row.position] = row.attempts
            if self.untold.get(row.position, row.revision + 1) <= row.revision:
                del self.untold[row.position]
                self.retries[row.position] = self.answers
            if row.state is State.SKIPPED:
                self.told_skips.add(row.position)
                self.fates.pop(row.position, None)

    def learn_settings(self, settings: Settings) -> None:
        """Other settings from now on; what is parked holds its key from when the owner is told of it."""
        if settings.on_park == "block" and self.settings.on_park == "continue":
            rows = self.record.rows.items()
            self.untold.update({position: 1 for position, fate in self.fates.items() if fate.parked})
            self.untold.update({position: row.revision for position, row in rows if row.state is State.PARKED})
        self.settings = settings

    def note_ended(self) -> None:
        """What runs according to its row no longer does, and that was no attempt."""
        now = self.store.now
        for position, row in self.record.rows.items():
            if row.state is State.RUNNING and position not in self.fates and position not in self.acked:
                options = tuple((attempts, False) for attempts in self.attempts(position))
                self.fates[position] = Fate(options, now, (now, now), ended=True)
