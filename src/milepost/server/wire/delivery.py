"""Deliveries as they are sent, and what is decided about them."""

from typing import Annotated

import msgspec
from msgspec import Meta

from milepost.dispatch import State
from milepost.engine.deliveries import DeliveryInfo
from milepost.errors import InvalidMessage
from milepost.progress.deliveries import StoredDelivery
from milepost.server.wire.message import StreamMessage
from milepost.server.wire.values import At, described

MOST_DECIDED = 10_000
"""How many deliveries one request decides about."""
MAX_STATES = 100
"""How many states one request names: there are a few, and one may be named twice."""

_STORED = StoredDelivery.__struct_fields__


class Delivery(StoredDelivery, frozen=True, kw_only=True):
    """A message that needs attention of its own."""

    message: StreamMessage | None
    """Null: it is no longer in the log."""

    @classmethod
    def of(cls, info: DeliveryInfo) -> "Delivery":
        """A delivery as it was found."""
        message = None if info.message is None else StreamMessage.of(info.message)
        return cls(message=message, **{name: getattr(info, name) for name in _STORED})


class DeliveryPage(msgspec.Struct, frozen=True):
    """Deliveries in order of position."""

    deliveries: list[Delivery]
    next: int
    """What to give as `after` to go on after these."""
    more: bool
    """Whether there are more now."""


class Count(msgspec.Struct, frozen=True):
    """How many there are."""

    count: int


class DeliveriesToDecide(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which deliveries are meant: exactly one of `positions`, `all` and `up_to` says it."""

    positions: Annotated[list[At], described(maxItems=MOST_DECIDED)] | None = None
    """Those at these positions."""
    all: bool = False
    """All of them."""
    after: At = 0
    """With `all` and `up_to`: only higher positions."""
    up_to: At | None = None
    """All up to this position."""
    limit: Annotated[int, described(minimum=0, maximum=MOST_DECIDED)] | None = None
    """At most so many, the lowest positions first. Defaults to 10,000, which is also the most."""
    state: Annotated[list[State], described(minItems=1), Meta(max_length=MAX_STATES)] | None = None
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
        if self.limit is not None and not 0 <= self.limit <= MOST_DECIDED:
            raise InvalidMessage("limit", f"a number from 0 to {MOST_DECIDED:,} is wanted, not {self.limit}")
        if self.positions is not None and len(self.positions) > MOST_DECIDED:
            found = f"{len(self.positions):,} of them"
            raise InvalidMessage("positions", f"{found}, over the limit of {MOST_DECIDED:,}")
