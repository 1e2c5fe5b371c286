"""Messages for the tests of dispatch, and someone who hands them out."""

from collections.abc import Callable
from typing import Any

from milepost.dispatch.delivery import STATUS_GONE, STATUS_OPEN, STATUS_READY, LaneDelivery, LaneEntry
from milepost.dispatch.routing.groups import RouteGroup
from milepost.dispatch.routing.route import Route, RouteMember
from milepost.dispatch.routing.routes import Routes


class Example:
    """A message of which only what dispatch looks at is made up."""

    def __init__(self, position: int, *, key: str = "a", size: int = 100, **properties: Any) -> None:
        self.position = position
        self.stream = key
        self.size = size
        self.properties = properties

    def __repr__(self) -> str:
        return f"Example({self.position}, key={self.stream!r}, size={self.size}, **{self.properties})"


def ready(position: int, *, key: str = "a", size: int = 100, **properties: Any) -> LaneEntry[Example]:
    """An entry that can be handed out."""
    message = Example(position, key=key, size=size, **properties)
    return LaneEntry(position=position, message=message, key=key, size=size, status=STATUS_READY)


class Desk:
    """Routes, and someone who hands out what they say; consumers are given by name."""

    def __init__(self, strategy: str = "round_robin", bucket_of: Callable[[Example], int] | None = None) -> None:
        self.routes: Routes[Example] = Routes(strategy, bucket_of)
        self.open: list[LaneDelivery[Example]] = []

    def push(self, *entries: LaneEntry[Example]) -> None:
        """Queues what matches a group; the rest is left alone."""
        for entry in entries:
            group = self.routes.match(entry.message)
            if group is not None:
                entry.status = STATUS_READY
                self.routes.push(group, entry)

    def hand_out(self, most: int = 1_000_000) -> list[tuple[int, str]]:
        """Takes until there is nothing to take: positions, and who got them."""
        handed: list[tuple[int, str]] = []
        while len(handed) < most and (taken := self.routes.take()) is not None:
            entry, member = taken
            entry.status = STATUS_OPEN
            delivery = LaneDelivery(entry.message, 1, entry, member)
            self.routes.opened(delivery)
            self.open.append(delivery)
            handed.append((entry.position, member.consumer.name))
        return handed

    def close(self, *positions: int) -> None:
        """Settles open deliveries."""
        for delivery in [each for each in self.open if each.entry.position in positions]:
            self.open.remove(delivery)
            delivery.entry.status = STATUS_GONE
            self.routes.closed(delivery)

    def used_routes(self) -> list[str]:
        """The route of each open delivery, in the order in which they were handed out."""
        return [str(delivery.member.route) for delivery in self.open if delivery.member]

    def group(self, **properties: Any) -> RouteGroup[Example]:
        """The group that takes a message with these properties."""
        found = self.routes.match(Example(0, **properties))
        assert found is not None
        return found


def route(text: str | None = None, priority: int = 0, name: str = "r", **capacities: int) -> Route:
    """A route with the filter of this text."""
    return Route(text, name=name, priority=priority, **capacities)


def member(desk: Desk, consumer: str, name: str = "r") -> RouteMember[Example]:
    """One route of a consumer."""
    return desk.routes.consumers[consumer].members[name]
