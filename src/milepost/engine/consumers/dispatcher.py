"""Dispatch the messages of one subscription to its consumers in this process."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from milepost.dispatch import Breaker, Cursor, DeliveryRow, Exchange, Lane, LaneState, LimitReached, Route, Routes
from milepost.engine.clock import Clock
from milepost.engine.consumers.consumer import REASON_TOO_MANY_CONSUMERS, Consumer
from milepost.engine.consumers.settler import ConsumerSettler
from milepost.engine.declare.consumer_options import ConsumerSubscriptionOptions
from milepost.engine.declare.handler import AnyDelivery
from milepost.engine.declare.order import lanes_and_keys
from milepost.engine.lanes.checkpoint_writer import CheckpointWriter
from milepost.engine.lanes.held_lane import HeldLane, StoppedLanes
from milepost.engine.lanes.message_loader import MessageLoader
from milepost.engine.lanes.reader import LaneReader, SubscriptionPages
from milepost.engine.observe.emitter import EventEmitter
from milepost.engine.runtime import Runtime, SuspectIsolation
from milepost.engine.subscription_logger import SubscriptionLogger
from milepost.errors import ConsumerClosed, Unavailable
from milepost.log.message import Message, id_in
from milepost.names import bucket_of
from milepost.progress.protocol import LaneGrant, SubscriptionRecord

MIN_LOOP_PAUSE_SECONDS = 0.005
"""Seconds between two looks at the time, at least: what is due may have to wait for something else."""


class DeliveryLoop:
    """One round after the other: what has timed out, then what can go out, then waiting for either."""

    def __init__(
        self, dispatcher: "ConsumerDispatcher", clock: Clock, suspect_isolation: SuspectIsolation
    ) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._suspect_isolation = suspect_isolation
        self._changed = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """How many messages are out."""
        return self._dispatcher.in_flight

    def wake(self) -> None:
        """Something may have become possible."""
        self._changed.set()

    async def run(self) -> None:
        """Hands out and takes back until it is cancelled."""
        self._suspect_isolation.join(self)
        try:
            while True:
                self._changed.clear()
                self._dispatcher.settler.flush()
                owned = self._dispatcher.owned
                if owned is not None:
                    self._take_back(owned)
                    self._hand_out(owned)
                await self._pause(owned)
        finally:
            self._suspect_isolation.leave(self)

    async def _pause(self, owned: HeldLane | None) -> None:
        """Until something may have become possible: told, or by the time."""
        moment = owned.lane.wake_at() if owned is not None else None
        seconds = None if moment is None else max(MIN_LOOP_PAUSE_SECONDS, self._clock.until(moment))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    # Out

    def _hand_out(self, owned: HeldLane) -> None:
        if not owned.hands_out:
            return
        lane = owned.lane
        self._suspect_isolation.wants(self, lane.suspects)
        if self._suspect_isolation.permits(self):
            self._give(lane.next(self._clock.now()))
        else:
            # What is promised counts as out: whoever waits to be alone waits until it was.
            self._give(lane.next(self._clock.now(), lane.promised))
        owned.running = lane.in_flight
        if lane.urgent(self._clock.now()):
            self._dispatcher.checkpoint_writer.wake()
        if not lane.has_next:
            self._dispatcher.lane_reader.room()

    def _give(self, claims: list[AnyDelivery]) -> None:
        given: defaultdict[str, list[AnyDelivery]] = defaultdict(list)
        for claim in claims:
            given[claim.consumer or ""].append(claim)
        for name, of_consumer in given.items():
            consumer = self._dispatcher.consumers[name]
            again = sum(claim.attempt > 1 for claim in of_consumer)
            for numbers in (consumer.numbers, self._dispatcher.settler.numbers):
                numbers.delivered += len(of_consumer)
                numbers.redelivered += again
            consumer.take(of_consumer)

    # Back

    def _take_back(self, owned: HeldLane) -> None:
        overdue: defaultdict[str, list[AnyDelivery]] = defaultdict(list)
        for claim in owned.lane.overdue(self._clock.now()):
            overdue[claim.consumer or ""].append(claim)
        for name, claims in overdue.items():
            self._dispatcher.settler.timed_out(self._dispatcher.consumers[name], claims)
        if overdue:
            self._dispatcher.wake()


LANE_LOST_REASON = "another process has the subscription, or the connection to the database was lost"
"""Why what consumers had is no longer theirs, when the lane is lost."""
TAKEN_BY_OPERATOR_REASON = "an operator took it back, to do something to the subscription"
"""Why what consumers had is no longer theirs, when nobody waited for it."""
UNNOTICED_WAIT_SHARE = 0.1
"""The share of its time-out, at most a second of it, for which a delivery may wait for its consumer unnoticed."""


class ConsumerDispatcher:
    """The consumers of a subscription, and its lane while this process has it; until then they stand by.

    It decides nothing itself: the core says what goes to whom.
    """

    def __init__(
        self,
        options: ConsumerSubscriptionOptions,
        record: SubscriptionRecord,
        *,
        runtime: Runtime,
        clock: Clock,
        logger: SubscriptionLogger,
        emitter: EventEmitter | None,
        on_lost: Callable[[HeldLane, Exception], None],
        is_elsewhere: Callable[[], bool],
        on_news: Callable[[], None],
        on_report_due: Callable[[], None],
    ) -> None:
        self.options = options
        self.logger = logger
        self.emitter = emitter
        """Who is told of events, if anybody listens."""
        self.lanes: dict[int, HeldLane] = {}
        self.consumers: dict[str, Consumer] = {}
        """By name, in the order in which they came."""
        self._clock = clock
        self._runtime = runtime
        self._opened = record
        self._suspect_isolation = runtime.suspect_isolation
        self._on_lost = on_lost
        self._is_elsewhere = is_elsewhere
        self._on_news = on_news
        self._stood_by = False
        self._breaker = self._new_breaker()
        self._stalled: str | None = None
        self._has_settled = False
        """Whether something is settled that is not written: whoever writes knows how long that may wait."""
        self._hurrying = 0
        """How many wait until what is settled is written."""
        self._stopped_lanes = StoppedLanes(logger, self.lanes, on_report_due)
        self.settler = ConsumerSettler(self, clock, logger)
        self.delivery_loop = DeliveryLoop(self, clock, runtime.suspect_isolation)
        self.lane_reader = self._new_lane_reader()
        self.checkpoint_writer = self._new_checkpoint_writer()

    def _new_breaker(self) -> Breaker:
        settings = self.options.dispatch_settings()
        return Breaker(settings.stall_after, settings.retry.delay)

    def _new_lane_reader(self) -> LaneReader:
        window = self.options.declaration.window
        feed = self._runtime.log.feed
        return LaneReader(feed, self._new_pages(), self.places, self.filled, self.lose_outlived, window=window)

    def _new_pages(self) -> SubscriptionPages:
        return SubscriptionPages(
            self._runtime.log.feed, self.options.query(self._opened.since), lanes=1, by_stream=True
        )

    def _new_checkpoint_writer(self) -> CheckpointWriter:
        checkpoint = self.options.declaration.checkpoint
        return CheckpointWriter(
            self._runtime.services.progress,
            self._runtime.services.cursors,
            MessageLoader(self._runtime.log),
            self._clock,
            self.options.dispatch_settings(),
            seconds=checkpoint.seconds,
            messages=checkpoint.messages,
            on_written=self.exchanged,
            on_wake=self.delivery_loop.wake,
            on_lost=self._on_lost,
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

    def log_standby_once(self) -> None:
        """Tells, once, that this process stands by, if it does."""
        if self.standby and not self._stood_by:
            self._stood_by = True
            self.logger.info("another process serves its consumers: those of this one stand by")

    @property
    def owned(self) -> HeldLane | None:
        """The lane, if this process has it."""
        return self.lanes.get(0)

    def add(self, held: LaneGrant, state: LaneState[Message[Any]]) -> None:
        """The lane was taken."""
        strategy = self.options.strategy
        routes: Routes[Message[Any]] = Routes(strategy, _BUCKET_FUNCTIONS.get(strategy))
        settings = self.options.dispatch_settings()
        lane = Lane(settings, state, breaker=self._breaker, routes=routes, random=random.random)
        for consumer in self.consumers.values():
            lane.join(consumer.name, consumer.lane_routes)
            if consumer.is_limited:
                lane.doubt(consumer.name)
        if self._stood_by:
            self._stood_by = False
            self.logger.info("takes over: it serves its consumers from now on")
        owned = self.lanes[held.lane] = HeldLane(
            held, lane, self.options.declaration.ordered_by, must_load_rows=bool(state.running)
        )
        if self.emitter is not None:
            self.emitter.taken(held, vanished=state.unclean)
        self.settler.blamed(owned)
        self._lanes_changed()

    def lose(self, owned: HeldLane, error: Exception) -> None:
        """Another has the lane, or nobody knows what is stored: what consumers have is no longer theirs."""
        # An outage is told once, and not for each subscription.
        tell = self.logger.debug if isinstance(error, Unavailable) else self.logger.warning
        tell("the lane is lost, so what consumers have goes out again: %s", str(error) or type(error).__name__)
        self.settler.flush()
        owned.lost = True
        owned.running = 0
        had = {consumer: list(owned.lane.held_by(consumer.name)) for consumer in self.consumers.values()}
        owned.lane.discard()
        self.lanes.pop(owned.number, None)
        for consumer, claims in had.items():
            consumer.notify_lost(claims, LANE_LOST_REASON)
        owned.ended()
        self._lanes_changed()
        if self.emitter is not None:
            self.emitter.lost(owned.number, error)

    async def close(self, owned: HeldLane) -> bool:
        """Nothing more goes out, and what is out is settled or times out; False if it was reopened instead."""
        owned.closing = True
        self.settler.flush()
        for consumer in self.consumers.values():
            owned.lane.give_back(consumer.recall())
        self.wake()
        return await owned.closed()

    def reopen(self, owned: HeldLane) -> None:
        """The lane was being closed, and goes on."""
        owned.reopen()
        self._lanes_changed()
        self.wake()

    def take_back(self) -> None:
        """What consumers have is theirs no longer: it goes to others, which is no attempt."""
        self.settler.flush()
        for owned in self.lanes.values():
            for delivery in owned.take_back():
                self.logger.taken_back(delivery.message, delivery.attempt)
                if (consumer := self.consumers.get(delivery.consumer or "")) is not None:
                    consumer.notify_lost([delivery], TAKEN_BY_OPERATOR_REASON)
        self.wake()

    def finish(self, owned: HeldLane) -> Exchange[Message[Any]] | None:
        """Ends the lane, which is closed, in good order; what is left to write."""
        owned.lane.close()
        return owned.lane.exchange(self._clock.now())

    def remove(self, owned: HeldLane) -> None:
        """The lane was released."""
        if self.lanes.get(owned.number) is owned:
            del self.lanes[owned.number]
            owned.ended()
            self._lanes_changed()

    def _lanes_changed(self) -> None:
        self.lane_reader.reads_for(self.lanes)
        self.checkpoint_writer.writes_for(self.lanes)
        self._suspect_isolation.wants(self.delivery_loop, False)
        self._suspect_isolation.settled()
        self._stopped_lanes.update()
        self._on_news()
        self.delivery_loop.wake()

    def wake(self) -> None:
        """Something was settled, or may go to somebody else."""
        self.delivery_loop.wake()
        owned = self.owned
        if owned is None:
            return
        lane = owned.lane
        owned.running = lane.in_flight
        owned.ended()
        self.lane_reader.room()
        self._suspect_isolation.settled()
        is_first, self._has_settled = not self._has_settled, lane.settled > 0
        much = lane.settled >= self.checkpoint_writer.messages
        if (is_first and self._has_settled) or much or lane.urgent(self._clock.now()):
            self.checkpoint_writer.wake()

    async def stored(self) -> None:
        """Returns when what is settled by now is written, or the lane is here no longer."""
        self._hurrying += 1
        self.checkpoint_writer.hurries = True
        self.checkpoint_writer.wake()
        try:
            await self._is_stored()
        finally:
            self._hurrying -= 1
            self.checkpoint_writer.hurries = bool(self._hurrying)

    async def _is_stored(self) -> None:
        owned = self.owned
        if owned is None:
            return
        # A write that is under way has begun without the last of it.
        enough = owned.written + (2 if owned.exchanging else 1)
        while self.owned is owned and owned.lane.settled and owned.written < enough:
            await owned.wait_for_change()

    # From the log and from the store

    def places(self, messages: Sequence[Message[Any]]) -> tuple[list[int], list[str] | None]:
        """The only lane and, with an order, the key of each message."""
        return lanes_and_keys(messages, self.options.declaration.ordered_by, 1)

    def filled(self, owned: HeldLane) -> None:
        """The lane has got messages."""
        self._stopped_lanes.filled(owned)
        if owned.lane.urgent(self._clock.now()):
            self.checkpoint_writer.wake()
        self.delivery_loop.wake()

    def lose_outlived(self, owned: HeldLane) -> None:
        """The server has another life than the one in which the lane was taken."""
        self._on_lost(owned, Unavailable("PostgreSQL was restarted"))

    def exchanged(self, owned: HeldLane) -> None:
        """The lane's progress is written, and what it asked is known."""
        owned.must_load_rows = False
        self._has_settled = owned.lane.settled > 0
        self._stopped_lanes.exchanged(owned)
        self.lane_reader.room()
        self.delivery_loop.wake()
        self._follow_breaker()

    def poke(self) -> None:
        """A person may have changed rows."""
        for owned in self.lanes.values():
            owned.lane.poke()
        self.checkpoint_writer.wake()

    def _follow_breaker(self) -> None:
        stalled, self._stalled = self._stalled, self._breaker.stalled
        if self._stalled and not stalled:
            self.logger.error("stalled: %s", self._stalled)
        if stalled and not self._stalled:
            self.logger.warning("goes on: a message succeeded again")
        if self.emitter is not None:
            self.emitter.breaker(self._stalled)

    # Consumers

    def join(self, consumer: Consumer) -> None:
        """One more consumer; raises `ConsumerClosed` if there are too many."""
        most = self.options.max_consumers
        if most is not None and len(self.consumers) >= most:
            raise ConsumerClosed(REASON_TOO_MANY_CONSUMERS, f": there may be {most:,}")
        if (owned := self.owned) is not None:
            owned.lane.join(consumer.name, consumer.lane_routes)
        self.consumers[consumer.name] = consumer
        self._on_news()
        self.wake()

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
        self._on_news()
        self.wake()

    def end(self, reason: str) -> None:
        """All consumers end, and are told why."""
        for consumer in list(self.consumers.values()):
            self.leave(consumer)
            consumer.close(reason)

    def reroute(self, consumer: Consumer, routes: Sequence[Route]) -> None:
        """A consumer's routes are others from now on."""
        if consumer.name in self.consumers and (owned := self.owned) is not None:
            owned.lane.configure(consumer.name, routes)
            self.wake()

    def doubt(self, consumer: Consumer) -> None:
        """A consumer was late: others get what is pinned to it, until it is trusted again."""
        if consumer.name in self.consumers and (owned := self.owned) is not None:
            owned.lane.doubt(consumer.name)

    def trust(self, consumer: Consumer) -> None:
        """A consumer keeps up again."""
        if consumer.name in self.consumers and (owned := self.owned) is not None:
            owned.lane.trust(consumer.name)

    def give_back(self, claims: Sequence[AnyDelivery]) -> None:
        """These were not tried: they go out again."""
        if claims and (owned := self.owned) is not None:
            owned.lane.give_back(claims)
            self.wake()

    def extend(self, claims: Sequence[AnyDelivery], seconds: float) -> None:
        """Gives deliveries that are in force so many seconds from now."""
        if (owned := self.owned) is not None:
            owned.lane.extend(claims, self._clock.now(), seconds)
            self.delivery_loop.wake()

    @property
    def patience(self) -> float:
        """Seconds for which a delivery may wait for its consumer before its time begins anew."""
        return min(1.0, UNNOTICED_WAIT_SHARE * self.options.declaration.timeout)

    def restart(self, claim: AnyDelivery) -> None:
        """A consumer looks at a delivery that waited for it: its time begins."""
        self.extend([claim], self.options.declaration.timeout)

    def is_overdue(self, claim: AnyDelivery) -> bool:
        """Whether the time of a delivery has run out."""
        return claim.deadline is not None and claim.deadline <= self._clock.now()

    def is_replay(self, message: Message[Any]) -> bool:
        """Whether a message had been handled before, and is repeated on purpose."""
        owned = self.owned
        return owned is not None and message in owned.repeats

    # Looking

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

    def change(self, options: ConsumerSubscriptionOptions, record: SubscriptionRecord) -> Cursor | None:
        """Other settings from now on. If something else is selected: what was judged by then, and stays so."""
        before = (self.options.declaration.selects(), self._opened.since)
        if options.strategy != self.options.strategy:
            for owned in self.lanes.values():
                owned.lane.share_by(options.strategy, _BUCKET_FUNCTIONS.get(options.strategy))
        self.options, self._opened = options, record
        settings = options.dispatch_settings()
        self._breaker.stall_after, self._breaker.pace = settings.stall_after, settings.retry.delay
        for owned in self.lanes.values():
            owned.lane.change(settings)
        self.checkpoint_writer.change(settings, options.declaration.checkpoint)
        self.lane_reader.resize(settings.window)
        self.delivery_loop.wake()
        if before == (options.declaration.selects(), record.since):
            return None
        self.lane_reader.change(self._new_pages())
        return self.owned.lane.unread() if self.owned is not None else None

    def reorder(self, options: ConsumerSubscriptionOptions, rows: Mapping[int, DeliveryRow]) -> None:
        """Another order from now on; `rows` has what is stored now of those that the lane knows."""
        self.options = options
        settings = options.dispatch_settings()
        for owned in self.lanes.values():
            owned.lane.reorder(settings, options.declaration.ordered_by.key, rows)
        self.checkpoint_writer.change(settings, options.declaration.checkpoint)
        self.wake()


def _stream_bucket(message: Message[Any]) -> int:
    return bucket_of(message.stream)


def _correlation_bucket(message: Message[Any]) -> int:
    correlation = id_in(message.metadata, "correlation_id")
    return bucket_of(message.stream if correlation is None else str(correlation))


_BUCKET_FUNCTIONS: dict[str, Callable[[Message[Any]], int]] = {
    "pinned": _stream_bucket,
    "pinned_by_correlation": _correlation_bucket,
}
