"""Run one subscription in one process: its lanes, what they hand out, and what came of it."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from milepost.concurrency import DaemonThreads
from milepost.dispatch import Breaker, Cursor, Exchange, Lane, LaneState, LimitReached, Settings
from milepost.engine.declare.handler import AnyDelivery
from milepost.engine.declare.order import ByFunction, NoKey, Order, lanes_and_keys
from milepost.engine.declare.outcomes import ENDS_PROGRAM, EndsProgram
from milepost.engine.declare.subscription import Subscription
from milepost.engine.handlers.exactly_once import ExactlyOnce, Failures
from milepost.engine.handlers.handler_loop import HandlerLoop
from milepost.engine.handlers.invoker import Abandoned, HandlerCancelled, HandlerInvoker, TakenBack
from milepost.engine.handlers.settler import CallSettler, RunTally
from milepost.engine.handlers.slots import HandlerWork, Slot
from milepost.engine.lanes.checkpoint_writer import CheckpointWriter
from milepost.engine.lanes.held_lane import HeldLane, StoppedLanes
from milepost.engine.lanes.reader import LaneReader
from milepost.engine.observe.emitter import EventEmitter
from milepost.engine.observe.lag import positions_not_passed
from milepost.engine.tracebacks import reason_of
from milepost.errors import MilepostError, Unavailable
from milepost.log.message import Message
from milepost.progress.postgres.transaction import RunAgain
from milepost.progress.protocol import LaneGrant

MAX_CLAIMED_DELIVERIES = 256
"""How many deliveries are taken from a lane at a time."""


class BatchCall:
    """Messages of a lane on their way to a handler together: a batch, or a transaction."""

    __slots__ = ("_runner", "deliveries", "owned")

    def __init__(self, runner: "Runner", owned: HeldLane, deliveries: list[AnyDelivery]) -> None:
        self._runner = runner
        self.owned = owned
        self.deliveries = deliveries

    @property
    def alone(self) -> bool:
        return self.deliveries[0].alone

    async def run(self, slot: Slot) -> None:
        await self._runner.perform(self, slot)


class Runner:
    """Between the lanes of a subscription that this process holds and the slots that call its handlers.

    `on_change` is called whenever something may have become possible that was not.
    """

    def __init__(
        self,
        subscription: Subscription,
        *,
        order: Order,
        lanes: int,
        concurrency: int,
        invoker: HandlerInvoker,
        threads: DaemonThreads,
        now: Callable[[], float],
        on_change: Callable[[], None],
        on_failure: Callable[[AnyDelivery, BaseException], bool],
        on_lost: Callable[[HeldLane, Exception], None],
        on_report_due: Callable[[], None],
    ) -> None:
        declaration = subscription.declaration
        self.name = subscription.name
        self.timeout = declaration.timeout
        self.settings: Settings = declaration.dispatch_settings(order)
        self.lanes: dict[int, HeldLane] = {}
        self.yields = False
        """Whether others have its lanes by right: a newer version of the program runs."""
        self.suspects = False
        self.lane_reader: LaneReader
        self.checkpoint_writer: CheckpointWriter
        self.exactly_once: ExactlyOnce | None = None
        self._together = subscription.batch
        self._several_handlers = subscription.batch is not None and len(subscription.handlers) > 1
        self.order = order
        self._of = lanes
        self.concurrency = concurrency
        """How many messages are handled at once."""
        self.invoker = invoker
        self._now = now
        self.on_change = on_change
        self._on_lost = on_lost
        self._breaker = Breaker(self.settings.stall_after, self.settings.retry.delay)
        self.claimed: deque[tuple[HeldLane, AnyDelivery]] = deque()
        """What may be handed out, taken from lanes in bulk."""
        self.may_lack_keys = isinstance(order, ByFunction)
        """Whether there may be messages for which a function gives no key: they are parked under their stream."""
        self.logger = subscription.logger
        """What is logged of it."""
        self.settler = CallSettler(self.logger, now=now, on_settled=self._on_settled, on_failure=on_failure)
        self._stopped_lanes = StoppedLanes(self.logger, self.lanes, on_report_due)
        self._handler_loop = HandlerLoop(self, self.settler, invoker, threads)
        self._stalled: str | None = None
        self._active: dict[int, HeldLane] = {}
        self._running = 0
        self.busy: set[Slot] = set()
        """Slots that call its handlers."""
        self._is_bounded = False
        self._ends = False
        """Whether a handler has ended the program."""
        invoker.is_replay = self._is_replay

    # Lanes

    def add(self, held: LaneGrant, state: LaneState[Message[Any]]) -> None:
        """A lane that was taken."""
        lane = Lane(self.settings, state, breaker=self._breaker, random=random.random)
        owned = self.lanes[held.lane] = HeldLane(held, lane, self.order, must_load_rows=bool(state.running))
        self._lanes_changed()
        if state.unclean:
            self.logger.info("lane %d is taken over: its owner gave no sign of life", held.lane, lane=held.lane)
        if self.settler.emitter is not None:
            self.settler.emitter.taken(held, vanished=state.unclean)
        self.settler.blamed(owned)

    def lose(self, owned: HeldLane, error: Exception) -> None:
        """Somebody else has the lane, or nobody knows what is stored: what runs of it is of no use."""
        why = str(error) or type(error).__name__
        # An outage is told once, and not for each lane.
        tell = self.logger.debug if self.yields or isinstance(error, Unavailable) else self.logger.warning
        tell("lane %d is lost: %s", owned.number, why, lane=owned.number)
        owned.lost = True
        self._give_back_claimed(owned)
        owned.lane.discard()
        self.lanes.pop(owned.number, None)
        self._lanes_changed()
        if self.settler.emitter is not None:
            self.settler.emitter.lost(owned.number, error)

    async def close(self, owned: HeldLane) -> bool:
        """Nothing more of a lane goes out, and what runs ends; False if it was reopened instead."""
        owned.closing = True
        self._give_back_claimed(owned)
        return await owned.closed()

    def reopen(self, owned: HeldLane) -> None:
        """A lane that was being closed goes on."""
        owned.reopen()
        self._lanes_changed()

    def take_back(self) -> None:
        """Nothing that runs is waited for: it goes to others, and what comes of it counts for nothing."""
        self._give_back_all_claimed()
        for owned in self.lanes.values():
            for delivery in owned.take_back():
                self.logger.taken_back(delivery.message, delivery.attempt)
        for slot in self.busy:
            slot.take_back()

    def finish(self, owned: HeldLane) -> Exchange[Message[Any]] | None:
        """Ends a lane that is closed in good order; what is left to write."""
        owned.lane.close()
        return owned.lane.exchange(self._now())

    def remove(self, owned: HeldLane) -> None:
        """A lane was released."""
        if self.lanes.get(owned.number) is owned:
            del self.lanes[owned.number]
            self._lanes_changed()

    def _lanes_changed(self) -> None:
        self._active = dict(self.lanes)
        self.lane_reader.reads_for(self.lanes)
        self.checkpoint_writer.writes_for(self.lanes)
        self._stopped_lanes.update()
        self.on_change()

    def _give_back_claimed(self, owned: HeldLane) -> None:
        mine = [delivery for other, delivery in self.claimed if other is owned]
        others = [each for each in self.claimed if each[0] is not owned]
        # The same deque: slots are working it off.
        self.claimed.clear()
        self.claimed.extend(others)
        owned.lane.give_back(mine)

    def _give_back_all_claimed(self) -> None:
        """Nothing goes out beside what has to run alone."""
        while self.claimed:
            self._give_back_claimed(self.claimed[0][0])

    def poke(self) -> None:
        """A person may have changed rows."""
        for owned in self.lanes.values():
            owned.lane.poke()
        self.checkpoint_writer.wake()

    def stops_at(self, position: int | None) -> None:
        """Nothing beyond this position is handled, for now; what was is written at once."""
        self.lane_reader.stops_at(position)
        self._is_bounded = self.checkpoint_writer.hurries = position is not None
        self.checkpoint_writer.wake()

    @property
    def emitter(self) -> EventEmitter | None:
        """Who is told of events, if anybody listens."""
        return self.settler.emitter

    @property
    def stopped(self) -> Mapping[int, LimitReached]:
        """The lanes that read no further, and why."""
        return self._stopped_lanes.limits

    def report(self) -> RunTally:
        """What the run came to."""
        tally = self.settler.tally
        tally.stopped = next(map(str, self.stopped.values()), None)
        return tally

    @property
    def in_flight(self) -> int:
        """How many messages are with handlers."""
        return max(0, sum(owned.lane.in_flight for owned in self.lanes.values()) - len(self.claimed))

    def flights(self) -> dict[int, float | None]:
        """The positions of these, and by `time.monotonic` since when, if that is known."""
        if not self.in_flight:
            return {}
        found: dict[int, float | None] = {}
        for owned in self.lanes.values():
            found |= owned.lane.handed_out()
            for delivery in owned.done:
                found.pop(delivery.message.position, None)
        for _, delivery in self.claimed:
            found.pop(delivery.message.position, None)
        return found

    # From the log

    def places(self, messages: Sequence[Message[Any]]) -> tuple[list[int], list[str] | None]:
        """The lane and, with an order, the key of each message."""
        return lanes_and_keys(messages, self.order, self._of)

    def _is_replay(self, message: Message[Any]) -> bool:
        [lane], _ = self.places([message])
        return lane in self.lanes and message in self.lanes[lane].repeats

    def _why_without_key(self, message: Message[Any]) -> str | None:
        try:
            self.order.key(message)
        except NoKey as error:
            return error.reason
        return None

    def filled(self, owned: HeldLane) -> None:
        """A lane has got messages."""
        self._active[owned.number] = owned
        self._stopped_lanes.filled(owned)
        if owned.lane.urgent(self._now()):
            self.checkpoint_writer.wake()
        self.on_change()

    def lose_outlived(self, owned: HeldLane) -> None:
        """The server has another life than the one in which a lane was taken."""
        self._on_lost(owned, Unavailable("PostgreSQL was restarted"))

    def exchanged(self, owned: HeldLane) -> None:
        """A lane's progress is written, and what it asked is known."""
        owned.must_load_rows = False
        if owned.number in self.lanes:
            self._active[owned.number] = owned
        self._update_suspects()
        self._stopped_lanes.exchanged(owned)
        self.lane_reader.room()
        self.on_change()
        self._follow_breaker()

    def retry_after_pause(self) -> None:
        """The time has come for something: a row is due, or the breaker lets one be tried."""
        if self._breaker.stalled:
            self._active = dict(self.lanes)
            self.on_change()

    def _follow_breaker(self) -> None:
        """When it lets all go on, lanes that had to wait for it do."""
        stalled, self._stalled = self._stalled, self._breaker.stalled
        if self._stalled and not stalled:
            self.logger.error("stalled: %s", self._stalled)
        if stalled and not self._stalled:
            self.logger.warning("goes on: a message succeeded again")
            self._active = dict(self.lanes)
            self.on_change()
        if self.settler.emitter is not None:
            self.settler.emitter.breaker(self._stalled)

    # To the handlers

    def take(self) -> HandlerWork | None:
        """The next call, if this subscription may have one more."""
        if self._running >= self.concurrency or self._ends:
            return None
        if not (self._active or self.claimed or self.suspects):
            # Asked each time that anything happens in the process, and mostly of something else.
            return None
        if self.suspects:
            return self._take_suspect()
        if self._together is None and self.exactly_once is None:
            return self._take_turn()
        return self._take_together()

    def _take_together(self) -> HandlerWork | None:
        """Messages of a lane for one call, all for the same handler."""
        while (taken := self._next_of_lanes()) is not None:
            owned, given = taken
            if self.may_lack_keys:
                given = [delivery for delivery in given if not self.refuse_without_key(owned, delivery)]
            if self._several_handlers and given:
                given = self._of_one_handler(owned, given)
            if owned.repeats and given:
                given = self._of_one_time(owned, given)
            if given:
                return self._call(owned, given)
        return None

    def _of_one_handler(self, owned: HeldLane, deliveries: list[AnyDelivery]) -> list[AnyDelivery]:
        """Those for the handler of the first; the others are for another call."""
        handler_of = self.invoker.handler_of
        handler = handler_of(deliveries[0].message.type)
        mine = [each for each in deliveries if handler_of(each.message.type) is handler]
        if len(mine) < len(deliveries):
            owned.lane.give_back([each for each in deliveries if handler_of(each.message.type) is not handler])
        return mine

    def _of_one_time(self, owned: HeldLane, deliveries: list[AnyDelivery]) -> list[AnyDelivery]:
        """Those that are repeated, or those that are not, as the first is; the others are for another call."""
        first = deliveries[0].message in owned.repeats
        mine = [each for each in deliveries if (each.message in owned.repeats) is first]
        owned.lane.give_back([each for each in deliveries if (each.message in owned.repeats) is not first])
        return mine

    def _take_turn(self) -> HandlerWork | None:
        if not self.claimed and not self.claim():
            return None
        self._running += 1
        return self._handler_loop

    def turn_ended(self) -> None:
        """A slot has ended its turn."""
        self._running -= 1

    def _call(self, owned: HeldLane, deliveries: list[AnyDelivery]) -> BatchCall:
        self._running += 1
        owned.running += 1
        if self.exactly_once is not None:
            owned.exchanging = True
        return BatchCall(self, owned, deliveries)

    def _take_suspect(self) -> BatchCall | None:
        """What ran when a process vanished, and nothing beside it."""
        self._give_back_all_claimed()
        waiting = [owned for owned in self.lanes.values() if owned.lane.suspects and not self._is_busy(owned)]
        # The row of one that is promised already says that it runs: no other's may before it has run.
        for owned in sorted(waiting, key=lambda owned: not owned.lane.in_flight):
            if given := owned.lane.next(self._now(), 1):
                return self._call(owned, given)
            if owned.lane.in_flight:
                break
        self._update_suspects()
        self.checkpoint_writer.wake()
        if not self.suspects:
            # They were set aside: the others go on.
            self._active = dict(self.lanes)
            self.on_change()
        return None

    def _update_suspects(self) -> None:
        self.suspects = any(owned.lane.suspects for owned in self.lanes.values())

    def claim(self) -> bool:
        """Takes from a lane what may go out now, for calls of one message."""
        taken = self._next_of_lanes()
        if taken is None:
            return False
        owned, given = taken
        self.claimed.extend([(owned, delivery) for delivery in given])
        return True

    def _next_of_lanes(self) -> tuple[HeldLane, list[AnyDelivery]] | None:
        """What may go out now of the next lane that has something."""
        self.settler.settle()
        while self._active and not self._ends:
            number, owned = next(iter(self._active.items()))
            del self._active[number]
            hands_out = owned.hands_out and not self._is_busy(owned)
            given = owned.lane.next(self._now(), self._limit(owned)) if hands_out else []
            if given:
                self._active[number] = owned
                return owned, given
            if owned.lane.urgent(self._now()):
                self.checkpoint_writer.wake()
            self.lane_reader.room()
        return None

    def _is_busy(self, owned: HeldLane) -> bool:
        """Whether a lane is being closed, or has a transaction under way: it has one at a time."""
        return owned.closing or (self.exactly_once is not None and owned.exchanging)

    def _limit(self, owned: HeldLane) -> int:
        """How many to take at once. What has to be stored as running first is only what can run now."""
        if owned.lane.tracks_starts:
            return max(1, self.concurrency - self._running)
        if self.exactly_once is not None:
            return self.exactly_once.together
        return MAX_CLAIMED_DELIVERIES if self._together is None else self._together

    def refuse_without_key(self, owned: HeldLane, delivery: AnyDelivery) -> bool:
        """Parks a message for which the function to order by gave no key; whether it did."""
        # Asked again: it may have been read by another process, or long ago.
        reason = self._why_without_key(delivery.message)
        if reason is None:
            return False
        owned.lane.park([delivery], self._now(), reason=reason)
        self.settler.tally.parked += 1
        self._on_settled(owned, at_once=True)
        self.logger.parked(delivery.message, delivery.attempt, reason)
        if self.settler.emitter is not None:
            self.settler.emitter.without_key(delivery, reason)
        return True

    async def perform(self, call: BatchCall, slot: Slot) -> None:
        """Calls the handler, and settles what came of it."""
        owned = call.owned
        error: BaseException | None = None
        ending: BaseException | None = None
        begun = monotonic()
        self.busy.add(slot)
        for delivery in call.deliveries:
            delivery.begun = begun
        try:
            if self.exactly_once is not None:
                await self._perform_exactly_once(self.exactly_once, call, slot)
                return
            if self._together:
                await self.invoker.several(call.deliveries, slot)
            else:
                await self.invoker.one(call.deliveries[0], slot)
        except (EndsProgram, GeneratorExit):
            raise
        except TakenBack:
            return
        except Abandoned as abandoned:
            self.settler.failed(owned, call.deliveries, abandoned.timed_out)
            raise
        except asyncio.CancelledError:
            owned.lane.give_back(call.deliveries)
            raise
        except ENDS_PROGRAM as raised:
            ending = raised
        except BaseException as raised:
            error = raised
        finally:
            self.settler.handling_seconds += monotonic() - begun
            self.busy.discard(slot)
            self._running -= 1
            owned.running -= 1
            owned.ended()
        if ending is not None:
            raise self.ends_program(owned, call.deliveries, ending, monotonic() - begun) from None
        if error is None:
            self.settler.all_done(owned, call.deliveries, monotonic() - begun)
        else:
            self.settler.failed(owned, call.deliveries, error, monotonic() - begun)

    async def _perform_exactly_once(self, exactly_once: ExactlyOnce, call: BatchCall, slot: Slot) -> None:
        owned = call.owned
        begun = monotonic()
        failures: Failures = {}
        try:
            failures = await exactly_once.run(owned, call.deliveries, slot)
        except RunAgain as again:
            self.logger.info("a transaction runs again: %s", again, lane=owned.number)
            owned.lane.give_back(call.deliveries)
        except KeyboardInterrupt as error:
            self._on_lost(owned, MilepostError("the program is interrupted"))
            raise self._program_ends(error) from None
        except asyncio.CancelledError as error:
            if slot.is_taken_back():
                self._on_lost(owned, TakenBack())
            elif slot.is_ending():
                raise
            else:
                self._on_lost(owned, HandlerCancelled(error))
        except Exception as error:
            # Whatever it is, nobody knows whether it was committed: the lane is read again.
            self._on_lost(owned, error)
        else:
            for delivery, failure in failures.items():
                self.settler.settle_one(owned, delivery, failure, monotonic() - begun, len(call.deliveries))
        finally:
            owned.exchange_ended()
        self.exchanged(owned)
        self._on_settled(owned, at_once=bool(failures))
        for failure in failures.values():
            if isinstance(failure, SystemExit):
                raise self._program_ends(failure) from None

    def ends_program(
        self, owned: HeldLane, deliveries: list[AnyDelivery], error: BaseException, seconds: float
    ) -> EndsProgram:
        """Settle messages whose handler raised what ends the program; return what is to be raised.

        `SystemExit` is a failed attempt: else a message that brings it each time would end one process after the
        other, for ever. `KeyboardInterrupt` is not: it came from outside.
        """
        if isinstance(error, SystemExit):
            self.settler.failed(owned, deliveries, error, seconds)
        else:
            owned.lane.give_back(deliveries)
            owned.ended()
        return self._program_ends(error)

    def _program_ends(self, error: BaseException) -> EndsProgram:
        """Hand out nothing more."""
        self.logger.error("a handler raised %s: the program ends", reason_of(error))
        self._ends = True
        self._give_back_all_claimed()
        return EndsProgram(error)

    def _on_settled(self, owned: HeldLane, *, at_once: bool) -> None:
        if self.suspects:
            self._update_suspects()
        if owned.lost or owned.closing:
            return
        lane = owned.lane
        self._active[owned.number] = owned
        self.lane_reader.room()
        self.on_change()
        self._follow_breaker()
        much = self.checkpoint_writer.hurries or lane.settled >= self.checkpoint_writer.messages
        if at_once or much or (lane.has_rows and lane.urgent(self._now())):
            self.checkpoint_writer.wake()

    # Idle

    def is_idle(self, head: int, elsewhere: Mapping[int, Cursor] | None) -> bool:
        """Whether all up to a position is handled, or cannot be handled now. Asked by who waits for it.

        `elsewhere` has the cursors of all lanes as they are stored, if they are known: what others hold is theirs.
        """
        now = self._now()
        if self._running or self.claimed or not self._is_idle_elsewhere(head, elsewhere):
            self.checkpoint_writer.hurries = self._is_bounded
            return False
        if all(owned.is_idle(head, now) for owned in self.lanes.values()):
            return True
        if all(owned.lane.reach >= head for owned in self.lanes.values()):
            # What is left may be waiting to be written.
            self.checkpoint_writer.hurries = True
            self.checkpoint_writer.wake()
        return False

    @property
    def has_all_lanes(self) -> bool:
        """Whether this process holds every lane."""
        return len(self.lanes) == self._of

    def _is_idle_elsewhere(self, head: int, cursors: Mapping[int, Cursor] | None) -> bool:
        if self.has_all_lanes:
            return True
        if cursors is None:
            return False
        return not positions_not_passed(
            [cursor for lane, cursor in cursors.items() if lane not in self.lanes], head
        )
