"""Emit the events of one subscription."""

from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Protocol, TypeVar

from milepost.dispatch import State
from milepost.engine.declare.handler import AnyDelivery, Undecodable
from milepost.engine.declare.outcomes import Park, RetryLater, Skip
from milepost.engine.observe.events import (
    Attempt,
    AttemptFailed,
    Created,
    DefinitionChanged,
    Handled,
    HandledSeveral,
    LaneLost,
    LaneReleased,
    LaneTaken,
    Parked,
    Paused,
    Recovered,
    Resumed,
    RetryScheduled,
    Skipped,
    Stalled,
    Started,
    Stopped,
)
from milepost.engine.observe.listeners import ActiveListeners
from milepost.log.codec import NewerVersion
from milepost.log.message import Message
from milepost.progress.protocol import LaneGrant, SubscriptionRecord
from milepost.progress.rows import MAX_DUE_TIME

T = TypeVar("T")


class StoredOutcome(Protocol):
    """What became of a message that was not done."""

    @property
    def state(self) -> State: ...

    @property
    def attempts(self) -> int: ...

    @property
    def due(self) -> float | None: ...

    @property
    def reason(self) -> str: ...


class EventEmitter:
    """Makes events of what the parts of a worker say, or those that serve consumers, for an audience."""

    def __init__(self, audience: ActiveListeners, subscription: str, group: str) -> None:
        self._tell = audience.tell
        self._tell_each = audience.tell_handled
        self._wants = audience.wants
        self._of = (subscription, group)
        self._stalled_at: float | None = None
        self._taken_at: dict[int, float] = {}
        self.noted = _lists_to_note_in(audience)
        """Of messages that were handled and not told of yet: how long each took, and they. None: not wanted."""

    # The subscription

    def definition_changed(self, record: SubscriptionRecord) -> None:
        """It is there."""
        if record.created:
            self._tell(Created(*self._of))
        elif record.changed:
            self._tell(DefinitionChanged(*self._of, record.changed))

    def started(self, worker: str) -> None:
        """Work begins."""
        self._tell(Started(*self._of, worker))

    def stopped(self, worker: str) -> None:
        """Work has ended."""
        self._tell(Stopped(*self._of, worker))

    def status(self, status: str) -> None:
        """A person has paused it, or lets it go on."""
        self._tell((Paused if status == "paused" else Resumed)(*self._of))

    def breaker(self, stalled: str | None) -> None:
        """The circuit breaker says this; what it said before is known."""
        if stalled and self._stalled_at is None:
            self._stalled_at = monotonic()
            self._tell(Stalled(*self._of, stalled))
        elif self._stalled_at is not None and not stalled:
            seconds, self._stalled_at = monotonic() - self._stalled_at, None
            self._tell(Recovered(*self._of, seconds))

    # Lanes

    def taken(self, held: LaneGrant, *, vanished: bool) -> None:
        """A lane was taken."""
        self._taken_at[held.lane] = monotonic()
        self._tell(LaneTaken(*self._of, held.lane, held.state.cursor.position, vanished))

    def released(self, lane: int) -> None:
        """A lane was given back."""
        if lane in self._taken_at:
            self._tell(LaneReleased(*self._of, lane, self._had(lane)))

    def lost(self, lane: int, error: Exception) -> None:
        """A lane is another's, or nobody knows what is stored of it. That may be found out twice."""
        if lane in self._taken_at:
            self._tell(LaneLost(*self._of, lane, str(error) or type(error).__name__, self._had(lane)))

    def _had(self, lane: int) -> float:
        return monotonic() - self._taken_at.pop(lane)

    # Messages

    def note(self, delivery: AnyDelivery, seconds: float) -> None:
        """A message was handled, and took so long."""
        times, deliveries = self.noted
        if times is not None:
            times.append(seconds)
        if deliveries is not None:
            deliveries.append(delivery)

    def emit_noted(self) -> None:
        """Tells of what was noted since the last time: together, because there may be much of it."""
        times, deliveries = self.noted
        if times:
            each = [] if deliveries is None else _take_all(deliveries)
            self.handled_each(each, _take_all(times))

    def handled_together(self, deliveries: Sequence[Attempt], seconds: float) -> None:
        """A call of a handler, or a transaction, was for all of these."""
        if not deliveries:
            return
        name, group = self._of
        together = len(deliveries)
        if self._wants(Handled):
            self._tell(*[Handled(name, group, one.message, one.attempt, seconds, together) for one in deliveries])
        if self._wants(HandledSeveral):
            self._tell(HandledSeveral(name, group, [seconds / together] * together))

    def handled_each(self, deliveries: Sequence[Attempt], seconds: Sequence[float]) -> None:
        """Each of these is done, and took so long."""
        if not seconds:
            return
        name, group = self._of
        if self._wants(Handled):
            self._tell_each(name, group, zip(deliveries, seconds, strict=True))
        if self._wants(HandledSeveral):
            self._tell(HandledSeveral(name, group, seconds))

    def settled(self, delivery: AnyDelivery, error: BaseException | None, seconds: float, together: int) -> None:
        """A message was settled after its handler raised: by this, or in a batch by None if it is done."""
        message, attempt = delivery.message, delivery.attempt
        match error:
            case None:
                self._tell(Handled(*self._of, message, attempt, seconds, together))
                self._tell(HandledSeveral(*self._of, [seconds / together]))
                return
            case Skip():
                self.skipped(delivery, error.reason)
                return
            case Park() | Undecodable() | RetryLater():
                pass
            case NewerVersion() if error.is_of(message):
                pass
            case _:
                self.failed(delivery, error, seconds, together)
        self.put_aside(delivery)

    def skipped(self, delivery: Attempt, reason: str) -> None:
        """A message was not wanted."""
        self._tell(Skipped(*self._of, delivery.message, delivery.attempt, reason))

    def failed(self, delivery: Attempt, error: BaseException, seconds: float, together: int = 1) -> None:
        """An attempt failed."""
        self._tell(AttemptFailed(*self._of, delivery.message, delivery.attempt, seconds, error, together))

    def put_aside(self, delivery: AnyDelivery) -> None:
        """What follows, if a message was not done: it is tried again, or parked."""
        if delivery.entry.fate is not None:
            self.becomes(delivery, delivery.entry.fate)

    def without_key(self, delivery: Attempt, reason: str) -> None:
        """A message was parked, because nothing says what is to be kept in order with it."""
        self._tell(Parked(*self._of, delivery.message, delivery.attempt, reason))

    def blamed(self, message: Message[Any], fate: StoredOutcome) -> None:
        """A message ended the process that it ran in."""
        self._becomes(message, fate.attempts, fate)

    def becomes(self, delivery: Attempt, fate: StoredOutcome) -> None:
        """What follows, if a message was not done."""
        self._becomes(delivery.message, delivery.attempt, fate)

    def _becomes(self, message: Message[Any], attempt: int, fate: StoredOutcome) -> None:
        if fate.state is State.PARKED:
            self._tell(Parked(*self._of, message, attempt, fate.reason))
        elif fate.due is not None:
            due = datetime.fromtimestamp(min(MAX_DUE_TIME, fate.due), UTC)
            self._tell(RetryScheduled(*self._of, message, attempt, due, fate.reason))


def _take_all(noted: list[T]) -> list[T]:
    """What is in a list, which is empty then: slots know it, and go on with it."""
    taken = noted.copy()
    noted.clear()
    return taken


def _lists_to_note_in(audience: ActiveListeners) -> tuple[list[float] | None, list[AnyDelivery] | None]:
    """Where to note messages that were handled: their times if anybody counts them, they themselves for events."""
    wants_each = audience.wants(Handled)
    return [] if wants_each or audience.wants(HandledSeveral) else None, [] if wants_each else None
