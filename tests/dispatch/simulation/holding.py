"""A lane in the hands of a worker."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dispatch.simulation.account import Account
from dispatch.simulation.bounds import Bounds
from dispatch.simulation.consumers import Consumers
from dispatch.simulation.evidence import Evidence
from dispatch.simulation.message import Message, key_of
from dispatch.simulation.server import Server
from dispatch.simulation.setup import Definition
from dispatch.simulation.store import Refused
from dispatch.simulation.violation import ensure
from milepost.dispatch.breaker import Breaker
from milepost.dispatch.delivery import LaneDelivery, State
from milepost.dispatch.exchange import Exchange, ExchangeAnswer, LaneState, RowChange
from milepost.dispatch.lane import Lane
from milepost.dispatch.routing.routes import Routes
from milepost.dispatch.settings import Settings


@dataclass(eq=False, slots=True)
class Claim:
    """A delivery in force."""

    delivery: LaneDelivery[Message]
    position: int
    key: str | None
    size: int
    counted: int
    """Attempts before this one."""
    deadline: float | None
    alone: bool
    probe: int | None
    """The number of the stall during which it was tried."""


@dataclass(frozen=True, slots=True)
class Page:
    """A lane's messages of a range of the log, as they were in one life of the server."""

    life: int
    low: int
    high: int
    messages: Sequence[Message]


@dataclass(eq=False, slots=True)
class UnderWay:
    """An exchange that was made, and its answer once it is committed."""

    exchange: Exchange[Message]
    evidence: Evidence
    answer: ExchangeAnswer[Message] | None = None


