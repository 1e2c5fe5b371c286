"""Consumers, and the budget of each of their routes."""

from typing import TYPE_CHECKING, Generic

from milepost.dispatch.delivery import Delivery, M
from milepost.dispatch.route import Route

if TYPE_CHECKING:
    from milepost.dispatch.group import Group


class Consumer(Generic[M]):
    """Who takes messages, by one or several routes."""

    __slots__ = ("arrival", "deliveries", "doubted", "former", "members", "name")

    def __init__(self, name: str, arrival: int) -> None:
        self.name = name
        self.arrival = arrival
        """Counts those who came; a lower one came earlier."""
        self.doubted = False
        """Whether it was late, and has not caught up."""
        self.members: dict[str, Member[M]] = {}
        """By the names of its routes, in their order."""
        self.former: dict[str, Member[M]] = {}
        """Routes that it gave up while messages of theirs were open."""
        self.deliveries: dict[Delivery[M], None] = {}
        """What is open, in the order in which it was handed out."""


class Member(Generic[M]):
    """One route of one consumer, and what of its capacity is in use."""

    __slots__ = ("_low", "_low_bytes", "bytes", "consumer", "full", "group", "messages", "rank", "route")

    def __init__(self, consumer: Consumer[M], route: Route) -> None:
        self.consumer = consumer
        self.group: Group[M] | None = None
        """The members that it shares its messages with; None once its route was removed."""
        self.rank = (consumer.arrival, 0)
        """Its place among members of one priority: its consumer's arrival, then the order of the routes."""
        self.messages = 0
        """How many are open."""
        self.bytes = 0
        """The size of those."""
        self.full = False
        """Whether it gets no more for now."""
        self.configure(route)

    def configure(self, route: Route) -> None:
        """Sets capacities; what is open stays in the budget."""
        before = getattr(self, "route", route)
        raised = route.capacity > before.capacity or route.capacity_bytes > before.capacity_bytes
        self.route = route
        # Nothing is as low as -1, so that a capacity of 0 never has room.
        self._low = route.capacity * 4 // 5 if route.capacity else -1
        self._low_bytes = route.capacity_bytes * 4 // 5 if route.capacity_bytes else -1
        # More room is there at once; otherwise what was full stays so until it is low.
        self.full = self._is_at_capacity() if raised or not self.full else not self._is_low()

    def charge(self, size: int) -> bool:
        """Counts a message that was handed out; returns whether that made it full."""
        self.messages += 1
        self.bytes += size
        if self.full or not self._is_at_capacity():
            return False
        self.full = True
        return True

    def refund(self, size: int) -> bool:
        """Counts a message that is no longer open; returns whether that gave it room again."""
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
