"""What is to be done to a subscription."""

import msgspec

from milepost.server.wire.place import EndPlace, Place


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a subscription is to go on."""

    to: Place
    """`beginning`, `now`, a time in RFC 3339 (messages at or after it), or a position (messages after it)."""


class Moved(msgspec.Struct, frozen=True):
    """What came of a move."""

    forgotten: int
    """How many deliveries were forgotten: their messages come again, or never."""


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be repeated."""

    start: Place
    """`beginning`, a time, or a position: messages after it."""
    end: EndPlace | None = None
    """The last position, or a time. Defaults to all that was handled."""


class Replayed(msgspec.Struct, frozen=True):
    """What came of a replay."""

    again: int
    """How many positions come again."""
