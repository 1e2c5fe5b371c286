"""Where the consumers of a subscription in this process get their deliveries."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from milepost.dispatch import Breaker, Cursor, Exchange, Lane, LaneState, LimitReached, Route, Routes, Row
from milepost.engine.clock import Clock
from milepost.engine.consuming.consumer import AnyClaim, Consumer
from milepost.engine.consuming.endings import TOO_MANY
from milepost.engine.consuming.handing import Handing
from milepost.engine.consuming.options import Created
from milepost.engine.consuming.settler import Settler
from milepost.engine.journal import Journal
from milepost.engine.order import placed
from milepost.engine.owned import Owned
from milepost.engine.pages import Pages
from milepost.engine.place import Place
from milepost.engine.reading import Reading
from milepost.engine.rows import Rows
from milepost.engine.stopped import StoppedLanes
from milepost.engine.telling import Telling
from milepost.engine.writing import Writing
from milepost.errors import ConsumerClosed, Unavailable
from milepost.log.message import Message, id_in
from milepost.names import bucket_of
from milepost.progress.protocol import Held, Opened

LANE_LOST = "another process has the subscription, or the connection to the database was lost"
"""Why what consumers had is no longer theirs, when the lane is lost."""
TAKEN_BY_OPERATOR = "an operator took it back, to do something to the subscription"
"""Why what consumers had is no longer theirs, when nobody waited for it."""
PATIENCE = 0.1
"""The share of its time-out, at most a second of it, for which a delivery may wait for its consumer unnoticed."""


class Desk:
    """The consumers of a subscription, and its lane while this process has it; until then they stand by.

    It decides nothing itself: the core says what goes to whom.
    """

    def __init__(
        self,
        created: Created,
        opened: Opened,
        *,
        place: Place,
        clock: Clock,
        journal: Journal,
        telling: Telling | None,
        lost: Callable[[Owned, Exception], None],
        is_elsewhere: Callable[[], bool],
        news: Callable[[], None],
        reports_soon: Callable[[], None],
    ) -> None:
        self.created = created
        self.journal = journal
        self.telling = telling
        """Who is told of events, if anybody listens."""
        self.lanes: dict[int, Owned] = {}
        self.consumers: dict[str, Consumer] = {}
        """By name, in the order in which they came."""
        self._clock = clock
        self._place = place
        self._opened = opened
        self._solitude = place.solitude
        self._lost = lost
        self._is_elsewhere = is_elsewhere
        self._news = news
        self._stood_by = False
        self._breaker = self._new_breaker()
        self._stalled: str | None = None
        self._has_settled = False
        """Whether something is settled that is not written: whoever writes knows how long that may wait."""
        self._hurrying = 0
        """How many wait until what is settled is written."""
        self._stopped_lanes = StoppedLanes(journal, self.lanes, reports_soon)
        self.settler = Settler(self, clock, journal)
        self.handing = Handing(self, clock, place.solitude)
        self.reading = self._new_reading()
        self.writing = self._new_writing()

    def _new_breaker(self) -> Breaker:
        settings = self.created.dispatch_settings()
        return Breaker(settings.stall_after, settings.retry.delay)

    def _new_reading(self) -> Reading:
        window = self.created.declaration.window
        feed = self._place.log.feed
        return Reading(feed, self._new_pages(), self.places, self.filled, self.outlived, window=window)

    def _new_pages(self) -> Pages:
        return Pages(self._place.log.feed, self.created.query(self._opened.since), lanes=1, by_stream=True)

    def _new_writing(self) -> Writing:
        checkpoint = self.created.declaration.checkpoint
        return Writing(
            self._place.services.progress,
            self._place.services.cursors,
            Rows(self._place.log.database, self._place.reader),
            self._clock,
            self.created.dispatch_settings(),
            seconds=checkpoint.seconds,
            messages=checkpoint.messages,
            changed=self.exchanged,
            woke=self.handing.wake,
            lost=self._lost,
        )

    # The lane

    @property
    def standby(self) -> bool:
        """Whether another process has the lane."""
        return not self.lanes and self._is_elsewhere()

    @property
    def recalls(self) -> bool:
        """Whether what nobody has begun with is wanted back."""
        return any(owned.closing for owned in self.lanes.values())

    def say_standby(self) -> None:
        """Tells, once, that this process stands by, if it does."""
        if self.standby and not self._stood_by:
            self._stood_by = True
            self.journal.info("another process serves its consumers: those of this one stand by")

    @property
    def owned(self) -> Owned | None:
        """The lane, if this process has it."""
        return self.lanes.get(0)

    def add(self, held: Held, state: LaneState[Message[Any]]) -> None:
        """The lane was taken."""
        strategy = self.created.strategy
        routes: Routes[Message[Any]] = Routes(strategy, _BUCKETS.get(strategy))
        settings = self.created.dispatch_settings()
        lane = Lane(settings, state, breaker=self._breaker, routes=routes, random=random.random)
        for consumer in self.consumers.values():
            lane.join(consumer.name, consumer.core_routes)
            if consumer.is_limited:
                lane.doubt(consumer.name)
        if self._stood_by:
            self._stood_by = False
            self.journal.info("takes over: it serves its consumers from now on")
        owned = self.lanes[held.lane] = Owned(
            held, lane, self.created.declaration.ordered_by, looks_first=bool(state.running)
        )
        if self.telling is not None:
            self.telling.taken(held, vanished=state.unclean)
        self.settler.blamed(owned)
        self._lanes_changed()

    def lose(self, owned: Owned, error: Exception) -> None:
        """Another has the lane, or nobody knows what is stored: what consumers have is no longer theirs."""
        # An outage is told once, and not for each subscription.
        tell = self.journal.debug if isinstance(error, Unavailable) else self.journal.warning
        tell("the lane is lost, so what consumers have goes out again: %s", str(error) or type(error).__name__)
        self.settler.flush()
        owned.lost = True
        owned.running = 0
        had = {consumer: list(owned.lane.held_by(consumer.name)) for consumer in self.consumers.values()}
        owned.lane.discard()
        self.lanes.pop(owned.number, None)
        for consumer, claims in had.items():
            consumer.tell_lost(claims, LANE_LOST)
        owned.ended()
        self._lanes_changed()
        if self.telling is not None:
            self.telling.lost(owned.number, error)

    async def close(self, owned: Owned) -> bool:
        """Nothing more goes out, and what is out is settled or times out; False if it was reopened instead."""
        owned.closing = True
        self.settler.flush()
        for consumer in self.consumers.values():
            owned.lane.give_back(consumer.recall())
        self.look()
        return await owned.closed()

    def reopen(self, owned: Owned) -> None:
        """The lane was being closed, and goes on."""
        owned.reopen()
        self._lanes_changed()
        self.look()

    def take_back(self) -> None:
        """What consumers have is theirs no longer: it goes to others, which is no attempt."""
        self.settler.flush()
        for owned in self.lanes.values():
            for delivery in owned.take_back():
                self.journal.taken_back(delivery.message, delivery.attempt)
                if (consumer := self.consumers.get(delivery.consumer or "")) is not None:
                    consumer.tell_lost([delivery], TAKEN_BY_OPERATOR)
        self.look()

    def finish(self, owned: Owned) -> Exchange[Message[Any]] | None:
        """Ends the lane, which is closed, in good order; what is left to write."""
        owned.lane.close()
        return owned.lane.exchange(self._clock.now())

    def remove(self, owned: Owned) -> None:
        """The lane was released."""
        if self.lanes.get(owned.number) is owned:
            del self.lanes[owned.number]
            owned.ended()
            self._lanes_changed()

    def _lanes_changed(self) -> None:
        self.reading.reads_for(self.lanes)
        self.writing.writes_for(self.lanes)
        self._solitude.wants(self.handing, False)
        self._solitude.settled()
        self._stopped_lanes.look()
        self._news()
        self.handing.wake()

    def look(self) -> None:
        """Something was settled, or may go to somebody else."""
        self.handing.wake()
        owned = self.owned
        if owned is None:
            return
        lane = owned.lane
        owned.running = lane.in_flight
        owned.ended()
        self.reading.room()
        self._solitude.settled()
        is_first, self._has_settled = not self._has_settled, lane.settled > 0
        much = lane.settled >= self.writing.messages
        if (is_first and self._has_settled) or much or lane.urgent(self._clock.now()):
            self.writing.look()

    async def stored(self) -> None:
        """Returns when what is settled by now is written, or the lane is here no longer."""
        self._hurrying += 1
        self.writing.hurries = True
        self.writing.look()
        try:
            await self._is_stored()
        finally:
            self._hurrying -= 1
            self.writing.hurries = bool(self._hurrying)

    async def _is_stored(self) -> None:
        owned = self.owned
        if owned is None:
            return
        # A write that is under way has begun without the last of it.
        enough = owned.written + (2 if owned.exchanging else 1)
        while self.owned is owned and owned.lane.settled and owned.written < enough:
            await owned.changes()

    # From the log and from the store

    def places(self, messages: Sequence[Message[Any]]) -> tuple[list[int], list[str] | None]:
        """The only lane and, with an order, the key of each message."""
        return placed(messages, self.created.declaration.ordered_by, 1)

    def filled(self, owned: Owned) -> None:
        """The lane has got messages."""
        self._stopped_lanes.filled(owned)
        if owned.lane.urgent(self._clock.now()):
            self.writing.look()
        self.handing.wake()

    def outlived(self, owned: Owned) -> None:
        """The server has another life than the one in which the lane was taken."""
        self._lost(owned, Unavailable("PostgreSQL was restarted"))

    def exchanged(self, owned: Owned) -> None:
        """The lane's progress is written, and what it asked is known."""
        owned.looks_first = False
        self._has_settled = owned.lane.settled > 0
        self._stopped_lanes.exchanged(owned)
        self.reading.room()
        self.handing.wake()
        self._follow_breaker()

    def poke(self) -> None:
        """A person may have changed rows."""
        for owned in self.lanes.values():
            owned.lane.poke()
        self.writing.look()

    def _follow_breaker(self) -> None:
        stalled, self._stalled = self._stalled, self._breaker.stalled
        if self._stalled and not stalled:
            self.journal.error("stalled: %s", self._stalled)
        if stalled and not self._stalled:
            self.journal.warning("goes on: a message succeeded again")
        if self.telling is not None:
            self.telling.breaker(self._stalled)

    # Consumers

    def join(self, consumer: Consumer) -> None:
        """One more consumer; raises `ConsumerClosed` if there are too many."""
        most = self.created.max_consumers
        if most is not None and len(self.consumers) >= most:
            raise ConsumerClosed(TOO_MANY, f": there may be {most:,}")
        if (owned := self.owned) is not None:
            owned.lane.join(consumer.name, consumer.core_routes)
        self.consumers[consumer.name] = consumer
        self._news()
        self.look()

    def leave(self, consumer: Consumer) -> None:
        """A consumer goes; what it has goes to others at once, and is no attempt."""
        self.settler.flush()
        if consumer.name in self.consumers and (owned := self.owned) is not None:
            owned.lane.leave(consumer.name)
        self._forget(consumer)

    def lose_consumer(self, consumer: Consumer, reason: str) -> None:
        """A consumer has vanished: what it had taken counts as an attempt, and what it had not goes to others."""
        self.settler.flush()
        if consumer.name in self.consumers:
            self.settler.lost(consumer, reason)
        self._forget(consumer)

    def _forget(self, consumer: Consumer) -> None:
        self.consumers.pop(consumer.name, None)
        self._news()
        self.look()

    def end(self, reason: str) -> None:
        """All consumers end, and are told why."""
        for consumer in list(self.consumers.values()):
            self.leave(consumer)
            consumer.close(reason)

    def reroute(self, consumer: Consumer, routes: Sequence[Route]) -> None:
        """A consumer's routes are others from now on."""
        if consumer.name in self.consumers and (owned := self.owned) is not None:
            owned.lane.configure(consumer.name, routes)
            self.look()

    def doubt(self, consumer: Consumer) -> None:
        """A consumer was late: others get what is pinned to it, until it is trusted again."""
        if consumer.name in self.consumers and (owned := self.owned) is not None:
            owned.lane.doubt(consumer.name)

    def trust(self, consumer: Consumer) -> None:
        """A consumer keeps up again."""
        if consumer.name in self.consumers and (owned := self.owned) is not None:
            owned.lane.trust(consumer.name)

    def give_back(self, claims: Sequence[AnyClaim]) -> None:
        """These were not tried: they go out again."""
        if claims and (owned := self.owned) is not None:
            owned.lane.give_back(claims)
            self.look()

    def extend(self, claims: Sequence[AnyClaim], seconds: float) -> None:
        """Gives deliveries that are in force so many seconds from now."""
        if (owned := self.owned) is not None:
            owned.lane.extend(claims, self._clock.now(), seconds)
            self.handing.wake()

    @property
    def patience(self) -> float:
        """Seconds for which a delivery may wait for its consumer before its time begins anew."""
        return min(1.0, PATIENCE * self.created.declaration.timeout)

    def restart(self, claim: AnyClaim) -> None:
        """A consumer looks at a delivery that waited for it: its time begins."""
        self.extend([claim], self.created.declaration.timeout)

    def is_overdue(self, claim: AnyClaim) -> bool:
        """Whether the time of a delivery has run out."""
        return claim.deadline is not None and claim.deadline <= self._clock.now()

    def is_replay(self, message: Message[Any]) -> bool:
        """Whether a message had been handled before, and is repeated on purpose."""
        owned = self.owned
        return owned is not None and message in owned.repeats

    # Looking

    @property
    def handled(self) -> int:
        """How many messages are done."""
        return self.settler.numbers.done

    @property
    def attempts(self) -> int:
        """How many attempts at messages have ended."""
        return self.settler.numbers.settled_count

    @property
    def handling_seconds(self) -> float:
        """How long consumers had these, together."""
        return self.settler.numbers.seconds

    @property
    def last_error(self) -> tuple[str, float] | None:
        """Why the last attempt failed that did, and when."""
        return self.settler.last_error

    @property
    def stopped(self) -> Mapping[int, LimitReached]:
        """The lane if it reads no further, and why."""
        return self._stopped_lanes.limits

    @property
    def in_flight(self) -> int:
        """How many messages are with consumers."""
        return sum(owned.lane.in_flight for owned in self.lanes.values())

    def flights(self) -> dict[int, float | None]:
        """The positions of these, and by `time.monotonic` since when, if a consumer has looked at it."""
        return {at: begun for owned in self.lanes.values() for at, begun in owned.lane.handed_out().items()}

    def in_flight_of(self, consumer: Consumer) -> int:
        """How many of them one consumer has."""
        if consumer.name not in self.consumers or (owned := self.owned) is None:
            return 0
        return len(owned.lane.held_by(consumer.name))

    # Changing

    def change(self, created: Created, opened: Opened) -> Cursor | None:
        """Other settings from now on. If something else is selected: what was judged by then, and stays so."""
        before = (self.created.declaration.selects(), self._opened.since)
        if created.strategy != self.created.strategy:
            for owned in self.lanes.values():
                owned.lane.share_by(created.strategy, _BUCKETS.get(created.strategy))
        self.created, self._opened = created, opened
        settings = created.dispatch_settings()
        self._breaker.stall_after, self._breaker.pace = settings.stall_after, settings.retry.delay
        for owned in self.lanes.values():
            owned.lane.change(settings)
        self.writing.change(settings, created.declaration.checkpoint)
        self.reading.resize(settings.window)
        self.handing.wake()
        if before == (created.declaration.selects(), opened.since):
            return None
        self.reading.change(self._new_pages())
        return self.owned.lane.unread() if self.owned is not None else None

    def reorder(self, created: Created, rows: Mapping[int, Row]) -> None:
        """Another order from now on; `rows` has what is stored now of those that the lane knows."""
        self.created = created
        settings = created.dispatch_settings()
        for owned in self.lanes.values():
            owned.lane.reorder(settings, created.declaration.ordered_by.key, rows)
        self.writing.change(settings, created.declaration.checkpoint)
        self.look()


def _by_stream(message: Message[Any]) -> int:
    return bucket_of(message.stream)


def _by_correlation(message: Message[Any]) -> int:
    correlation = id_in(message.metadata, "correlation_id")
    return bucket_of(message.stream if correlation is None else str(correlation))


_BUCKETS: dict[str, Callable[[Message[Any]], int]] = {
    "pinned": _by_stream,
    "pinned_by_correlation": _by_correlation,
}
