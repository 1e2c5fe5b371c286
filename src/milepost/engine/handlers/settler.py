"""Settle the messages of calls by what the handler raised; count, log and emit that."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from milepost.dispatch import State
from milepost.engine.declare.context import CannotAppend
from milepost.engine.declare.handler import AnyDelivery, Undecodable, is_unreadable
from milepost.engine.declare.outcomes import (
    VERSION_RETRY_SECONDS,
    VERSION_WAIT_SECONDS,
    Failed,
    Park,
    RetryLater,
    Skip,
)
from milepost.engine.lanes.held_lane import HeldLane
from milepost.engine.observe.emitter import EventEmitter
from milepost.engine.subscription_logger import SubscriptionLogger
from milepost.engine.tracebacks import reason_of, traceback_of
from milepost.log.codec import NewerVersion


@dataclass
class RunTally:
    """How many messages of a subscription ended how."""

    handled: int = 0
    skipped: int = 0
    failed: int = 0
    """Attempts that failed."""
    parked: int = 0
    stopped: str | None = None
    """Why lanes of it read no further, if they do: `max_waiting` is reached, and behind which key."""


class OnSettled(Protocol):
    """Told that messages of a lane are settled, and whether that is to be written at once."""

    def __call__(self, owned: HeldLane, *, at_once: bool) -> None: ...


class CallSettler:
    """Settles the messages of a subscription.

    `on_failure` is told of each failed attempt, and says whether the message is to be parked at once.
    """

    def __init__(
        self,
        logger: SubscriptionLogger,
        *,
        now: Callable[[], float],
        on_settled: OnSettled,
        on_failure: Callable[[AnyDelivery, BaseException], bool],
    ) -> None:
        self._logger = logger
        self._now = now
        self._on_settled = on_settled
        self._on_failure = on_failure
        self.tally = RunTally()
        self.attempts = 0
        """How many attempts at messages have ended."""
        self.handling_seconds = 0.0
        """How long calls took, together; a batch's time counts once."""
        self.last_error: tuple[str, float] | None = None
        """Why the last attempt failed that did, and when."""
        self.emitter: EventEmitter | None = None
        """Who is told of events, if anybody listens."""
        self._handled: list[HeldLane] = []
        """Lanes of which messages were handled in this step of the loop."""
        self._settles = False
        """Whether that is going to be settled at its end."""

    def continue_from(self, before: "CallSettler") -> None:
        """Go on with what another one of this subscription counted and with its emitter."""
        self.tally, self.emitter = before.tally, before.emitter
        self.attempts, self.handling_seconds = before.attempts, before.handling_seconds
        self.last_error = before.last_error

    @property
    def handled(self) -> int:
        """How many messages were handled."""
        return self.tally.handled

    def done(self, owned: HeldLane, delivery: AnyDelivery) -> None:
        """A message was handled."""
        if not owned.done:
            self.settle_at_step_end(owned)
        owned.done.append(delivery)

    def all_done(self, owned: HeldLane, deliveries: Sequence[AnyDelivery], seconds: float) -> None:
        """Messages of a call were handled, which took so long."""
        if not owned.done:
            self.settle_at_step_end(owned)
        owned.done.extend(deliveries)
        if self.emitter is not None:
            self.emitter.handled_together(deliveries, seconds)

    def committed(self, deliveries: Sequence[AnyDelivery], seconds: float) -> None:
        """Messages were handled, and are settled by their own transaction."""
        self.tally.handled += len(deliveries)
        self.attempts += len(deliveries)
        if self.emitter is not None:
            self.emitter.handled_together(deliveries, seconds)

    def settle_at_step_end(self, owned: HeldLane) -> None:
        """Messages of a lane are settled together, at the end of this step of the loop."""
        if not self._settles:
            self._settles = True
            asyncio.get_running_loop().call_soon(self._settle_at_the_end)
        self._handled.append(owned)

    def _settle_at_the_end(self) -> None:
        self._settles = False
        self.settle()

    def settle(self) -> None:
        """Settles what was handled since the last time."""
        if not self._handled:
            return
        lanes, self._handled = self._handled, []
        if self.emitter is not None:
            self.emitter.emit_noted()
        for owned in lanes:
            deliveries, owned.done = owned.done, []
            is_first = owned.lane.settled == 0
            refused = owned.lane.ack(deliveries)
            self.tally.handled += len(deliveries) - len(refused)
            self.attempts += len(deliveries)
            owned.ended()
            self._on_settled(owned, at_once=is_first)

    def failed(
        self, owned: HeldLane, deliveries: list[AnyDelivery], error: BaseException, seconds: float = 0.0
    ) -> None:
        """Messages could not be handled, or were not wanted; the call took so long."""
        together = len(deliveries)
        if isinstance(error, Failed) and _names_any_of(error, deliveries):
            for delivery in deliveries:
                self.settle_one(owned, delivery, error.errors.get(delivery.message.position), seconds, together)
        elif together > 1 and (bad := [each for each in deliveries if is_unreadable(error, each.message)]):
            owned.lane.give_back([delivery for delivery in deliveries if delivery not in bad])
            self.settle_one(owned, bad[0], error, seconds, together)
        else:
            for delivery in deliveries:
                self.settle_one(owned, delivery, error, seconds, together)
        owned.ended()
        self._on_settled(owned, at_once=True)

    def settle_one(
        self, owned: HeldLane, delivery: AnyDelivery, error: BaseException | None, seconds: float, together: int
    ) -> None:
        """Settles a message by what its handler raised; None: it is done. The call took so long for so many."""
        lane, now, one = owned.lane, self._now(), [delivery]
        self.attempts += 1
        match error:
            case None:
                self.tally.handled += not lane.ack(one)
            case Skip():
                self.tally.skipped += not lane.skip(one)
            case Undecodable():
                trace = traceback_of(error.__cause__ or error)
                self.tally.parked += not lane.park(one, now, reason=error.reason, error=trace)
            case NewerVersion() if error.is_of(delivery.message):
                after, within = VERSION_RETRY_SECONDS, VERSION_WAIT_SECONDS
                refused = lane.retry(one, now, after=after, count=False, within=within, reason=str(error))
                self.tally.parked += not refused and _is_parked(delivery)
            case Park():
                self.tally.parked += not lane.park(one, now, reason=error.reason)
            case RetryLater():
                refused = lane.retry(one, now, after=error.seconds, count=error.count, reason=error.reason)
                self.tally.parked += not refused and _is_parked(delivery)
            case _:
                self._fail(owned, delivery, error)
        if error is not None:
            self._write_down(delivery, error, now)
        if self.emitter is not None:
            self.emitter.settled(delivery, error, seconds, together)

    def blamed(self, owned: HeldLane) -> None:
        """Tells what ended the process of an owner before this one."""
        entries = [(entry.message, entry.fate) for entry in owned.lane.blamed if entry.fate is not None]
        owned.lane.blamed.clear()
        for message, row in entries:
            self.tally.failed += 1
            self.tally.parked += row.state is State.PARKED
            self.last_error = row.reason, self._now()
            self._logger.blamed(message, row, self._now())
            if self.emitter is not None:
                self.emitter.blamed(message, row)

    def _write_down(self, delivery: AnyDelivery, error: BaseException, now: float) -> None:
        message, attempt, row = delivery.message, delivery.attempt, delivery.entry.fate
        if isinstance(error, NewerVersion) and error.is_of(message):
            self._logger.waits_for_version(message, attempt, str(error), row, now)
        elif isinstance(error, Skip | Park | Undecodable | RetryLater):
            reason = error.reason or (row.reason if row else "")
            self._logger.settled(message, attempt, reason, row, now, None)
        else:
            self._logger.settled(message, attempt, reason_of(error), row, now, error)

    def _fail(self, owned: HeldLane, delivery: AnyDelivery, error: BaseException) -> None:
        self.tally.failed += 1
        reason, trace = reason_of(error), traceback_of(error)
        self.last_error = reason, self._now()
        if self._on_failure(delivery, error) or isinstance(error, CannotAppend):
            self.tally.parked += 1
            owned.lane.park([delivery], self._now(), reason=reason, error=trace)
        else:
            owned.lane.retry([delivery], self._now(), reason=reason, error=trace, cause=type(error))


def _is_parked(delivery: AnyDelivery) -> bool:
    fate = delivery.entry.fate
    return fate is not None and fate.state is State.PARKED


def _names_any_of(error: Failed, deliveries: Sequence[AnyDelivery]) -> bool:
    """Whether what it names is of this batch; else who raised it meant something else."""
    return any(each.message.position in error.errors for each in deliveries)
