"""What a pull gives."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from milepost.log.message import Message
from milepost.progress.pulling import Claim


class PulledDelivery(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A message for whoever pulled it, who settles it before its time is over: `mp.settle`."""

    message: Message[Any]
    attempt: int
    """Which attempt this is, from 1."""
    replay: bool
    """Whether it had been handled before, and comes again because a person wants that."""
    expires: datetime
    """When it goes to others unless it is settled, by the database's clock. That counts as an attempt."""
    claim: Claim

    @property
    def position(self) -> int:
        """Of the message, in the log."""
        return self.claim.position

    @property
    def token(self) -> str:
        """What it can be settled by from elsewhere: a text that nobody can guess."""
        return self.claim.token

    def __repr__(self) -> str:
        return f"PulledDelivery({self.message!r}, attempt {self.attempt})"


class Pulled(tuple[PulledDelivery, ...]):
    """The deliveries of one pull, by position."""

    more: bool
    """Whether there may be more right now: it reached its limit, or has not looked at all of the log yet."""

    def __new__(cls, deliveries: Iterable[PulledDelivery], *, more: bool) -> "Pulled":
        made = super().__new__(cls, deliveries)
        made.more = more
        return made
