"""The settings of a lane, and the limits of rows at which it reads no further."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from milepost.dispatch.exchange import RowCounts
from milepost.dispatch.retry import Retry

BYTES_PER_MEBIBYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a lane. All but `ordered` and `probation` can be changed while it runs (`Lane.change`).

    `window`, `window_bytes`: how much may be open or read ahead; what consumers have is bounded by their
    capacities instead. Default to 1,000 messages and 8 MiB.
    `ordered`: whether messages have keys. Defaults to True.
    `on_park`: whether a parked message holds its key, "block" (the default), or not, "continue".
    `retry`: what follows a failed attempt. Defaults to `Retry()`.
    `timeout`: seconds until a delivery comes back by itself. Defaults to None: the caller sees to it.
    `track_all`: whether every message gets its row before it starts. Defaults to False.
    `probation`: after an owner vanished, how many messages get their row before they start. Defaults to 2,000.
    `stall_after`: how many failures in a row, or messages retrying, stop the subscription. Defaults to 1,000.
    `max_waiting`, `max_unrouted`: how many such rows the subscription may have before its cursor stops. Default
    to 100,000.
    `keep_done`: for how many seconds the store keeps rows of what is done. Defaults to None: not at all.
    """

    window: int = 1000
    window_bytes: int = 8 * BYTES_PER_MEBIBYTE
    ordered: bool = True
    on_park: Literal["block", "continue"] = "block"
    retry: Retry = field(default_factory=Retry)
    timeout: float | None = None
    track_all: bool = False
    probation: int = 2000
    stall_after: int = 1000
    max_waiting: int = 100_000
    max_unrouted: int = 100_000
    keep_done: float | None = None

    def __post_init__(self) -> None:
        for name in ("window", "window_bytes", "stall_after", "max_waiting", "max_unrouted"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
        if self.probation < 0:
            raise ValueError(f"probation is at least 0, not {self.probation}")
        if self.on_park not in ("block", "continue"):
            raise ValueError(f'on_park is "block" or "continue", not {self.on_park!r}')
        # Written so that NaN is refused as well.
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout is more than 0 seconds, not {self.timeout}")


_MAX_FILTERS_SHOWN = 5
_MAX_SHOWN_CHARACTERS = 100


class LimitReached(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a lane reads no further: the subscription has as many rows of a kind as it may have.

    `str()` says it in words.
    """

    limit: Literal["max_waiting", "max_unrouted"]
    """The option that sets the limit."""
    most: int
    """The value of that option."""
    rows: int
    """Number of such rows that the subscription has."""
    key: str | None = None
    """With `max_waiting`: the key of the next message that would have to wait, if it is known."""
    filters: tuple[str, ...] = ()
    """With `max_unrouted`: the filters of all consumers, none of which takes the next message. `*`: everything."""

    def of(self, counts: RowCounts) -> int:
        """Return the number of rows of the limit's kind."""
        return counts.waiting if self.limit == "max_waiting" else counts.unrouted

    @property
    def cause(self) -> str:
        """The key or the filters, in words."""
        if self.limit == "max_waiting":
            return "" if self.key is None else f"key {_shortened(self.key)!r}"
        named = " | ".join(map(_shortened, self.filters[:_MAX_FILTERS_SHOWN]))
        more = len(self.filters) - _MAX_FILTERS_SHOWN
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
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[: _MAX_SHOWN_CHARACTERS - 1]}…"
