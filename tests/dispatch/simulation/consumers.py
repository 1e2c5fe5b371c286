"""Who should get a message: all routes, tried one by one."""

from collections.abc import Sequence
from typing import TypeAlias

from dispatch.simulation.message import Message
from milepost.dispatch.routing.route import Route

GroupKey: TypeAlias = tuple[str | None, int]
FILTERS = (None, "n == 1", "n = 1", "n < 3", "even", "n == 2 || n == 4", "n >= 3")


class Consumers:
    """The consumers of one lane with their routes, in the order in which they came."""

    def __init__(self) -> None:
        self.routes: dict[str, tuple[Route, ...]] = {}
        self.version = 0
        self.doubted: set[str] = set()

    def join(self, name: str, routes: Sequence[Route]) -> None:
        """One comes, or one that is here changes its routes."""
        self.routes[name] = tuple(routes)
        self.version += 1

    def leave(self, name: str) -> None:
        del self.routes[name]
        self.doubted.discard(name)
        self.version += 1

    def doubt(self, name: str) -> None:
        """What is pinned to it may go to others."""
        self.doubted.add(name)
        self.version += 1

    def trust(self, name: str) -> None:
        self.doubted.discard(name)
        self.version += 1

    def group_of(self, message: Message) -> GroupKey | None:
        """The canonical filter and the priority of the route whose message it is."""
        best: Route | None = None
        for route in (route for routes in self.routes.values() for route in routes):
            matches = route.filter is None or route.filter.matches(message.properties)
            if matches and (best is None or route.priority > best.priority):
                best = route
        return None if best is None else key_of(best)

    def members_of(self, group: GroupKey) -> list[tuple[str, Route]]:
        """Consumers and routes that share a group's messages."""
        return [
            (name, route) for name, routes in self.routes.items() for route in routes if key_of(route) == group
        ]

    def capacity(self) -> int:
        """How many messages all of them may have at a time."""
        return sum(route.capacity for routes in self.routes.values() for route in routes)

    def route(self, consumer: str, name: str) -> Route | None:
        return next((route for route in self.routes.get(consumer, ()) if route.name == name), None)


def key_of(route: Route) -> GroupKey:
    return route.filter.canonical if route.filter else None, route.priority
