"""The events in a subscription's life.

Each process emits what it did itself: with handlers, with consumers, by pulling. A message counts as handled
when its handler returned, or with a `Transaction` when that committed, or when whoever took it acked it.
Progress of handlers and consumers is written a little later than its events are emitted, so after a crash some
of it may happen again.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from milepost.log.message import Message


class Attempt(Protocol):
    """A message, with whoever had it."""

    @property
    def message(self) -> Message[Any]: ...

    @property
    def attempt(self) -> int: ...


class ListenerEvent(msgspec.Struct, frozen=True):
    """What a listener can be told."""

    subscription: str
    """The name of the subscription."""
    group: str


class Event(ListenerEvent, frozen=True):
    """Something that happened; listening to this class means listening to all of them."""


class Created(Event, frozen=True):
    """The subscription is new: this process has made it."""


class DefinitionChanged(Event, frozen=True):
    """The program declares it otherwise than the one before."""

    change: str
    """What is different, in words."""


class Started(Event, frozen=True):
    """This process began to work on it. It has no lanes yet."""

    worker: str


class Stopped(Event, frozen=True):
    """This process works on it no more."""

    worker: str


class Paused(Event, frozen=True):
    """A person has paused it. Each process tells when it learns of it."""


class Resumed(Event, frozen=True):
    """A person lets it go on. Each process tells when it learns of it."""


class LaneTaken(Event, frozen=True):
    """A lane is this process's."""

    lane: int
    position: int
    """Of its cursor."""
    vanished: bool
    """Whether the owner before had given no sign of life, instead of releasing it."""


class LaneReleased(Event, frozen=True):
    """A lane was given back in good order."""

    lane: int
    seconds: float
    """For how long this process had it."""


class LaneLost(Event, frozen=True):
    """A lane is another's, or its state unknown: what ran of it may run again elsewhere."""

    lane: int
    reason: str
    seconds: float
    """For how long this process had it."""


class MessageEvent(Event, frozen=True):
    """Something that happened to one message."""

    message: Message[Any]
    attempt: int
    """Which attempt it was, from 1."""

    @property
    def position(self) -> int:
        """Of the message, in the log."""
        return self.message.position

    @property
    def stream(self) -> str:
        """Of the message."""
        return self.message.stream


class Handled(MessageEvent, frozen=True, gc=False):
    """A message is done."""

    seconds: float
    """How long its handler took, or its consumer had it; in a call or a transaction for several, all of it."""
    together: int = 1
    """How many messages these seconds were for, this one among them."""


class HandledSeveral(ListenerEvent, frozen=True):
    """Messages are done: `Handled` for who only counts, without an event for each. Told to who names it."""

    seconds: Sequence[float]
    """How long each of them took; what a call or a transaction for several took is shared evenly."""


class AttemptFailed(MessageEvent, frozen=True):
    """A handler or a consumer raised, or took too long. `RetryScheduled` or `Parked` says what follows."""

    seconds: float
    """How long that took, counted like that of `Handled`."""
    error: BaseException
    together: int = 1
    """How many messages these seconds were for, this one among them."""


class RetryScheduled(MessageEvent, frozen=True):
    """A message is to be tried again."""

    due: datetime
    reason: str


class Parked(MessageEvent, frozen=True):
    """A message is given up until a person decides."""

    reason: str


class Skipped(MessageEvent, frozen=True):
    """A handler or a consumer did not want the message."""

    reason: str


class Stalled(Event, frozen=True):
    """Too much fails: one message at a time is tried from now on. Each process tells when it learns of it."""

    reason: str


class Recovered(Event, frozen=True):
    """A message succeeded again, and all goes on."""

    seconds: float
    """For how long this process has known that it was stalled."""
