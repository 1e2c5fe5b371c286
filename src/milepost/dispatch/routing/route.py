"""A route: the messages that a consumer takes, its capacity, and the part of it in use."""

from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic

from milepost.dispatch.delivery import LaneDelivery, M
from milepost.filter import Filter, compile_filter

if TYPE_CHECKING:
    from milepost.dispatch.routing.groups import RouteGroup


DEFAULT_CAPACITY_MESSAGES: Final = 1000
DEFAULT_CAPACITY_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True)
class Route:
    """The messages that a consumer takes, their priority, and the most at a time.

    `where`: a filter expression; None, the default: all messages. `FilterError` where it is none.
    `priority`: a message goes to the highest priority that matches. Defaults to 0.
    `capacity`: the most messages that are open at a time; 0 pauses. Defaults to 1,000.
    `capacity_bytes`: no more messages while those that are open have this size; 0 pauses. Defaults to 32 MiB.
    `name`: tells it from the other routes of its consumer: by it a route that changes keeps its budget. Defaults
    to its place among them.
    """

    where: str | None = None
    priority: int = field(default=0, kw_only=True)
    capacity: int = field(default=DEFAULT_CAPACITY_MESSAGES, kw_only=True)
    capacity_bytes: int = field(default=DEFAULT_CAPACITY_BYTES, kw_only=True)
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


class LaneConsumer(Generic[M]):
    """A consumer of a lane, with one or several routes."""

    __slots__ = ("arrival", "deliveries", "doubted", "former", "members", "name")

    def __init__(self, name: str, arrival: int) -> None:
        self.name = name
        self.arrival = arrival
        """Number of its arrival; a lower one came earlier."""
        self.doubted = False
        """True if it was late and has not caught up."""
        self.members: dict[str, RouteMember[M]] = {}
        """Its routes by name, in their order."""
        self.former: dict[str, RouteMember[M]] = {}
        """Routes that it gave up while messages of theirs were open."""
        self.deliveries: dict[LaneDelivery[M], None] = {}
        """Its open deliveries, in the order in which they were handed out."""


class RouteMember(Generic[M]):
    """One route of one consumer, and the part of its capacity in use."""

    __slots__ = ("_low", "_low_bytes", "bytes", "consumer", "full", "group", "messages", "rank", "route")

    def __init__(self, consumer: LaneConsumer[M], route: Route) -> None:
        self.consumer = consumer
        self.group: RouteGroup[M] | None = None
        """The group with which it shares messages; None once its route was removed."""
        self.rank = (consumer.arrival, 0)
        """Its place among members of one priority: its consumer's arrival, then the order of the routes."""
        self.messages = 0
        """Number of open messages."""
        self.bytes = 0
        """Bytes of open messages."""
        self.full = False
        """True if it gets no more for now."""
        self.configure(route)

    def configure(self, route: Route) -> None:
        """Set the capacities; open messages stay counted."""
        before = getattr(self, "route", route)
        raised = route.capacity > before.capacity or route.capacity_bytes > before.capacity_bytes
        self.route = route
        # Nothing is as low as -1, so that a capacity of 0 never has room.
        self._low = route.capacity * 4 // 5 if route.capacity else -1
        self._low_bytes = route.capacity_bytes * 4 // 5 if route.capacity_bytes else -1
        # More room is there at once; otherwise what was full stays so until it is low.
        self.full = self._is_at_capacity() if raised or not self.full else not self._is_low()

    def charge(self, size: int) -> bool:
        """Count a message that was handed out; return True if that made it full."""
        self.messages += 1
        self.bytes += size
        if self.full or not self._is_at_capacity():
            return False
        self.full = True
        return True

    def refund(self, size: int) -> bool:
        """Count a message that is no longer open; return True if that gave it room again."""
        self.messages -= 1
        self.bytes -= size
        if not self.full or not self._is_low():
            return False
        self.full = False
        return True

    def _is_at_capacity(self) -> bool:
        return self.messages >= self.route.capacity or self.bytes >= self.route.capacity_bytes

    def _is_low(self) -> bool:
        # Not as soon as one is free: refills come in batches.
        return self.messages <= self._low and self.bytes <= self._low_bytes
