"""What a handler may know of the call it is in."""

import logging

import msgspec

from milepost.engine.journal import FieldLogger


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The circumstances of a call. A handler gets it by annotating a parameter with this class."""

    subscription: str
    """The name of the subscription."""
    position: int
    """Of the message; of a batch's first one."""
    group: str = "default"
    """The name of the subscriptions that the program serves."""
    stream: str | None = None
    """Of the message; of a batch's first one."""
    attempt: int = 1
    """Which attempt this is, from 1; in a batch the highest of its messages."""
    replay: bool = False
    """Whether the message had been handled before and is repeated on purpose."""

    @property
    def logger(self) -> "logging.LoggerAdapter[logging.Logger]":
        """`milepost.subscription.<name>`; its records have these fields, and what a call gives by `extra`."""
        fields = {name: getattr(self, name) for name in _LOGGED}
        return FieldLogger(logging.getLogger(f"milepost.subscription.{self.subscription}"), fields)


_LOGGED = ("subscription", "group", "position", "stream", "attempt")
