"""The routes of a consumer: checked, named for the lane, and changed."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from milepost.dispatch import Route
from milepost.engine.checks import Check, check_storable_filter, checked, whole
from milepost.engine.declare.handler import AnyDelivery
from milepost.log.codec import check_name
from milepost.names import suggestion

_MAX_OPTION_NUMBER: Final = 2**63 - 1
_ROUTE_CHECKS: dict[str, Check[Any]] = {
    "priority": whole(-_MAX_OPTION_NUMBER, _MAX_OPTION_NUMBER),
    "capacity": whole(0, _MAX_OPTION_NUMBER),
    "capacity_bytes": whole(0, _MAX_OPTION_NUMBER),
}
ROUTE_OPTIONS: Final = ("where", *_ROUTE_CHECKS)
"""Of a consumer that has one route."""


class ConsumerRoutes:
    """Routes, each with a name that the core knows it by for as long as the consumer has it.

    By that name a route keeps its budget: one without a name of its own gets a number, which no other has had.
    """

    def __init__(self, routes: Sequence[Route], *, names: Sequence[str] = (), given: int = 0) -> None:
        self.routes = tuple(routes)
        """As its user gave them."""
        self._given = given
        self._names = [*names, *(self._name(route) for route in routes[len(names) :])]
        self._by_name = dict(zip(self._names, self.routes, strict=True))
        if len(self._by_name) < len(self._names):
            raise ValueError("each route of a consumer needs its own name")

    def _name(self, route: Route) -> str:
        if route.name is not None:
            return f"={route.name}"
        self._given += 1
        return f"#{self._given}"

    @property
    def capacity(self) -> int:
        """Of all of them."""
        return sum(route.capacity for route in self.routes)

    def named(self, most: int | None) -> list[Route]:
        """As the core knows them, with room for so many messages at most; but for one in each, if it has any."""
        share = _MAX_OPTION_NUMBER if most is None else max(1, most // len(self.routes))
        return [route.renamed(name, capacity=min(route.capacity, share)) for name, route in self._by_name.items()]

    def word_for(self, claim: AnyDelivery) -> str:
        """The name of the route that a delivery came by, or its expression."""
        route = claim.member.route if claim.member else None
        if route is None or route.name is None:
            return "everything"
        return route.name[1:] if route.name.startswith("=") else route.where or "everything"

    def configured(self, routes: Sequence[Route] | None, options: dict[str, Any]) -> "ConsumerRoutes":
        """Other routes, or of the only one other options."""
        if routes is not None:
            refuse_options_beside_routes(options)
            # Those that stay as they are, and those of the same name, go on with what they have open.
            return self._followed_by(_checked_routes(routes))
        return ConsumerRoutes([changed_route(self.routes, options)], names=self._names, given=self._given)

    def with_another(self, route: Route) -> "ConsumerRoutes":
        """One more."""
        return ConsumerRoutes([*self.routes, _checked_route(route)], names=self._names, given=self._given)

    def without(self, route: Route) -> "ConsumerRoutes":
        """One less."""
        if not isinstance(route, Route):
            raise ValueError(  # noqa: TRY004 - as with every option
                f"Route(…) is wanted, one of consumer.routes, not {route!r}"
            )
        if route not in self.routes:
            raise ValueError(f"this consumer has no route {str(route)!r}")
        if len(self.routes) == 1:
            raise ValueError("a consumer has at least one route: with a capacity of 0 it pauses, `drain` ends it")
        at = self.routes.index(route)
        routes, names = list(self.routes), list(self._names)
        del routes[at], names[at]
        return ConsumerRoutes(routes, names=names, given=self._given)

    def _followed_by(self, routes: Sequence[Route]) -> "ConsumerRoutes":
        """The new ones. Without a name, one that was there before stays the same, and so does a place."""
        unnamed = [name for name in self._names if name.startswith("#")]
        wanted, kept = set(routes), dict[Route, deque[str]]()
        free = deque[str]()
        for name in unnamed:
            known = self._by_name[name]
            (kept.setdefault(known, deque()) if known in wanted else free).append(name)
        names, given = list[str](), self._given
        for route in routes:
            if route.name is not None:
                names.append(f"={route.name}")
            elif same := kept.get(route):
                names.append(same.popleft())
            elif free:
                names.append(free.popleft())
            else:
                given += 1
                names.append(f"#{given}")
        return ConsumerRoutes(routes, names=names, given=given)


def routes_of(routes: Sequence[Route] | None, options: dict[str, Any]) -> list[Route]:
    """The routes of a consumer: those that are given, or one with these options."""
    given = {name: value for name, value in options.items() if value is not None}
    if routes is None:
        return [changed_route([Route()], given)]
    refuse_options_beside_routes(given)
    return _checked_routes(routes)


def refuse_options_beside_routes(given: Iterable[str]) -> None:
    """Beside routes there are none."""
    if names := list(given):
        raise ValueError(f"routes say it all: give {', '.join(names)} to each of them")


def changed_route(routes: Sequence[Route], options: dict[str, Any]) -> Route:
    """The only route of a consumer with other options."""
    if len(routes) != 1:
        raise ValueError("this consumer has several routes: configure it with routes=[…]")
    for name, value in options.items():
        if name not in ROUTE_OPTIONS:
            raise TypeError(f"a route has no option {name!r}{suggestion(name, ROUTE_OPTIONS)}")
        if name in _ROUTE_CHECKS:
            checked(name, _ROUTE_CHECKS[name], value)
    return _checked_route(replace(routes[0], **options))


def _checked_routes(routes: Sequence[Route]) -> list[Route]:
    if not isinstance(routes, Iterable):
        raise ValueError(f"a list of Route(…) is wanted, not {routes!r}")  # noqa: TRY004 - as with every option
    if not routes:
        raise ValueError("a consumer has at least one route; without any option it takes everything")
    return [_checked_route(route) for route in routes]


def _checked_route(route: Any) -> Route:
    if not isinstance(route, Route):
        raise ValueError(f"Route(…) is wanted, not {route!r}")  # noqa: TRY004 - as with every option
    for name, check in _ROUTE_CHECKS.items():
        checked(name, check, getattr(route, name))
    if route.name is not None:
        check_name("name", route.name)
    check_storable_filter(route.where or "")
    return route