class Holding(Account):
    """One taking of a lane by one worker, until it is released, lost, or its process dies."""

    def __init__(
        self,
        server: Server,
        number: int,
        definition: Definition,
        state: LaneState[Message],
        log_life: int,
        breaker: Breaker,
        random: Callable[[], float],
    ) -> None:
        self.order = server.store.order
        super().__init__(server.store, number, self._ordered(definition.settings), state)
        self.server = server
        self.definition = definition
        self.life = server.store.life
        self.log_life = log_life
        """The life of the log whose messages it gets."""
        self.breaker = breaker
        self.epoch = self.record.epoch
        self.revision = self.record.revision
        self.consumers = Consumers()
        routes = _routes(self.store.setup.strategy)
        self.lane: Lane[Message] = Lane(self.settings, state, breaker=breaker, routes=routes, random=random)
        self.ordinals: dict[int, int] = {}
        """For messages taken from the log: how many were taken up to it."""
        self.under_way: UnderWay | None = None
        self.closing = False
        self._bounds = Bounds(len(state.running))
        self._begin_deliveries()

    def _begin_deliveries(self) -> None:
        self.open: dict[LaneDelivery[Message], Claim] = {}
        self.past: list[LaneDelivery[Message]] = []
        self.handed: set[int] = set()
        """All that was ever handed out."""
        self.promises: dict[LaneDelivery[Message], tuple[int, int]] = {}
        """Deliveries that wait for their rows to say that they run: the version of the routes they go by, and how
        many answers had come."""
        self.pins: dict[tuple[object, int], tuple[int, str | None]] = {}
        """Whom buckets went to, and with which version of the routes."""
        self.shares = False
        """Whether buckets may go to others, though nobody came, went or changed."""
        self.lent: set[tuple[int, str, str]] = set()
        """Who is doubted and got something, since others did; with the version of the routes."""
        self.unrouted: set[int] = set()
        """What is about to get a row as unrouted."""

    @property
    def current(self) -> bool:
        """Whether no one else has the lane, as far as the store in its present life knows."""
        return not self.store.is_over and self.record.epoch == self.epoch

    @property
    def routed(self) -> bool:
        return self.store.setup.strategy is not None

    def committing(self) -> Sequence[LaneDelivery[Message]]:
        """Deliveries that the exchange under way settles."""
        return self.under_way.exchange.commits if self.under_way else ()

    def check(self) -> None:
        """What holds of memory after every step."""
        self._bounds.check(self.lane, self.settings.window, self.consumers)
        in_flight = self.lane.in_flight
        ensure(in_flight >= len(self.open), f"{in_flight} in flight, and {len(self.open)} are open")
        left = self.record.rows.keys() & self.store.suspects.keys()
        suspects = bool(left) or any(claim.alone for claim in self.open.values())
        ensure(suspects or not self.current or not self.lane.suspects, "it has suspects, though none are left")

    # Reading

    def fill(self, page: Page) -> bool:
        """Takes a page; whether that moved the reach."""
        lane = self.lane
        old, up_to = lane.reach, page.high
        found = [key for message in page.messages if (key := self.key_of(message)) is not None]
        keys = found if self.settings.ordered else None
        room, taken = lane.room(), len(self.ordinals)
        filled = lane.fill(page.messages, keys, up_to)
        ensure(lane.reach >= old, f"the reach went back from {old} to {lane.reach}")
        ensure(not filled or lane.reach >= up_to, f"the page up to {up_to} was taken, the reach is {lane.reach}")
        self._note_taken(old, {message.id for message in page.messages})
        ensure(len(self.ordinals) - taken <= room, f"{len(self.ordinals) - taken} were taken with room for {room}")
        ensure(room <= 1 or not self.breaker.stalled, f"there is room for {room}, while stalled")
        return lane.reach > old

    def _note_taken(self, old: int, page: set[int]) -> None:
        for message in self.record.messages:
            position = message.position
            if not old < position <= self.lane.reach or position in self.passed:
                continue
            if message.number in self.definition.rejected:
                self.rejected.add(position)
            else:
                ensure(message.id in page, f"{message} is within reach and was in no page")
                self.ordinals[position] = len(self.ordinals) + 1

    # Exchanges

    def make(self, commits: Sequence[LaneDelivery[Message]] = ()) -> Exchange[Message] | None:
        """Begins an exchange, if there is anything to write or to ask."""
        if self.closing:
            self.note_ended()
        exchange = self.lane.exchange(self.store.now, commits)
        if self.under_way is not None:
            ensure(exchange is None, "two exchanges are under way")
            return None
        if exchange is not None:
            committing = frozenset(delivery.entry.position for delivery in commits)
            self.under_way = UnderWay(exchange, self.evidence(committing, self.lane.reach))
        return exchange

    def commit(self) -> bool:
        """Commits the exchange under way; False if another owner came first."""
        under_way = self.under_way
        if under_way is None or under_way.answer is not None:
            return True
        answer = self.server.commit(
            self.number, self.life, self.epoch, self.revision, under_way.exchange, under_way.evidence
        )
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

    def learn(self) -> bool:
        """The answer arrives, if there is one; False if its messages cannot be had any more."""
        under_way = self.under_way
        if under_way is None or under_way.answer is None:
            return True
        answer = self.server.loaded(self.log_life, under_way.answer)
        if answer is None:
            return False
        self.under_way = None
        self.lane.exchanged(answer)
        self.counts = answer.counts
        if under_way.exchange.write is not None:
            del self.outcomes[: len(under_way.evidence.outcomes)]
            self.vanished = 0
        settled = len(self.outcomes) - self.vanished
        ensure(self.lane.settled == settled, f"{self.lane.settled} are settled, not {settled}")
        for delivery in under_way.exchange.commits:
            if (claim := self.open.pop(delivery, None)) is not None:
                self.past.append(delivery)
                self.acked.add(claim.position)
        write = under_way.exchange.write
        for move, moved in zip(write.moves if write else (), answer.moved, strict=True):
            self._check_start(move)
            if moved:
                self.learn_moved(move.position, move.row, under_way.evidence)
            else:
                self.learn_refused(move.position)
        self.learn_rows(answer)
        return True

    def _check_start(self, move: RowChange) -> None:
        """A healthy message gets no row when it starts, save on probation."""
        if move.row is not None and move.row.state is State.RUNNING and move.replaces is None:
            on_probation = self.unclean and self.ordinals[move.position] <= self.settings.probation
            ensure(on_probation or self.settings.track_all, f"{move.position} got a row, only because it starts")

    def abandon(self) -> None:
        """The exchange under way was rolled back."""
        if self.under_way is not None and self.under_way.answer is None:
            self.lane.abandon()
            self.under_way = None

    def change(self, settings: Settings) -> None:
        """Other settings from now on."""
        settings = self._ordered(settings)
        self.learn_settings(settings)
        self.lane.change(settings)

    def reorder(self, order: str) -> None:
        """Another order from now on, in the store and here."""
        known = self.lane.stored_rows
        rows = {row.position: row for row in self.record.rows.values()}
        same = [at for at, revision in known.items() if at in rows and revision in (None, rows[at].revision)]
        self.store.reorder(order, {*self.fates, *(claim.position for claim in self.open.values())})
        self.order = order
        self.settings = self._ordered(self.settings)
        self.lane.reorder(self.settings, self.key_of, {at: self.record.rows[at] for at in same})
        for claim in self.open.values():
            claim.key = self.key_of(claim.delivery.message)
        for position in self.untold:
            self.untold[position] += 1
        self.unpoked.clear()

    def key_of(self, message: Message) -> str | None:
        return key_of(message, self.order)

    def _ordered(self, settings: Settings) -> Settings:
        return replace(settings, ordered=self.order != "none")

    def close(self) -> None:
        """Ends all claims, in good order."""
        self.closing = True
        self.past.extend(self.open)
        self.open.clear()
        self.lane.close()


def bucket_of(message: Message) -> int:
    """The bucket that pinned strategies go by."""
    return int(message.key[1:]) % 4


def _routes(strategy: str | None) -> Routes[Message] | None:
    return None if strategy is None else Routes(strategy, bucket_of)
