"""A lane in the hands of a worker, and a plain account of what that worker knows and did."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dispatch.simulation.consumers import Consumers
from dispatch.simulation.evidence import Evidence, Fate
from dispatch.simulation.message import Message
from dispatch.simulation.setup import Definition
from dispatch.simulation.store import LaneRecord, Refused, Store
from dispatch.simulation.violation import ensure
from milepost.dispatch.breaker import Breaker
from milepost.dispatch.delivery import Delivery, Row, State
from milepost.dispatch.exchange import Answer, Exchange, LaneState
from milepost.dispatch.lane import Lane
from milepost.dispatch.routes import Routes
from milepost.dispatch.settings import Settings


@dataclass(eq=False, slots=True)
class Claim:
    """A delivery in force."""

    delivery: Delivery[Message]
    position: int
    key: str | None
    size: int
    counted: int
    """Attempts before this one."""
    deadline: float | None
    alone: bool
    probe: int | None
    """The number of the stall during which it was tried."""


@dataclass(eq=False, slots=True)
class UnderWay:
    """An exchange that was made, and its answer once it is committed."""

    exchange: Exchange[Message]
    evidence: Evidence
    answer: Answer[Message] | None = None


class Holding:
    """One taking of a lane by one worker, until it is released, lost, or its process dies."""

    def __init__(
        self,
        store: Store,
        number: int,
        definition: Definition,
        state: LaneState[Message],
        breaker: Breaker,
        random: Callable[[], float],
    ) -> None:
        self.store = store
        self.number = number
        self.definition = definition
        self.settings = definition.settings
        self.breaker = breaker
        self.record: LaneRecord = store.lanes[number]
        self.epoch = self.record.epoch
        self.revision = self.record.revision
        self.unclean = state.unclean
        self.taken_at = state.now
        self.ranges = len(state.cursor.ahead)
        self.counts = state.counts
        self.vanished = len(state.running)
        """Attempts that ended with a process: they count as failures, and settled nothing."""
        self.outcomes: list[bool | None] = [False] * self.vanished
        """How attempts ended since the last write: well, badly, or without counting."""
        self.consumers = Consumers()
        routes = _routes(store.setup.strategy)
        self.lane: Lane[Message] = Lane(self.settings, state, breaker=breaker, routes=routes, random=random)
        self.open: dict[Delivery[Message], Claim] = {}
        self.past: list[Delivery[Message]] = []
        self.handed: set[int] = set()
        """All that was ever handed out."""
        self.acked: set[int] = set()
        self.rejected: set[int] = set()
        self.fates: dict[int, Fate] = {}
        self.counted: dict[int, int] = {}
        """Attempts of suspects that run: their rows count one more."""
        self.known: dict[int, int] = {}
        """Attempts in rows, as this owner was told last."""
        self.suspects = {loaded.row.position for loaded in state.running}
        self.untold: dict[int, int] = {}
        """Rows that a person retried and that do not hold their key for this owner yet, with their revisions."""
        self.told_skips: set[int] = set()
        self.unpoked: set[int] = set()
        self.passed = frozenset(self.record.passed)
        self.ordinals: dict[int, int] = {}
        """For messages taken from the log: how many were taken up to it."""
        self.promises: dict[Delivery[Message], tuple[int, int]] = {}
        """Deliveries that wait for their rows to say that they run: the version of the routes they go by, and how
        many answers had come."""
        self.answers = 0
        self.retries: dict[int, int] = {}
        """Messages that a person retried, and with which answer this owner was told that they hold their key."""
        self.pins: dict[tuple[object, int], tuple[int, str | None]] = {}
        self.unrouted: set[int] = set()
        """What is about to get a row as unrouted."""
        self.under_way: UnderWay | None = None
        self.closing = False
        self.most = self.settings.window
        """The largest window that it had."""
        self.most_in_flight = 0
        """The most that it had in flight: what consumers give back is in memory beside the window."""
        self.most_room = 0
        """The most that its consumers could have at a time: so much is loaded for them beside the window."""
        self.extra = len(state.running)
        """Entries that may be in memory beyond the window: suspects, and one for each key that was asked for."""
        self._park_vanished(state)

    def _park_vanished(self, state: LaneState[Message]) -> None:
        for loaded in state.running:
            attempts = loaded.row.attempts
            if attempts >= self.settings.retry.attempts:
                self.suspects.discard(loaded.row.position)
                self.fates[loaded.row.position] = Fate(
                    ((attempts, True),), state.now, (state.now, state.now), self.store.acts
                )

    @property
    def current(self) -> bool:
        """Whether no one else has the lane, as far as the store knows."""
        return self.record.epoch == self.epoch

    @property
    def routed(self) -> bool:
        return self.store.setup.strategy is not None

    def row(self, position: int) -> Row | None:
        return self.record.rows.get(position)

    def attempts(self, position: int) -> set[int]:
        """How many attempts of a message count; several if a person started the count anew."""
        if (fate := self.fates.get(position)) is not None:
            return {attempts for attempts, _ in fate.options}
        row = self.row(position)
        stored = self.counted.get(position, row.attempts if row else 0)
        if position in self.store.touched:
            return {stored, row.attempts if row else 0, self.known.get(position, stored)}
        return {stored}

    def failed_since(self) -> int:
        """How many attempts failed after the last success, as far as they are not written."""
        failed = 0
        for outcome in self.outcomes:
            failed = 0 if outcome is True else failed + (outcome is False)
        return failed

    def committing(self) -> Sequence[Delivery[Message]]:
        """Deliveries that the exchange under way settles."""
        return self.under_way.exchange.commits if self.under_way else ()

    # Reading

    def fill(self, size: int, before: int, beyond: int) -> bool:
        """Reads a page and takes it; whether that moved the reach."""
        lane = self.lane
        old = lane.reach
        page, up_to = self._page(max(0, old - before), size, beyond)
        keys = [message.key for message in page] if self.settings.ordered else None
        room, taken = lane.room(), len(self.ordinals)
        filled = lane.fill(page, keys, up_to)
        ensure(lane.reach >= old, f"the reach went back from {old} to {lane.reach}")
        ensure(not filled or lane.reach >= up_to, f"the page up to {up_to} was taken, the reach is {lane.reach}")
        self._note_taken(old, {message.position for message in page})
        ensure(len(self.ordinals) - taken <= room, f"{len(self.ordinals) - taken} were taken with room for {room}")
        ensure(room <= 1 or not self.breaker.stalled, f"there is room for {room}, while stalled")
        return lane.reach > old

    def _page(self, start: int, size: int, beyond: int) -> tuple[list[Message], int]:
        log = self.store.log
        after = [message for message in self.record.messages if message.position > start]
        found = [message for message in after if message.number not in self.definition.rejected]
        page = found[:size]
        if len(found) > size:
            last = page[-1].position if page else start
            return page, min(last + beyond, found[size].position - 1)
        log.horizon += beyond
        return page, log.horizon

    def _note_taken(self, old: int, page: set[int]) -> None:
        for message in self.record.messages:
            position = message.position
            if not old < position <= self.lane.reach or position in self.passed:
                continue
            if message.number in self.definition.rejected:
                self.rejected.add(position)
            else:
                ensure(position in page, f"{position} is within reach and was in no page")
                self.ordinals[position] = len(self.ordinals) + 1

    # Exchanges

    def make(self, commits: Sequence[Delivery[Message]] = ()) -> Exchange[Message] | None:
        """Begins an exchange, if there is anything to write or to ask."""
        if self.closing:
            self._note_ended()
        exchange = self.lane.exchange(self.store.now, commits)
        if self.under_way is not None:
            ensure(exchange is None, "two exchanges are under way")
            return None
        if exchange is not None:
            self.under_way = UnderWay(exchange, self._evidence(exchange))
        return exchange

    def _evidence(self, exchange: Exchange[Message]) -> Evidence:
        return Evidence(
            settings=self.settings,
            acked=frozenset(self.acked),
            committing=frozenset(delivery.entry.position for delivery in exchange.commits),
            rejected=frozenset(self.rejected),
            fates=dict(self.fates),
            counted=dict(self.counted),
            suspects=frozenset(self.suspects),
            counts=self.counts,
            outcomes=tuple(self.outcomes),
            reach=self.lane.reach,
            ranges=self.ranges,
        )

    def commit(self) -> bool:
        """Commits the exchange under way; False if another owner came first."""
        under_way = self.under_way
        if under_way is None or under_way.answer is not None:
            return True
        answer = self.store.commit(self.number, self.epoch, self.revision, under_way.exchange, under_way.evidence)
        if answer is Refused.STALE:
            return False
        ensure(self.current, "a stale owner wrote")
        if answer is Refused.UNMET:
            # A person has changed the row of a message whose handler wrote in this transaction.
            self.abandon()
            self.lane.poke()
            return True
        under_way.answer = answer
        if under_way.exchange.write is not None:
            self.revision += 1
        return True

    def learn(self) -> None:
        """The answer arrives, if there is one."""
        under_way = self.under_way
        if under_way is None or under_way.answer is None:
            return
        self.under_way = None
        self.lane.exchanged(under_way.answer)
        self.counts = under_way.answer.counts
        if under_way.exchange.write is not None:
            del self.outcomes[: len(under_way.evidence.outcomes)]
            self.vanished = 0
        ensure(
            self.lane.settled == len(self.outcomes) - self.vanished,
            f"{self.lane.settled} are settled, not {len(self.outcomes) - self.vanished}",
        )
        for delivery in under_way.exchange.commits:
            if (claim := self.open.pop(delivery, None)) is not None:
                self.past.append(delivery)
                self.acked.add(claim.position)
        write = under_way.exchange.write
        for move, moved in zip(write.moves if write else (), under_way.answer.moved, strict=True):
            if moved:
                self._learn_moved(move.position, move.row, under_way.evidence)
            else:
                self._learn_refused(move.position)
        self._learn_rows(under_way.answer)

    def _learn_moved(self, position: int, row: Row | None, evidence: Evidence) -> None:
        if self.fates.get(position) is evidence.fates.get(position):
            self.fates.pop(position, None)
        if row is not None:
            self.known[position] = row.attempts
            if row.state is State.RUNNING and position in self.suspects:
                counted = evidence.counted.get(position, row.attempts - 1)
                if row.attempts > counted:
                    self.counted[position] = counted
                return
        self.counted.pop(position, None)
        self.suspects.discard(position)

    def _learn_refused(self, position: int) -> None:
        self.acked.discard(position)
        self.fates.pop(position, None)
        row = self.row(position)
        if row is not None and row.state is not State.SKIPPED:
            self.untold[position] = row.revision

    def _learn_rows(self, answer: Answer[Message]) -> None:
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

    def abandon(self) -> None:
        """The exchange under way was rolled back."""
        if self.under_way is not None and self.under_way.answer is None:
            self.lane.abandon()
            self.under_way = None

    def change(self, settings: Settings) -> None:
        """Other settings from now on; what is parked holds its key from when the owner is told of it."""
        if settings.on_park == "block" and self.settings.on_park == "continue":
            parked = {
                position: row.revision for position, row in self.record.rows.items() if row.state is State.PARKED
            }
            self.untold.update({position: 1 for position, fate in self.fates.items() if fate.parked})
            self.untold.update(parked)
        self.settings = settings
        self.lane.change(settings)

    def close(self) -> None:
        """Ends all claims, in good order."""
        self.closing = True
        self.past.extend(self.open)
        self.open.clear()
        self.lane.close()

    def _note_ended(self) -> None:
        """What runs according to its row no longer does, and that was no attempt."""
        now = self.store.now
        for position, row in self.record.rows.items():
            if row.state is State.RUNNING and position not in self.fates and position not in self.acked:
                options = tuple((attempts, False) for attempts in self.attempts(position))
                self.fates[position] = Fate(options, now, (now, now), self.store.acts, ended=True)


def bucket_of(message: Message) -> int:
    """The bucket that pinned strategies go by."""
    return int(message.key[1:]) % 4


def _routes(strategy: str | None) -> Routes[Message] | None:
    return None if strategy is None else Routes(strategy, bucket_of)
