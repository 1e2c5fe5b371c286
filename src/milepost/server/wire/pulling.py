"""Deliveries that are pulled, and how they are settled."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from milepost.engine.pulling.pulled import Pulled, PulledDelivery
from milepost.engine.pulling.settling import MOST, Failure, Settled
from milepost.server.wire.message import StreamMessage
from milepost.server.wire.values import Duration, Wait, described

Why = str | Failure
Tokens = Annotated[list[str], described(maxItems=MOST)] | Annotated[dict[str, Why], described(maxProperties=MOST)]
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
    def of(cls, pulled: Pulled) -> "ClaimedDeliveries":
        """What a pull gave."""
        return cls(list(map(ClaimedDelivery.of, pulled)), pulled.more)


class Settlements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How deliveries end: lists of their tokens, or objects that have a reason for each token."""

    ack: Tokens = []
    """They are done."""
    retry: Tokens = []
    """They failed: they come again when the subscription's policy says, and are parked at its limit."""
    park: Tokens = []
    """They are given up until a person decides."""
    skip: Tokens = []
    """They are not wanted, and done."""
    extend: Tokens = []
    """They take longer, and are kept for `timeout` seconds from now on."""
    reason: Why = ""
    """Why, for those that failed and have no reason of their own: a text, or `reason` and `error`."""
    after: Wait | None = None
    """Seconds after which those of `retry` come again. Defaults to what the policy says."""
    timeout: Duration | None = None
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
    def of(cls, settled: Settled) -> "SettledDeliveries":
        """What the library says of it."""
        return cls(list(map(str, settled.moved)), list(map(str, settled.refused)))
