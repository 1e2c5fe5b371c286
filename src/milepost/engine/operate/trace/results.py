"""The results of a trace: what became of each message, and a sentence that says it."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from milepost.engine.declare.stored_definition import DecisivePart
from milepost.progress.postgres.trace import MAX_COUNTED_WAITING_MESSAGES


def trace_sentence(traced: "Traced") -> str:
    """What became of a message, for a person; one line, as far as the texts in it are."""
    parts = [_of_state(traced), traced.note]
    return "; ".join(part for part in parts if part)


def _of_state(traced: "Traced") -> str:
    match traced.state:
        case "filtered":
            return f"{'filtered out' if traced.reached else 'will be filtered out'}: {traced.why}"
        case "not selected" | "before its start" | "unsure":
            return f"{traced.state}: {traced.why}"
        case "in flight":
            return _joined(f"in flight{_with(traced)}{_since(traced)}", traced.stopped, _holds(traced))
        case "retrying":
            return _joined(f"retrying{_after(traced)}", _next(traced), traced.stopped, _holds(traced))
        case "parked":
            return _joined(f"parked{_since(traced)}{_after(traced)}", _holds(traced))
        case "waiting":
            return f"waiting{_behind(traced.waiting_behind) or ', the next of its key'}"
        case "unrouted":
            return _joined(f"unrouted{_since(traced)}, no consumer takes it", _holds(traced))
        case "skipped":
            how = f": {traced.why}" if traced.why else " by a person"
            return f"skipped{how}{_at(traced)}{_after(traced)}"
        case "not reached":
            return _joined(f"not reached: {_distance(traced)}", traced.stopped, _will_wait(traced), traced.why)
        case "done":
            return "done"


def _joined(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part)


def local_time(time: datetime) -> str:
    """A time as a person reads it, by this machine's zone."""
    return f"{time.astimezone():%Y-%m-%d %H:%M:%S}"


def _with(traced: "Traced") -> str:
    return f" with {traced.owner}" if traced.owner else ""


def _since(traced: "Traced") -> str:
    return f" since {local_time(traced.since)}" if traced.since else ""


def _at(traced: "Traced") -> str:
    return f" at {local_time(traced.since)}" if traced.since else ""


def _after(traced: "Traced") -> str:
    """Attempts and why the last one failed."""
    attempts = "1 attempt" if traced.total == 1 else f"{traced.total:,} attempts"
    reason = f": {_one_line(traced.reason)}" if traced.reason else ""
    return f" after {attempts}{reason}" if traced.total else reason


def _one_line(text: str) -> str:
    first, *rest = text.strip().splitlines() or [""]
    return f"{first} …" if rest else first


def _next(traced: "Traced") -> str:
    return f"next at {local_time(traced.due)}" if traced.due else ""


def _holds(traced: "Traced") -> str:
    if not traced.holds:
        return ""
    more = " or more" if traced.holds >= MAX_COUNTED_WAITING_MESSAGES else ""
    first = f", first {_named(traced.holds_first[0])}" if traced.holds_first else ""
    return f"{traced.holds:,}{more} wait{'s' if traced.holds == 1 else ''} behind it{first}"


def _named(neighbour: "Neighbour") -> str:
    if neighbour.stream is None:
        return f"position {neighbour.position:,}"
    return f"{neighbour.stream} version {neighbour.version} (position {neighbour.position:,})"


def _behind(neighbour: "Neighbour | None") -> str:
    return "" if neighbour is None else f" behind {_named(neighbour)}, which is {neighbour.state}"


def _will_wait(traced: "Traced") -> str:
    return f"and will wait{_behind(traced.waiting_behind)}" if traced.waiting_behind else ""


def _distance(traced: "Traced") -> str:
    if traced.behind is None or traced.lane is None:
        return "no lane has come so far"
    positions = "1 position" if traced.behind == 1 else f"{traced.behind:,} positions"
    return f"lane {traced.lane} is {positions} behind it{f', with {traced.owner}' if traced.owner else ''}"


TraceState = Literal[
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

SETTLED_STATES: frozenset[TraceState] = frozenset(
    {"done", "filtered", "not selected", "before its start", "skipped"}
)
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
    state: TraceState
    stream: str | None
    """None, as its version: it is no longer in the log."""
    version: int | None


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one message, for one subscription. `str()` says it in a sentence."""

    message: MessageAt
    group: str
    subscription: str
    """Its name."""
    state: TraceState
    """`done`; `filtered` out or `not selected`, which `why` and `parts` explain; `before its start`; `in flight`;
    `retrying`; `parked`; `waiting` behind another of its key; `unrouted`: no consumer takes it; `skipped` by a
    person; `not reached` yet; `unsure`: what is known does not decide it."""
    why: str = ""
    """What decided, in words."""
    parts: tuple[DecisivePart, ...] = ()
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
        return self.state in SETTLED_STATES

    def __str__(self) -> str:
        return trace_sentence(self)


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
