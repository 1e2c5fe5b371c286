"""Deliveries on the wire: listed, decided about, pulled, and settled by token."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from milepost.dispatch import State
from milepost.engine.operate.deliveries import DeliveryInfo
from milepost.engine.pull.claims import PulledDeliveries, PulledDelivery
from milepost.engine.pull.settle import MAX_SETTLED_DELIVERIES, PullSettleResult, ReportedFailure
from milepost.errors import InvalidMessage
from milepost.progress.deliveries import StoredDelivery
from milepost.wire.messages import StreamMessage
from milepost.wire.values import DurationSeconds, PositionOrVersion, WaitSeconds, schema_words

MAX_DECIDED_DELIVERIES = 10_000
"""How many deliveries one request decides about."""
MAX_STATES = 100
"""How many states one request names: there are a few, and one may be named twice."""

_STORED_FIELDS = StoredDelivery.__struct_fields__


class ListedDelivery(StoredDelivery, frozen=True, kw_only=True):
    """A message that needs attention of its own."""

    message: StreamMessage | None
    """Null: it is no longer in the log."""

    @classmethod
    def of(cls, info: DeliveryInfo) -> "ListedDelivery":
        """A delivery as it was found."""
        message = None if info.message is None else StreamMessage.of(info.message)
        return cls(message=message, **{name: getattr(info, name) for name in _STORED_FIELDS})


class DeliveryPage(msgspec.Struct, frozen=True):
    """Deliveries in order of position."""

    deliveries: list[ListedDelivery]
    next: int
    """What to give as `after` to go on after these."""
    more: bool
    """Whether there are more now."""


class Count(msgspec.Struct, frozen=True):
    """How many there are."""

    count: int


class DeliveriesToDecide(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which deliveries are meant: exactly one of `positions`, `all` and `up_to` says it."""

    positions: Annotated[list[PositionOrVersion], schema_words(maxItems=MAX_DECIDED_DELIVERIES)] | None = None
    """Those at these positions."""
    all: bool = False
    """All of them."""
    after: PositionOrVersion = 0
    """With `all` and `up_to`: only higher positions."""
    up_to: PositionOrVersion | None = None
    """All up to this position."""
    limit: Annotated[int, schema_words(minimum=0, maximum=MAX_DECIDED_DELIVERIES)] | None = None
    """At most so many, the lowest positions first. Defaults to 10,000, which is also the most."""
    state: Annotated[list[State], schema_words(minItems=1), Meta(max_length=MAX_STATES)] | None = None
    """Only those in these states. Defaults to the parked ones; with `positions` to all that can be moved."""
    key: str | None = None
    """With `all` and `up_to`: only what is kept in order by this key."""
    reason: str | None = None
    """With `all` and `up_to`: only those whose reason has this text in it."""

    def check(self) -> None:
        """Refuses what is contradictory, or too much for one request."""
        meant = [self.positions is not None, self.all, self.up_to is not None]
        if sum(meant) != 1:
            raise InvalidMessage("positions", "exactly one of positions, all and up_to is wanted")
        if self.limit is not None and not 0 <= self.limit <= MAX_DECIDED_DELIVERIES:
            raise InvalidMessage(
                "limit", f"a number from 0 to {MAX_DECIDED_DELIVERIES:,} is wanted, not {self.limit}"
            )
        if self.positions is not None and len(self.positions) > MAX_DECIDED_DELIVERIES:
            found = f"{len(self.positions):,} of them"
            raise InvalidMessage("positions", f"{found}, over the limit of {MAX_DECIDED_DELIVERIES:,}")


SettlementReason = str | ReportedFailure
DeliveryTokens = (
    Annotated[list[str], schema_words(maxItems=MAX_SETTLED_DELIVERIES)]
    | Annotated[dict[str, SettlementReason], schema_words(maxProperties=MAX_SETTLED_DELIVERIES)]
)
"""Tokens of deliveries, or each with its reason: a text, or an object with `reason` and `error`."""


class ClaimedDelivery(msgspec.Struct, frozen=True):
    """A message for whoever pulled it."""

    token: str
    """What it is settled by; nobody can guess it."""
    attempt: int
    """Which attempt this is, from 1."""
    replay: bool
    """Whether it had been handled before, and comes again because a person wants that."""
    expires: datetime
    """When it goes to others unless it is settled, by the database's clock. That counts as an attempt."""
    message: StreamMessage

    @classmethod
    def of(cls, pulled: PulledDelivery) -> "ClaimedDelivery":
        """A delivery as it was pulled."""
        return cls(pulled.token, pulled.attempt, pulled.replay, pulled.expires, StreamMessage.of(pulled.message))


class ClaimedDeliveries(msgspec.Struct, frozen=True):
    """The deliveries of one pull, by position."""

    deliveries: list[ClaimedDelivery]
    more: bool
    """Whether there may be more right now."""

    @classmethod
    def of(cls, pulled: PulledDeliveries) -> "ClaimedDeliveries":
        """What a pull gave."""
        return cls(list(map(ClaimedDelivery.of, pulled)), pulled.more)


class Settlements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How deliveries end: lists of their tokens, or objects that have a reason for each token."""

    ack: DeliveryTokens = []
    """They are done."""
    retry: DeliveryTokens = []
    """They failed: they come again when the subscription's policy says, and are parked at its limit."""
    park: DeliveryTokens = []
    """They are given up until a person decides."""
    skip: DeliveryTokens = []
    """They are not wanted, and done."""
    extend: DeliveryTokens = []
    """They take longer, and are kept for `timeout` seconds from now on."""
    reason: SettlementReason = ""
    """Why, for those that failed and have no reason of their own: a text, or `reason` and `error`."""
    after: WaitSeconds | None = None
    """Seconds after which those of `retry` come again. Defaults to what the policy says."""
    timeout: DurationSeconds | None = None
    """Seconds for those of `extend`. Defaults to the subscription's own."""
    id: UUID | None = None
    """Of this request: sent again within five minutes, because the answer was lost, it is answered the same."""


class SettledDeliveries(msgspec.Struct, frozen=True):
    """What came of settling: the tokens as they were given."""

    moved: list[str]
    """Those that were settled."""
    refused: list[str]
    """Those that are no longer this claim's: it has expired and others may have it, or it was settled before."""

    @classmethod
    def of(cls, settled: PullSettleResult) -> "SettledDeliveries":
        """What the library says of it."""
        return cls(list(map(str, settled.moved)), list(map(str, settled.refused)))
