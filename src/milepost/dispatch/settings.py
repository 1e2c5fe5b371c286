"""What a subscription's options mean to its lanes."""

from dataclasses import dataclass, field
from typing import Literal

from milepost.dispatch.retry import Retry

MEBIBYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a lane decides. All but `ordered` and `probation` can be changed while it runs (`Lane.change`).

    `window`, `window_bytes`: how much may be open or read ahead; what consumers have is bounded by their
    capacities instead. Default to 1,000 messages and 8 MiB.
    `ordered`: whether messages have keys. Defaults to True.
    `on_park`: whether a parked message holds its key, "block" (the default), or not, "continue".
    `retry`: what follows a failed attempt. Defaults to `Retry()`.
    `timeout`: seconds until a delivery comes back by itself. Defaults to None: whoever drives the lane sees to it.
    `track_all`: whether every message gets its row before it starts. Defaults to False.
    `probation`: after an owner vanished, how many messages get their row before they start. Defaults to 2,000.
    `stall_after`: how many failures in a row, or messages retrying, stop the subscription. Defaults to 1,000.
    `max_waiting`, `max_unrouted`: how many such rows the subscription may have before its cursor stops. Default
    to 100,000.
    `keep_done`: for how many seconds the store keeps rows of what is done. Defaults to None: not at all.
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
