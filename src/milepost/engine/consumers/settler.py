"""Settle what consumers have: tell the lane, count, log and emit events."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

from milepost.dispatch.retry import one_line
from milepost.engine.clock import Clock
from milepost.engine.declare.handler import AnyDelivery
from milepost.engine.lanes.held_lane import HeldLane
from milepost.engine.observe.statistics import DeliveryCounters, DeliveryOutcome
from milepost.engine.subscription_logger import SubscriptionLogger
from milepost.progress.rows import storable_text

if TYPE_CHECKING:
    from milepost.engine.consumers.consumer import Consumer
    from milepost.engine.consumers.dispatcher import ConsumerDispatcher

TIMED_OUT_REASON = "timed out"
TAKEN_BACK_REASON = "it waited too long, or behind others that timed out"
MAX_REPORTED_REASON_CHARACTERS = 500
"""Characters of a reason that statistics tell."""


class ConsumerSettler:
    """Tells the lane what became of deliveries, counts them, and writes down what failed."""

    def __init__(self, dispatcher: "ConsumerDispatcher", clock: Clock, logger: SubscriptionLogger) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._logger = logger
        self.numbers = DeliveryCounters()
        """Of all consumers together."""
        self.last_error: tuple[str, float] | None = None
        """Why the last attempt failed that did, and when."""
        self._acking: list[Consumer] = []
        """Consumers that have something done in this step of the loop."""

    @property
    def handled(self) -> int:
        """How many messages are done."""
        return self.numbers.done

    @property
    def attempts(self) -> int:
        """How many attempts at messages have ended."""
        return self.numbers.settled_count

    @property
    def handling_seconds(self) -> float:
        """How long consumers had these, together."""
        return self.numbers.seconds

    # Done

    def ack_soon(self, consumer: "Consumer") -> None:
        """A consumer has something done: the lane is told at the end of this step of the loop."""
        if not self._acking:
            asyncio.get_running_loop().call_soon(self.flush)
        self._acking.append(consumer)

    def flush(self) -> None:
        """Tells the lane now what is done."""
        if not self._acking:
            return
        acking, self._acking = self._acking, []
        for consumer in acking:
            claims, latencies = consumer.pop_acked()
            self._ack(consumer, claims, latencies)
        self._dispatcher.wake()

    def _ack(self, consumer: "Consumer", claims: Sequence[AnyDelivery], latencies: Sequence[float]) -> None:
        if (owned := self._dispatcher.owned) is not None:
            owned.lane.ack(claims)
            if self._dispatcher.emitter is not None:
                self._dispatcher.emitter.handled_each(claims, latencies)
        self._count(consumer, "ack", latencies)
        consumer.has_settled(len(claims))

    # Anything else

    def settle(
        self,
        consumer: "Consumer",
        how: DeliveryOutcome,
        claims: Sequence[AnyDelivery],
        latencies: Sequence[float],
        *,
        raised: Exception | None = None,
        **words: Any,
    ) -> None:
        """Settles deliveries that are in force, in one way."""
        owned = self._dispatcher.owned
        if owned is None:
            return
        lane, now = owned.lane, self._clock.now()
        match how:
            case "ack":
                self._ack(consumer, claims, latencies)
                self._dispatcher.wake()
                return
            case "skip":
                lane.skip(claims)
            case "park":
                lane.park(claims, now, **words)
            case _:
                lane.retry(claims, now, **words)
        self._count(consumer, how, latencies)
        consumer.has_settled(len(claims))
        reason = one_line(words.get("reason", ""))
        self._write_down(claims, reason, raised, is_skipped=how == "skip")
        if how != "skip":
            self.failed(claims, reason or how)
        self._dispatcher.wake()

    def timed_out(self, consumer: "Consumer", overdue: Sequence[AnyDelivery]) -> None:
        """A consumer took too long for these: each is an attempt, but for what it has not begun, or hardly."""
        owned = self._dispatcher.owned
        if owned is None:
            return
        back = self._taken_back(consumer, owned, overdue)
        owned.lane.give_back(back)
        consumer.notify_lost(back, TAKEN_BACK_REASON)
        claims = [claim for claim in overdue if claim.is_in_force]
        if not claims:
            return
        owned.lane.retry(claims, self._clock.now(), reason=TIMED_OUT_REASON)
        self._write_down(claims, TIMED_OUT_REASON, TimeoutError(TIMED_OUT_REASON))
        self.failed(claims, TIMED_OUT_REASON)
        self._count(consumer, "timeout", [self._dispatcher.options.declaration.timeout] * len(claims))
        consumer.notify_lost(claims, TIMED_OUT_REASON)

    def _taken_back(self, consumer: "Consumer", owned: HeldLane, late: Sequence[AnyDelivery]) -> list[AnyDelivery]:
        """What goes to others, of a consumer that was late with these."""
        held = owned.lane.held_by(consumer.name)
        usual = self._clock.now() + self._dispatcher.options.declaration.timeout
        # What it has asked much more time for stays.
        short = [claim for claim in held if claim.deadline is None or claim.deadline <= usual]
        was_limited = consumer.is_limited
        beyond = consumer.late(late, short, apart=len(held) - len(short))
        if beyond and not was_limited:
            self._logger.warning(
                "%s was late: %s of what it has go to others%s",
                consumer.name,
                f"{len(beyond):,}",
                ", and it gets fewer until it keeps up" if consumer.is_limited else "",
            )
        return beyond

    def lost(self, consumer: "Consumer", reason: str) -> None:
        """A consumer has vanished: what it had taken counts as an attempt, and what it had not goes to others."""
        owned = self._dispatcher.owned
        if owned is None:
            return
        owned.lane.give_back(consumer.pop_unseen())
        # What is promised, and not out yet, goes to others as well.
        claims = [claim for claim in owned.lane.held_by(consumer.name) if claim.begun is not None]
        owned.lane.lose(consumer.name, self._clock.now(), reason)
        self._write_down(claims, reason, ConnectionError(reason))
        if claims:
            self.failed(claims, reason)

    def blamed(self, owned: HeldLane) -> None:
        """Writes down what ended the process of an owner before this one."""
        now = self._clock.now()
        for entry in owned.lane.blamed:
            if entry.fate is not None:
                self._logger.blamed(entry.message, entry.fate, now)
                if self._dispatcher.emitter is not None:
                    self._dispatcher.emitter.blamed(entry.message, entry.fate)
                self.failed([], entry.fate.reason)
        owned.lane.blamed.clear()

    # Keeping account

    def _count(self, consumer: "Consumer", how: DeliveryOutcome, latencies: Sequence[float]) -> None:
        consumer.numbers.settled(how, latencies)
        self.numbers.settled(how, latencies)
        consumer.wake()

    def _write_down(
        self,
        claims: Collection[AnyDelivery],
        reason: str,
        error: Exception | None,
        *,
        is_skipped: bool = False,
    ) -> None:
        now = self._clock.now()
        for claim in claims:
            self._logger.settled(claim.message, claim.attempt, reason, claim.entry.fate, now, error)
        if (emitter := self._dispatcher.emitter) is None:
            return
        for claim in claims:
            if is_skipped:
                emitter.skipped(claim, reason)
                continue
            if error is not None:
                emitter.failed(claim, error, monotonic() - claim.begun if claim.begun is not None else 0.0)
            emitter.put_aside(claim)

    def failed(self, claims: Collection[AnyDelivery], reason: str) -> None:
        """Attempts failed."""
        now, reason = self._clock.now(), storable_text(reason)[:MAX_REPORTED_REASON_CHARACTERS]
        self.last_error = (reason, now)
        of_consumers = [self._dispatcher.consumers.get(claim.consumer or "") for claim in claims]
        for numbers in (self.numbers, *(consumer.numbers for consumer in of_consumers if consumer is not None)):
            numbers.error, numbers.error_at = reason, datetime.fromtimestamp(now, UTC)
