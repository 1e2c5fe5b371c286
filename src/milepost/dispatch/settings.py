"""What a subscription's options mean to its lanes."""

from dataclasses import dataclass, field
from typing import Literal

from milepost.dispatch.retry import Retry

MEBIBYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a lane decides. Every value can be changed while it runs (`Lane.change`).

    `window`, `window_bytes`: how much may be open or read ahead; what consumers have is bounded by their
    capacities instead.
    `ordered`: whether messages have keys.
    `on_park`: whether a parked message holds its key.
    `timeout`: seconds until a delivery comes back by itself; None: whoever drives the lane sees to it.
    `track_all`: every message gets its row before it starts.
    `probation`: after an owner vanished, how many messages get their row before they start.
    `max_waiting`, `max_unrouted`: how many such rows the subscription may have before its cursor stops.
    """

    window: int = 1000
    window_bytes: int = 8 * MEBIBYTE
    ordered: bool = True
    on_park: Literal["block", "continue"] = "block"
    retry: Retry = field(default_factory=Retry)
    timeout: float | None = None
    track_all: bool = False
    probation: int = 2000
    stall_after: int = 1000
    max_waiting: int = 100_000
    max_unrouted: int = 100_000

    def __post_init__(self) -> None:
        for name in ("window", "window_bytes", "stall_after", "max_waiting", "max_unrouted"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
        if self.on_park not in ("block", "continue"):
            raise ValueError(f'on_park is "block" or "continue", not {self.on_park!r}')
        # Written so that NaN is refused as well.
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout is more than 0 seconds, not {self.timeout}")
