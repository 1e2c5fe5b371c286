"""What a token allows."""

from enum import StrEnum


class Role(StrEnum):
    """One kind of thing that may be done; a token has one or several, and none includes another."""

    READ = "read"
    """Look at everything: messages, subscriptions, deliveries, traces, metrics."""
    APPEND = "append"
    """Append messages."""
    CONSUME = "consume"
    """Take deliveries and settle them."""
    OPERATE = "operate"
    """Create, change, pause, move, replay and delete subscriptions; retry and skip messages."""


EVERY_ROLE = frozenset(Role)
