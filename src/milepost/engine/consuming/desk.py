"""Where the consumers of a subscription in this process get their deliveries."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from milepost.dispatch import Breaker, Exchange, Lane, LaneState, Route, Routes
from milepost.dispatch import Delivery as Claim
from milepost.engine.clock import Clock
from milepost.engine.consuming.consumer import Consumer
from milepost.engine.consuming.options import Created
from milepost.engine.journal import Journal
from milepost.engine.order import placed
from milepost.engine.owned import Owned
from milepost.engine.pages import Pages
from milepost.engine.place import Place
from milepost.engine.reading import Reading
from milepost.engine.rows import Rows
from milepost.engine.telling import Telling
from milepost.engine.writing import Writing
from milepost.errors import ConsumerClosed
from milepost.log.message import Message
from milepost.names import bucket_of
from milepost.progress.protocol import Held, Opened

AnyClaim = Claim[Message[Any]]


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
        lost: Callable[[Owned, Exception], None],
    ) -> None:
        self.created = created
        self.journal = journal
        self.lanes: dict[int, Owned] = {}
        self.consumers: dict[str, Consumer] = {}
        """By name, in the order in which they came."""
        self.handled = 0
        self.last_error: tuple[str, float] | None = None
        self._clock = clock
        self._place = place
        self._opened = opened
        self._lost = lost
        self._breaker = self._new_breaker()
        self._changed = asyncio.Event()
        self.reading = self._new_reading()
        self.writing = self._new_writing()

    def _new_breaker(self) -> Breaker:
        settings = self.created.dispatch_settings()
        return Breaker(settings.stall_after, settings.retry.delay)

    def _new_reading(self) -> Reading:
        feed = self._place.log.feed
        pages = Pages(feed, self.created.query(self._opened.since), lanes=1, by_stream=True)
        return Reading(
            feed, pages, self.places, self.filled, self.outlived, window=self.created.declaration.window
        )

    def _new_writing(self) -> Writing:
        checkpoint = self.created.declaration.checkpoint
        return Writing(
            self._place.services.progress,
            Rows(self._place.log.database, self._place.reader),
            self._clock,
            self.created.dispatch_settings(),
            seconds=checkpoint.seconds,
            messages=checkpoint.messages,
            changed=self.exchanged,
            woke=self._changed.set,
            lost=self._lost,
        )

    # The lane

    @property
    def telling(self) -> Telling | None:
        """Nobody listens: what happens to consumers they know themselves."""
        return None

    @property
    def standby(self) -> bool:
        """Whether another process has the lane, or nobody has it yet."""
        return not self.lanes

    @property
    def owned(self) -> Owned | None:
        """The lane, if this process has it."""
        return next(iter(self.lanes.values()), None)

    def add(self, held: Held, state: LaneState[Message[Any]]) -> None:
        """The lane was taken."""
        routes: Routes[Message[Any]] = Routes(self.created.strategy, _BUCKETS.get(self.created.strategy))
        lane = Lane(
            self.created.dispatch_settings(),
            state,
            breaker=self._breaker,
            routes=routes,
            random=random.random,
        )
        for consumer in self.consumers.values():
            lane.join(consumer.name, consumer.routes)
        self.lanes[held.lane] = Owned(held, lane, looks_first=bool(state.running))
        self._lanes_changed()

    def lose(self, owned: Owned, error: Exception) -> None:
        """Another has the lane, or nobody knows what is stored: what consumers have is no longer theirs."""
        self.journal.warning("consumers stand by: %s", str(error) or type(error).__name__)
        owned.lost = True
        owned.running = 0
        owned.lane.discard()
        self.lanes.pop(owned.number, None)
        for consumer in self.consumers.values():
            consumer.lose_all()
        owned.ended()
        self._lanes_changed()

    async def close(self, owned: Owned) -> Exchange[Message[Any]] | None:
        """Ends the lane in good order: nothing more goes out, and what is out is settled or times out."""
        owned.closing = True
        for consumer in self.consumers.values():
            self._give_back(owned, consumer.give_back_unseen())
        self._changed.set()
        await owned.at_rest()
        owned.lane.close()
        return owned.lane.exchange(self._clock.now())

    def remove(self, owned: Owned) -> None:
        """The lane was released."""
        if self.lanes.get(owned.number) is owned:
            del self.lanes[owned.number]
            self._lanes_changed()

    def _lanes_changed(self) -> None:
        self.reading.reads_for(self.lanes)
        self.writing.writes_for(self.lanes)
        self._changed.set()

    def places(self, messages: Sequence[Message[Any]]) -> tuple[list[int], list[str] | None]:
        """The only lane and, with an order, the key of each message."""
        return placed(messages, self.created.declaration.ordered_by, 1)

    def filled(self, owned: Owned) -> None:
        """The lane has got messages."""
        if owned.lane.urgent(self._clock.now()):
            self.writing.look()
        self._changed.set()

    def outlived(self, owned: Owned) -> None:
        """The server has another life than the one in which the lane was taken."""
        self._lost(owned, RuntimeError("the server was restarted"))

    def exchanged(self, owned: Owned) -> None:
        """The lane's progress is written, and what it asked is known."""
        owned.looks_first = False
        self.reading.room()
        self._changed.set()

    def poke(self) -> None:
        """A person may have changed rows."""
        for owned in self.lanes.values():
            owned.lane.poke()
        self.writing.look()

    @property
    def in_flight(self) -> int:
        """How many messages are with consumers."""
        return sum(owned.lane.in_flight for owned in self.lanes.values())

    def positions_in_flight(self) -> set[int]:
        """The positions of these."""
        return {position for owned in self.lanes.values() for position in owned.lane.handed_out()}

    # Consumers

    def join(self, consumer: Consumer) -> None:
        """One more consumer; raises `ConsumerClosed` if there are too many."""
        most = self.created.max_consumers
        if most is not None and len(self.consumers) >= most:
            raise ConsumerClosed(f"too many consumers: there may be {most}")
        if (owned := self.owned) is not None:
            owned.lane.join(consumer.name, consumer.routes)
        self.consumers[consumer.name] = consumer
        self._look(owned)

    def leave(self, consumer: Consumer) -> None:
        """A consumer goes; what it has goes to others at once."""
        if self.consumers.pop(consumer.name, None) is None:
            return
        if (owned := self.owned) is not None:
            with suppress(KeyError):
                owned.lane.leave(consumer.name)
            self._look(owned)

    def reroute(self, consumer: Consumer, routes: Sequence[Route]) -> None:
        """A consumer's routes are others from now on."""
        if (owned := self.owned) is not None:
            owned.lane.configure(consumer.name, routes)
            self._look(owned)

    def settle(self, how: str, claims: list[AnyClaim], **words: Any) -> set[AnyClaim]:
        """Settles deliveries in one way; those that were refused."""
        owned = self.owned
        if owned is None:
            return set(claims)
        lane, now = owned.lane, self._clock.now()
        match how:
            case "ack" | "skip":
                refused = lane.ack(claims)
            case "park":
                refused = lane.park(claims, now, **words)
            case "stop":
                refused = [each for claim in claims for each in lane.stop(claim, now, **words)]
            case _:
                refused = lane.retry(claims, now, **words)
        self.handled += len(claims) - len(refused) if how in ("ack", "skip") else 0
        if how in ("retry", "park", "stop") and len(refused) < len(claims):
            self.last_error = (words.get("reason") or how, now)
        self._look(owned)
        return set(refused)

    def extend(self, claims: list[AnyClaim], seconds: float) -> set[AnyClaim]:
        """Gives deliveries more time; those that were refused."""
        owned = self.owned
        if owned is None:
            return set(claims)
        refused = owned.lane.extend(claims, self._clock.now(), seconds)
        self._changed.set()
        return set(refused)

    def _give_back(self, owned: Owned, claims: list[AnyClaim]) -> None:
        owned.lane.give_back(claims)
        self._look(owned)

    def _look(self, owned: Owned | None) -> None:
        """Something was settled, or may go to somebody else."""
        self._changed.set()
        if owned is None:
            return
        owned.running = owned.lane.in_flight
        owned.ended()
        self.reading.room()
        lane = owned.lane
        if lane.settled >= self.writing.messages or lane.urgent(self._clock.now()):
            self.writing.look()

    # Handing out

    async def run(self) -> None:
        """Hands out what can go out, and takes back what has timed out, until it is cancelled."""
        while True:
            self._changed.clear()
            owned = self.owned
            if owned is not None:
                self._take_back(owned)
                self._hand_out(owned)
            await self._pause(owned)

    def _take_back(self, owned: Owned) -> None:
        expired = owned.lane.expire(self._clock.now())
        if not expired:
            return
        for consumer in self.consumers.values():
            consumer.gone(expired)
        self.last_error = ("timed out", self._clock.now())
        self._look(owned)

    def _hand_out(self, owned: Owned) -> None:
        if not owned.hands_out or (owned.lane.suspects and owned.lane.in_flight):
            return
        given: defaultdict[str, list[AnyClaim]] = defaultdict(list)
        for claim in owned.lane.next(self._clock.now()):
            given[claim.consumer or ""].append(claim)
        for name, claims in given.items():
            self.consumers[name].take(claims)
        owned.running = owned.lane.in_flight
        if owned.lane.urgent(self._clock.now()):
            self.writing.look()

    async def _pause(self, owned: Owned | None) -> None:
        """Until something may have become possible: told, or by the time."""
        moment = owned.lane.wake_at() if owned is not None else None
        seconds = None if moment is None else max(0.001, self._clock.until(moment))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    # Changing

    def change(self, created: Created, opened: Opened) -> None:
        """Other settings from now on; what is read from here on is read with them."""
        query_changed = created.query(opened.since) != self.created.query(opened.since)
        self.created, self._opened = created, opened
        settings = created.dispatch_settings()
        for owned in self.lanes.values():
            owned.lane.change(settings)
        self.writing.change(settings, created.declaration.checkpoint)
        if query_changed:
            self.reading.change(Pages(self._place.log.feed, created.query(opened.since), lanes=1, by_stream=True))
        self._changed.set()

    def end(self, reason: str) -> None:
        """All consumers end, and are told why."""
        for consumer in list(self.consumers.values()):
            consumer.close(reason)
        self.consumers.clear()


def _by_stream(message: Message[Any]) -> int:
    return bucket_of(message.stream)


def _by_correlation(message: Message[Any]) -> int:
    correlation = message.metadata.get("correlation_id")
    return bucket_of(str(correlation)) if isinstance(correlation, str | int) else bucket_of(message.stream)


_BUCKETS: dict[str, Callable[[Message[Any]], int]] = {
    "pinned": _by_stream,
    "pinned_by_correlation": _by_correlation,
}
