"""What became of messages, for each subscription."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from milepost.engine.trace.deciding import Part
from milepost.engine.trace.words import sentence

Fate = Literal[
    "done",
    "filtered",
    "not selected",
    "before its start",
    "in flight",
    "retrying",
    "parked",
    "waiting",
    "unrouted",
    "skipped",
    "not reached",
    "unsure",
]

SETTLED: frozenset[Fate] = frozenset({"done", "filtered", "not selected", "before its start", "skipped"})
"""Nothing more comes of these by itself."""


class MessageAt(msgspec.Struct, frozen=True):
    """A message: what it is and where it stands."""

    position: int
    stream: str
    version: int
    id: UUID
    type: str
    time: datetime


class Neighbour(msgspec.Struct, frozen=True):
    """A message of the same key."""

    position: int
    state: Fate
    stream: str | None
    """None, as its version: it is no longer in the log."""
    version: int | None


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one message, for one subscription. `str()` says it in a sentence."""

    message: MessageAt
    group: str
    subscription: str
    """Its name."""
    state: Fate
    """`done`; `filtered` out or `not selected`, which `why` and `parts` explain; `before its start`; `in flight`;
    `retrying`; `parked`; `waiting` behind another of its key; `unrouted`: no consumer takes it; `skipped` by a
    person; `not reached` yet; `unsure`: what is known does not decide it."""
    why: str = ""
    """What decided, in words."""
    parts: tuple[Part, ...] = ()
    """If it is `filtered`: the parts of the filter that decided."""
    definition: int | None = None
    """The number of the definition that decided: the one in force when its lane passed it, or now."""
    reached: bool = True
    """Whether its lane has passed it, or has it in hand."""
    lane: int | None = None
    """None: only a program with the function that it orders by knows."""
    owner: str | None = None
    """The worker that has its lane, or handles it now; None: none has, or none that is known."""
    since: datetime | None = None
    """When it came into its state, as far as that is stored."""
    due: datetime | None = None
    """If it is `retrying`: when it is tried next."""
    attempts: int = 0
    """How often it was tried since a person last retried it."""
    total: int = 0
    """How often it was tried at all."""
    reason: str = ""
    """Why the last attempt failed, in one line."""
    error: str = ""
    """The error of the last attempt, with its traceback."""
    waiting_behind: Neighbour | None = None
    """What it waits for, or will: an earlier one of its key."""
    holds: int = 0
    """How many wait behind it; counted up to 1,000."""
    holds_first: tuple[Neighbour, ...] = ()
    """The first of those."""
    behind: int | None = None
    """If it is `not reached`: how many positions lie between its lane's cursor and it, itself among them."""
    stopped: str | None = None
    """If it is `not reached`: what keeps its lane from going on, in words."""
    note: str | None = None
    """What else has to be known, in words."""

    @property
    def address(self) -> str:
        """The subscription's address."""
        return f"{self.group}/{self.subscription}"

    @property
    def settled(self) -> bool:
        """Whether nothing more comes of it by itself."""
        return self.state in SETTLED

    def __str__(self) -> str:
        return sentence(self)


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """What became of messages: by version, and for each of them by the addresses of the subscriptions."""

    messages: tuple[MessageAt, ...]
    """The messages that were found, the newest last."""
    traced: tuple[Traced, ...]
    """For each of them and each subscription; what iterating over it gives."""
    before_version: int | None
    """What to give for the next page, of older messages; None: these are the first."""

    def __iter__(self) -> Iterator[Traced]:
        return iter(self.traced)

    def __len__(self) -> int:
        return len(self.traced)

    def __getitem__(self, index: int) -> Traced:
        return self.traced[index]

    def of(self, message: MessageAt) -> Sequence[Traced]:
        """What became of one of them, for each subscription."""
        return [each for each in self.traced if each.message.position == message.position]
