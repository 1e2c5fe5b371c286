"""Deliveries as they are looked at, decided about, claimed and settled."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

from milepost.dispatch import State
from milepost.errors import Unavailable
from milepost.log.query import Since
from milepost.names import MAX_POSITION_NUMBER
from milepost.progress.protocol import PassedBeforeReplay


class StoredDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery as it is stored."""

    position: int
    state: State
    key: str | None
    """What is kept in order with it; None: nothing is."""
    attempts: int
    """How often it was tried since a person last retried it."""
    total: int
    """How often it was tried at all."""
    size: int
    """Of its message, in bytes."""
    since: datetime
    """When it came into its state."""
    due: datetime | None
    """When it is tried next, if that is known."""
    reason: str
    """Why the last attempt failed, in one line."""
    error: str
    """The error of the last attempt with its traceback; at most 8 KiB of it are kept."""
    consumer: str | None
    """Who had it at the last attempt: the machine, the process and a name of its own; None: no consumer."""
    waiting_behind: int | None
    """If it is `waiting`: the position of the message that its key waits for. Else how many wait behind it."""


@dataclass(frozen=True, kw_only=True)
class DeliveryChoice:
    """Which deliveries of a subscription are meant; all that is said has to hold."""

    states: frozenset[State] = frozenset(State)
    key: str | None = None
    reason: str | None = None
    """A part of the reason, in upper or lower case."""
    after: int = 0
    up_to: int = MAX_POSITION_NUMBER
    """The last position."""


@dataclass(frozen=True, kw_only=True)
class NamedDeliveries:
    """Deliveries that are meant by their positions, as far as each is in one of these states."""

    positions: Sequence[int]
    states: frozenset[State]


class SeenDelivery(NamedTuple):
    """A delivery to decide about, and what it said when it was chosen: the decision holds for that."""

    position: int
    state: State | None = None
    """None: it was named by its position, and nobody looked."""
    revision: int | None = None


class Decision(Enum):
    """What a person may decide about a delivery."""

    RETRY = (State.RETRYING, frozenset({State.PARKED, State.RETRYING}))
    """It is tried now, and counted anew."""
    SKIP = (State.SKIPPED, frozenset({State.PARKED, State.RETRYING, State.WAITING, State.UNROUTED}))
    """It is passed over for good."""

    def __init__(self, becomes: State, applies_to: frozenset[State]) -> None:
        self.becomes = becomes
        self.applies_to = applies_to


class Decided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a decision."""

    moved: int
    """How many deliveries it holds for."""
    refused: dict[int, str]
    """The positions it does not hold for, and why, in words."""
    next: int | None = None
    """With `all` and `up_to`, where the limit was reached: what to give as `after` to go on after these."""


ClaimOutcome = Literal["ack", "retry", "park", "skip", "extend"]


_CLAIM_TOKEN = re.compile("([1-9][0-9]{0,17})-([1-9][0-9]{0,17})-([0-9a-f]{32})")


class Claim(msgspec.Struct, frozen=True):
    """The right to settle a delivery, for as long as nobody else has it."""

    subscription: int
    position: int
    id: str
    """What nobody can guess: 32 hexadecimal digits."""

    @property
    def batch(self) -> tuple[int, str]:
        """What all that was claimed together has in common."""
        return self.subscription, self.id

    @property
    def token(self) -> str:
        """The claim as one text."""
        return f"{self.subscription}-{self.position}-{self.id}"

    @classmethod
    def of(cls, token: str) -> "Claim | None":
        """What a text says; None: it is no token."""
        found = _CLAIM_TOKEN.fullmatch(token)
        return None if found is None else cls(int(found[1]), int(found[2]), found[3])


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants to have."""

    group: str
    name: str
    limit: int
    """At most so many deliveries."""
    bytes: int
    """At most so many bytes of messages, but one message at least."""
    seconds: float | None
    """How long the claims hold; None: as the subscription says."""
    consumer: str
    """Who that is, for whoever looks at deliveries."""


class ScannedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the log that is to become rows, and by what it was read."""

    number: int
    """Of the definition."""
    epoch: int
    """Of the cursor: it is another after a person has moved it."""
    above: int
    """Where it begins: the cursor has to be there, or further."""
    position: int
    """Where it ends."""
    life: UUID | None
    """Of the server, if the log is in this database."""
    positions: Sequence[int]
    sizes: Sequence[int]
    keys: Sequence[str] | None
    fresh: Sequence[int] = ()
    """The positions that had not been handled before, though a replay may bring them."""


class ClaimedRow(NamedTuple):
    """A row that was claimed."""

    position: int
    attempt: int
    """From 1."""
    replay: bool


class ClaimReply(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a pull, and how the subscription stands."""

    id: int
    number: int
    settings: msgspec.Raw
    since: Since | None
    status: str
    """What people want of it: `running` or `paused`."""
    stalled: str | None
    """Why one delivery at a time is given, if that is so."""
    rests: bool
    """Whether it is paused, or somebody is changing it: it gives nothing."""
    epoch: int
    """Of the cursor: it is another after a person has moved it."""
    position: int
    """Of the cursor."""
    ahead: list[int]
    """What is done beyond it, as ranges: first, last, first, last, …"""
    memories: list[PassedBeforeReplay] | None
    """What had been handled before, while a replay is under way."""
    claim: str
    """Of all that was claimed: what nobody can guess."""
    expires: datetime
    ready: list[ClaimedRow]
    """Rows that were there."""
    outcome: Literal["converted", "lost", "stale", "full"] | None
    """What came of the part of the log: `lost`: somebody else was first; `stale`: it has to be read again; `full`:
    enough rows wait already; None: there was no room."""
    converted: list[int] | None
    """The positions of rows that came of it and were claimed."""
    replayed: list[int] | None
    """Those of them that had been handled before."""
    size: int
    """Bytes of the messages of all that was claimed."""
    is_overdue: bool
    """Whether claims have expired that nobody has looked after."""
    wait: float | None
    """Seconds until a row was due or a claim expired, before this, if any."""
    unread: bool
    """In a caller's transaction: whether the log of this database has messages after the cursor."""


class LaneLocked(Unavailable):
    """Somebody has had the lane of a pull for long, in a transaction that goes on."""


class NotPulled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subscription that is not for pulling."""

    in_code: bool
    tracking: str | None


class DeliveryFate(msgspec.Struct, frozen=True):
    """What became of a delivery."""

    state: State
    attempts: int
    due: float | None
    reason: str


class ExpiredClaim(NamedTuple):
    """A delivery whose claim has expired: an attempt that failed."""

    position: int
    seconds: float
    """For how long it was held."""
    fate: DeliveryFate


class ClaimSettlement(msgspec.Struct, frozen=True):
    """How one delivery is to end."""

    claim: Claim
    outcome: ClaimOutcome
    reason: str = ""
    error: str = ""


class SettlementResult(NamedTuple):
    """What came of settling."""

    held: set[int]
    """The places of the claims that held."""
    again: bool = False
    """Whether that was so before: the same was asked already."""
