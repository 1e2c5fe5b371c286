"""Runs one subscription in one process: its lanes, what they hand out, and what came of it."""

import asyncio
import logging
import random
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from milepost.dispatch import Breaker, Exchange, Lane, LaneState, Settings
from milepost.engine.calls import AnyDelivery, Calls
from milepost.engine.exactly_once import MESSAGES, Again, ExactlyOnce
from milepost.engine.handler import Undecodable
from milepost.engine.order import Order, Unordered
from milepost.engine.outcomes import Failed, Park, RetryLater, Skip
from milepost.engine.owned import Owned
from milepost.engine.reading import Reading
from milepost.engine.report import Tally
from milepost.engine.slots import Slot
from milepost.engine.subscription import Subscription
from milepost.engine.writing import Writing
from milepost.errors import Unavailable
from milepost.log.message import Message
from milepost.names import bucket_of
from milepost.progress.protocol import Held, RolledBack, Stale

logger = logging.getLogger("milepost.engine")

CLAIMED_AT_ONCE = 64
"""How many deliveries are taken from a lane at a time."""


class Call:
    """Messages of a lane on their way to a handler."""

    __slots__ = ("_runner", "deliveries", "owned")

    def __init__(self, runner: "Runner", owned: Owned, deliveries: list[AnyDelivery]) -> None:
        self._runner = runner
        self.owned = owned
        self.deliveries = deliveries

    @property
    def timeout(self) -> float:
        return self._runner.timeout

    @property
    def alone(self) -> bool:
        return self.deliveries[0].alone

    async def run(self, slot: Slot) -> None:
        await self._runner.perform(self, slot)


