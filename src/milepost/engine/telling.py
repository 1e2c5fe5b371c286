"""Tells listeners what happens to one subscription."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from milepost.dispatch import Row, State
from milepost.dispatch.delivery import Entry
from milepost.engine.calls import AnyDelivery
from milepost.engine.events import (
    AttemptFailed,
    Created,
    DefinitionChanged,
    Handled,
    LaneLost,
    LaneReleased,
    LaneTaken,
    Parked,
    Recovered,
    RetryScheduled,
    Skipped,
    Stalled,
    Started,
    Stopped,
)
from milepost.engine.handler import Undecodable
from milepost.engine.listeners import Audience
from milepost.engine.outcomes import Park, RetryLater, Skip
from milepost.log.message import Message
from milepost.progress.protocol import Held, Opened
from milepost.progress.storable import LATEST


class Telling:
    """Makes events of what the parts of a worker say, for an audience."""

    def __init__(self, audience: Audience, subscription: str, group: str) -> None:
        self._tell = audience.tell
        self._of = (subscription, group)
        self._stalled: str | None = None
        self.tells_handled = audience.wants(Handled)
        """Whether anybody wants to know of each message that was handled."""

    # The subscription

    def opened(self, opened: Opened) -> None:
        """It is there."""
        if opened.created:
            self._tell(Created(*self._of))
        elif opened.changed:
            self._tell(DefinitionChanged(*self._of, opened.changed))

    def started(self, worker: str) -> None:
        """Work begins."""
        self._tell(Started(*self._of, worker))

    def stopped(self, worker: str) -> None:
        """Work has ended."""
        self._tell(Stopped(*self._of, worker))

    def breaker(self, stalled: str | None) -> None:
        """The circuit breaker says this; what it said before is known."""
        if stalled and not self._stalled:
            self._tell(Stalled(*self._of, stalled))
        elif self._stalled and not stalled:
            self._tell(Recovered(*self._of))
        self._stalled = stalled

    # Lanes

    def taken(self, held: Held, *, vanished: bool) -> None:
        """A lane was taken."""
        self._tell(LaneTaken(*self._of, held.lane, held.state.cursor.position, vanished))

    def released(self, lane: int) -> None:
        """A lane was given back."""
        self._tell(LaneReleased(*self._of, lane))

    def lost(self, lane: int, error: Exception) -> None:
        """A lane is another's, or nobody knows what is stored of it."""
        self._tell(LaneLost(*self._of, lane, str(error) or type(error).__name__))

    # Messages

    def handled(self, deliveries: Iterable[AnyDelivery], seconds: float) -> None:
        """A call of a handler returned."""
        for delivery in deliveries:
            self._tell(Handled(*self._of, delivery.message, delivery.attempt, seconds))

    def settled(self, delivery: AnyDelivery, error: BaseException | None, seconds: float) -> None:
        """A message was settled after its handler raised: by this, or in a batch by None if it is done."""
        message, attempt = delivery.message, delivery.attempt
        match error:
            case None:
                self._tell(Handled(*self._of, message, attempt, seconds))
                return
            case Skip():
                self._tell(Skipped(*self._of, message, attempt, error.reason))
                return
            case Park() | Undecodable() | RetryLater():
                pass
            case _:
                self._tell(AttemptFailed(*self._of, message, attempt, seconds, error))
        if delivery.entry.fate is not None:
            self._put_aside(message, attempt, delivery.entry.fate)

    def without_key(self, delivery: AnyDelivery, reason: str) -> None:
        """A message was parked, because nothing says what is to be kept in order with it."""
        self._tell(Parked(*self._of, delivery.message, delivery.attempt, reason))

    def given_up(self, entries: Iterable[Entry[Message[Any]]]) -> None:
        """Messages were parked, because their processes vanished too often."""
        for entry in entries:
            if entry.fate is not None:
                self._put_aside(entry.message, entry.fate.attempts, entry.fate)

    def _put_aside(self, message: Message[Any], attempt: int, row: Row) -> None:
        if row.state is State.PARKED:
            self._tell(Parked(*self._of, message, attempt, row.reason))
        elif row.due is not None:
            due = datetime.fromtimestamp(min(LATEST, row.due), UTC)
            self._tell(RetryScheduled(*self._of, message, attempt, due, row.reason))
