"""The limits of rows at which a lane reads no further."""

from typing import Literal

import msgspec

from milepost.dispatch.exchange import Counts

_FILTERS_NAMED = 5
_LONGEST_NAMED = 100


class LimitReached(msgspec.Struct, frozen=True, kw_only=True):
    """Why a lane reads no further: the subscription has as many rows of a kind as it may have. `str()` says it."""

    limit: Literal["max_waiting", "max_unrouted"]
    """The option that sets the limit."""
    most: int
    """Its value."""
    rows: int
    """How many such rows the subscription has."""
    key: str | None = None
    """With `max_waiting`: the key of the next message that would have to wait, if it is known."""
    filters: tuple[str, ...] = ()
    """With `max_unrouted`: the filters of all consumers, none of which takes the next message. `*`: everything."""

    def of(self, counts: Counts) -> int:
        """How many rows of the limit's kind there are."""
        return counts.waiting if self.limit == "max_waiting" else counts.unrouted

    @property
    def cause(self) -> str:
        """The key or the filters, in words."""
        if self.limit == "max_waiting":
            return "" if self.key is None else f"key {_shortened(self.key)!r}"
        named = " | ".join(map(_shortened, self.filters[:_FILTERS_NAMED]))
        more = len(self.filters) - _FILTERS_NAMED
        return f"{named} | and {more:,} more" if more > 0 else named

    def __str__(self) -> str:
        has = "1 message" if self.rows == 1 else f"{self.rows:,} messages"
        if self.limit == "max_waiting":
            verb = "waits" if self.rows == 1 else "wait"
            then = f"; the next one is of {self.cause}" if self.cause else ""
            return f"{has} {verb} behind others (max_waiting={self.most:,}){then}"
        verb = "is" if self.rows == 1 else "are"
        then = (
            f"no consumer takes the next one; their filters: {self.cause}"
            if self.filters
            else "there is no consumer"
        )
        return f"{has} {verb} unrouted (max_unrouted={self.most:,}); {then}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_NAMED else f"{text[: _LONGEST_NAMED - 1]}…"