class Runner:
    """Between the lanes of a subscription that this process holds and the slots that call its handlers.

    `changed` is called whenever something may have become possible that was not.
    """

    def __init__(
        self,
        subscription: Subscription,
        *,
        lanes: int,
        concurrency: int,
        calls: Calls,
        now: Callable[[], float],
        changed: Callable[[], None],
        failed: Callable[[AnyDelivery, BaseException], bool],
        lost: Callable[[Owned, Exception], None],
    ) -> None:
        declaration = subscription.declaration
        self.name = subscription.name
        self.timeout = declaration.timeout
        self.settings: Settings = declaration.dispatch_settings()
        self.lanes: dict[int, Owned] = {}
        self.tally = Tally()
        self.suspects = False
        self.reading: Reading
        self.writing: Writing
        self.exactly_once: ExactlyOnce | None = None
        self._together = subscription.batch
        self._order: Order = declaration.ordered_by
        self._of = lanes
        self._concurrency = concurrency
        self._calls = calls
        self._now = now
        self._changed = changed
        self._failed = failed
        self._lost = lost
        self._breaker = Breaker(self.settings.stall_after, self.settings.retry.delay)
        self._claimed: deque[tuple[Owned, AnyDelivery]] = deque()
        self._active: dict[int, Owned] = {}
        self._running = 0
        self._without_key: dict[int, str] = {}
        self._lane_of_key = lru_cache(maxsize=100_000)(lambda key: bucket_of(key) % lanes)

    # Lanes

    def add(self, held: Held, state: LaneState[Message[Any]]) -> None:
        """A lane that was taken."""
        lane = Lane(self.settings, state, breaker=self._breaker, random=random.random)
        self.lanes[held.lane] = Owned(held, lane, looks_first=bool(state.running))
        self._lanes_changed()

    def lose(self, owned: Owned, error: Exception) -> None:
        """Somebody else has the lane, or nobody knows what is stored: what runs of it is of no use."""
        logger.warning("%s: lane %d is lost: %s", self.name, owned.number, error or type(error).__name__)
        owned.lost = True
        owned.lane.discard()
        self.lanes.pop(owned.number, None)
        self._lanes_changed()

    async def close(self, owned: Owned, grace: float) -> Exchange[Message[Any]] | None:
        """Ends a lane in good order: nothing more goes out, what runs may end. Returns what is left to write."""
        owned.closing = True
        self._give_back_claimed(owned)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await owned.at_rest()
        owned.lane.close()
        return owned.lane.exchange(self._now())

    def remove(self, owned: Owned) -> None:
        """A lane was released."""
        if self.lanes.get(owned.number) is owned:
            del self.lanes[owned.number]
            self._lanes_changed()

    def _lanes_changed(self) -> None:
        self._active = dict(self.lanes)
        self.reading.reads_for(self.lanes)
        self.writing.writes_for(self.lanes)
        self._changed()

    def _give_back_claimed(self, owned: Owned) -> None:
        mine = [delivery for other, delivery in self._claimed if other is owned]
        self._claimed = deque(each for each in self._claimed if each[0] is not owned)
        owned.lane.give_back(mine)

    # From the log

    def places(self, messages: Sequence[Message[Any]]) -> list[tuple[int, str | None]]:
        """The lane and the key of each message."""
        try:
            keys = self._order.keys(messages)
        except Unordered:
            keys = [self._key_of(message) for message in messages]
        if keys is None:
            return [(self._lane_of_key(message.stream), None) for message in messages]
        return [(self._lane_of_key(key), key) for key in keys]

    def _key_of(self, message: Message[Any]) -> str:
        try:
            key = self._order.key(message)
        except Unordered as error:
            self._without_key[message.position] = error.reason
            key = self._order.stream_key(message)
        return key or ""

    def filled(self, owned: Owned) -> None:
        """A lane has got messages."""
        self._active[owned.number] = owned
        if owned.lane.urgent(self._now()):
            self.writing.look()
        self._changed()

    def exchanged(self, owned: Owned) -> None:
        """A lane's progress is written, and what it asked is known."""
        owned.looks_first = False
        if owned.number in self.lanes:
            self._active[owned.number] = owned
        self._look_for_suspects()
        self.reading.room()
        self._changed()

    # To the handlers

    def take(self) -> Call | None:
        """The next call, if this subscription may have one more."""
        if self._running >= self._concurrency:
            return None
        if self.suspects:
            return self._take_suspect()
        while self._claimed or self._claim():
            owned, deliveries = self._next_claimed()
            deliveries = [delivery for delivery in deliveries if not self._refuse_without_key(owned, delivery)]
            if deliveries:
                return self._call(owned, deliveries)
        return None

    def _call(self, owned: Owned, deliveries: list[AnyDelivery]) -> Call:
        self._running += 1
        owned.running += 1
        owned.exchanging = self.exactly_once is not None
        return Call(self, owned, deliveries)

    def _take_suspect(self) -> Call | None:
        """What ran when a process vanished, and nothing beside it."""
        waiting = [owned for owned in self.lanes.values() if owned.lane.suspects and not owned.closing]
        # One that is promised already is counted in its row: no other may be before it has run.
        for owned in sorted(waiting, key=lambda owned: not owned.lane.in_flight):
            if given := owned.lane.next(self._now(), 1):
                return self._call(owned, given)
            if owned.lane.in_flight:
                break
        self._look_for_suspects()
        self.writing.look()
        if not self.suspects:
            # They were given up or set aside: the others go on.
            self._active = dict(self.lanes)
            self._changed()
        return None

    def _look_for_suspects(self) -> None:
        self.suspects = any(owned.lane.suspects for owned in self.lanes.values())

    def _next_claimed(self) -> tuple[Owned, list[AnyDelivery]]:
        owned, delivery = self._claimed.popleft()
        deliveries = [delivery]
        most = MESSAGES if self.exactly_once and not self._together else self._together or 1
        while len(deliveries) < most and self._claimed and self._claimed[0][0] is owned:
            deliveries.append(self._claimed.popleft()[1])
        return owned, deliveries

    def _claim(self) -> bool:
        """Takes from lanes in turn what may go out now."""
        for number, owned in list(self._active.items()):
            del self._active[number]
            # A lane has one transaction at a time.
            busy = self.exactly_once is not None and owned.exchanging
            given = owned.lane.next(self._now(), self._limit(owned)) if owned.hands_out and not busy else []
            if given:
                self._active[number] = owned
                self._claimed.extend((owned, delivery) for delivery in given)
                return True
            if owned.lane.urgent(self._now()):
                self.writing.look()
        return False

    def _limit(self, owned: Owned) -> int:
        """How many to take at once. What has to be stored as running first is only what can run now."""
        if owned.lane.tracks_starts:
            return max(1, self._concurrency - self._running)
        return self._together or CLAIMED_AT_ONCE

    def _refuse_without_key(self, owned: Owned, delivery: AnyDelivery) -> bool:
        reason = self._without_key.pop(delivery.message.position, None) if self._without_key else None
        if reason is None:
            return False
        owned.lane.park([delivery], self._now(), reason=reason)
        self.tally.parked += 1
        self._settled(owned, at_once=True)
        return True

    async def perform(self, call: Call, slot: Slot) -> None:
        """Calls the handler, and settles what came of it."""
        owned = call.owned
        error: BaseException | None = None
        try:
            if self.exactly_once is not None:
                await self._perform_exactly_once(self.exactly_once, call, slot)
                return
            if self._together:
                await self._calls.several(call.deliveries, slot)
            else:
                await self._calls.one(call.deliveries[0], slot)
        except asyncio.CancelledError:
            owned.lane.give_back(call.deliveries)
            raise
        except Exception as raised:
            error = raised
        finally:
            self._running -= 1
            owned.ended()
        if error is None:
            refused = owned.lane.ack(call.deliveries)
            self.tally.handled += len(call.deliveries) - len(refused)
            self._settled(owned, at_once=False)
        else:
            self._settle(owned, call.deliveries, error)
            self._settled(owned, at_once=True)

    async def _perform_exactly_once(self, exactly_once: ExactlyOnce, call: Call, slot: Slot) -> None:
        owned = call.owned
        try:
            failures = await exactly_once.run(owned, call.deliveries, slot)
        except Again as again:
            logger.info("%s: a transaction runs again: %s", self.name, again)
            owned.lane.give_back(call.deliveries)
        except (Stale, RolledBack, Unavailable) as error:
            self._lost(owned, error)
        else:
            self.tally.handled += len(call.deliveries) - len(failures)
            for delivery, failure in failures.items():
                self._settle_one(owned, delivery, failure)
        finally:
            owned.exchange_ended()
        self.exchanged(owned)
        self._settled(owned, at_once=True)

    def _settled(self, owned: Owned, *, at_once: bool) -> None:
        if self.suspects:
            self._look_for_suspects()
        if owned.lost or owned.closing:
            return
        lane = owned.lane
        self._active[owned.number] = owned
        self.reading.room()
        much = lane.settled == 1 or lane.settled >= self.writing.messages
        if at_once or much or (lane.has_rows and lane.urgent(self._now())):
            self.writing.look()

    def _settle(self, owned: Owned, deliveries: list[AnyDelivery], error: BaseException) -> None:
        if isinstance(error, Failed):
            for delivery in deliveries:
                self._settle_one(owned, delivery, error.errors.get(delivery.message.position))
        elif isinstance(error, Undecodable) and len(deliveries) > 1:
            bad = [delivery for delivery in deliveries if delivery.message is error.message]
            owned.lane.give_back([delivery for delivery in deliveries if delivery.message is not error.message])
            self._settle_one(owned, bad[0], error)
        else:
            for delivery in deliveries:
                self._settle_one(owned, delivery, error)

    def _settle_one(self, owned: Owned, delivery: AnyDelivery, error: BaseException | None) -> None:
        lane, now, one = owned.lane, self._now(), [delivery]
        match error:
            case None:
                self.tally.handled += not lane.ack(one)
            case Skip():
                self.tally.skipped += not lane.skip(one)
            case Park() | Undecodable():
                self.tally.parked += not lane.park(one, now, reason=error.reason)
            case RetryLater():
                lane.retry(one, now, after=error.seconds, count=error.count, reason=error.reason)
            case _:
                self._fail(owned, delivery, error)

    def _fail(self, owned: Owned, delivery: AnyDelivery, error: BaseException) -> None:
        self.tally.failed += 1
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        trace = "".join(traceback.format_exception(error))
        logger.warning("%s: position %d failed: %s", self.name, delivery.message.position, reason)
        if self._failed(delivery, error):
            self.tally.parked += 1
            owned.lane.park([delivery], self._now(), reason=reason, error=trace)
        else:
            owned.lane.retry([delivery], self._now(), reason=reason, error=trace, cause=type(error))

    # Idle

    def is_idle(self, head: int) -> bool:
        """Whether all up to a position is handled, or cannot be handled now."""
        now = self._now()
        if self._running or self._claimed or len(self.lanes) < self._of:
            return False
        return all(owned.is_idle(head, now) for owned in self.lanes.values())
