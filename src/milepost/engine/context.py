"""What a handler may know of the call it is in."""

import logging
from typing import Any

import msgspec


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The circumstances of a call. A handler gets it by annotating a parameter with this class."""

    subscription: str
    """The name of the subscription."""
    position: int
    """Of the message; of a batch's first one."""
    attempt: int = 1
    """Which attempt this is, from 1; in a batch the highest of its messages."""
    replay: bool = False
    """Whether the message had been handled before and is repeated on purpose."""

    @property
    def logger(self) -> "logging.LoggerAdapter[logging.Logger]":
        """`milepost.subscription.<name>`; its records have `subscription`, `position` and `attempt`."""
        extra: dict[str, Any] = {
            "subscription": self.subscription,
            "position": self.position,
            "attempt": self.attempt,
        }
        return logging.LoggerAdapter(logging.getLogger(f"milepost.subscription.{self.subscription}"), extra)
