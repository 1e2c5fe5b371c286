"""What a consumer asks for."""

from copy import copy
from dataclasses import dataclass, field
from typing import Final

from milepost.filter import Filter, compile_filter

CAPACITY: Final = 1000
CAPACITY_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True)
class Route:
    """Which messages a consumer takes, how urgently, and how many at once.

    `where`: a filter expression; None, the default: all messages. `FilterError` where it is none.
    `priority`: a message goes to the highest priority that matches. Defaults to 0.
    `capacity`: the most messages that are open at a time; 0 pauses. Defaults to 1,000.
    `capacity_bytes`: no more messages while those that are open have this size; 0 pauses. Defaults to 32 MiB.
    `name`: tells it from the other routes of its consumer: by it a route that changes keeps its budget. Defaults
    to its place among them.
    """

    where: str | None = None
    priority: int = field(default=0, kw_only=True)
    capacity: int = field(default=CAPACITY, kw_only=True)
    capacity_bytes: int = field(default=CAPACITY_BYTES, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    filter: Filter | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "filter", None if self.where is None else compile_filter(self.where))
        if self.capacity < 0 or self.capacity_bytes < 0:
            raise ValueError(f"the capacities of route {str(self)!r} must not be negative; 0 pauses it")

    def renamed(self, name: str, *, capacity: int) -> "Route":
        """Return the same route under another name and with another capacity; its filter is not compiled again."""
        other = copy(self)
        object.__setattr__(other, "name", name)
        object.__setattr__(other, "capacity", capacity)
        return other

    def __str__(self) -> str:
        return self.name or self.where or "everything"
