"""The consumers of a lane with their routes: find the group of a message and the member that gets it."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Generic, TypeAlias

from milepost.dispatch.delivery import LaneDelivery, LaneEntry, M
from milepost.dispatch.routing.groups import (
    DispatchToSingleGroup,
    RoundRobinGroup,
    RouteGroup,
)
from milepost.dispatch.routing.pinned import PinnedGroup
from milepost.dispatch.routing.route import LaneConsumer, Route, RouteMember
from milepost.filter import Filter, FilterIndex, Handle

STRATEGIES = ("round_robin", "dispatch_to_single", "pinned", "pinned_by_correlation")
"""The names of the strategies by which members of a group share its messages."""

_MakeGroup: TypeAlias = Callable[[Filter | None, int, "deque[RouteGroup[M]]"], RouteGroup[M]]
_position = attrgetter("position")


class Routes(Generic[M]):
    """Consumers with their routes, and the groups that these form, each with its queue.

    `bucket_of` returns the bucket of a message, of 1,024; the two pinned strategies need it.
    """

    def __init__(self, strategy: str, bucket_of: Callable[[M], int] | None = None) -> None:
        self.consumers: dict[str, LaneConsumer[M]] = {}
        """The consumers by name, in the order in which they came."""
        self.version = 0
        """Grows whenever a message may match another group than before."""
        self._uneven: dict[RouteGroup[M], None] = {}
        """Groups where entries may wait for one member while others have room."""
        self._make_group: _MakeGroup[M] = _group_maker(strategy, bucket_of, self._uneven)
        self._arrivals = 0
        self._index: FilterIndex[RouteGroup[M]] = FilterIndex()
        self._groups: dict[tuple[str | None, int], RouteGroup[M]] = {}
        self._handles: dict[RouteGroup[M], Handle[RouteGroup[M]]] = {}
        self._ready: deque[RouteGroup[M]] = deque()
        """Groups that may have something to take: all that have, and some that turn out not to."""
        self._full: dict[RouteGroup[M], None] = {}
        self._queued: dict[RouteGroup[M], None] = {}
        """Groups that entries were queued for since `clear`."""
        self._moved: dict[RouteGroup[M], None] = {}
        self._gone: dict[RouteGroup[M], None] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def groups(self) -> Collection[RouteGroup[M]]:
        """The groups, in the order in which they were made."""
        return self._groups.values()

    def join(self, name: str, routes: Sequence[Route]) -> LaneConsumer[M]:
        """Add a consumer; ValueError if there is one of this name, or two routes have the same name."""
        if name in self.consumers:
            raise ValueError(f"there is a consumer {name!r} already; change its routes with `configure`")
        _check_route_names(routes)
        self._arrivals += 1
        consumer: LaneConsumer[M] = LaneConsumer(name, self._arrivals)
        self.consumers[name] = consumer
        self._set_routes(consumer, routes)
        return consumer

    def configure(self, name: str, routes: Sequence[Route]) -> None:
        """Replace a consumer's routes; KeyError if there is no such consumer.

        A route keeps its budget by its name, whatever else of it changes, and the consumer keeps its place.
        """
        consumer = self.consumers[name]
        _check_route_names(routes)
        self._set_routes(consumer, routes)

    def share_by(self, strategy: str, bucket_of: Callable[[M], int] | None = None) -> None:
        """Share messages by another strategy from now on. What consumers have stays with them."""
        self._make_group = _group_maker(strategy, bucket_of, self._uneven)
        self._groups = {}
        for consumer in self.consumers.values():
            self._set_routes(consumer, [member.route for member in consumer.members.values()])

    def leave(self, name: str) -> LaneConsumer[M]:
        """Remove a consumer and return it. The caller closes its open deliveries."""
        consumer = self.consumers.pop(name)
        groups = _groups_of(consumer)
        for member in consumer.members.values():
            _detach_member(member)
        self._place(groups)
        return consumer

    def doubt(self, name: str) -> None:
        """Note that a consumer was late: others get entries that would wait for it, until it is trusted."""
        consumer = self.consumers[name]
        consumer.doubted = True
        for member in consumer.members.values():
            if member.group is not None:
                member.group.doubt(member)

    def trust(self, name: str) -> None:
        """Note that a consumer keeps up again."""
        consumer = self.consumers[name]
        consumer.doubted = False
        for member in consumer.members.values():
            if member.group is not None:
                member.group.trust(member)

    def match(self, message: M) -> RouteGroup[M] | None:
        """Return the group of a message: the highest priority that matches, of equals the one that came first."""
        return self._index.first(message.properties)

    def push(self, group: RouteGroup[M], entry: LaneEntry[M]) -> None:
        """Queue an entry that is READY for the group that it matches."""
        self._queued[group] = None
        group.push(entry)

    def take(self) -> tuple[LaneEntry[M], RouteMember[M]] | None:
        """Take out an entry for a member with room; the groups take turns.

        Before another is taken, the entry has to leave READY, and its delivery has to be `opened`.
        """
        ready = self._ready
        while ready:
            group = ready[0]
            taken = group.take()
            if taken is not None:
                ready.rotate(-1)
                return taken
            ready.popleft()
            group.listed = False
        return None

    def share(self) -> bool:
        """Let members with room have entries that wait for others of their group; True if there were any."""
        return any(group.share() for group in list(self._uneven))

    def clear(self) -> list[LaneEntry[M]]:
        """Take all entries out, in order of position, to be matched again."""
        found: dict[LaneEntry[M], None] = {}
        for group in self._queued:
            found.update(dict.fromkeys(group.clear()))
        self._queued.clear()
        return sorted(found, key=_position)

    def changes(self) -> tuple[list[RouteGroup[M]], list[RouteGroup[M]]]:
        """Return the groups that are new or have another rank, and those that are gone, since the last call."""
        moved, gone = list(self._moved), list(self._gone)
        self._moved.clear()
        self._gone.clear()
        return moved, gone

    def opened(self, delivery: LaneDelivery[M]) -> None:
        """Charge a delivery that was handed out to the member that it names."""
        member = delivery.member
        if member is None:
            return
        member.consumer.deliveries[delivery] = None
        group = member.group
        became_full = member.charge(delivery.entry.size)
        if group is None:
            return
        group.opened(delivery)
        if became_full:
            group.lost_room(member)
            self._look_for_room(group)

    def closed(self, delivery: LaneDelivery[M]) -> None:
        """Refund a delivery that is no longer open; KeyError if it was not."""
        member = delivery.member
        if member is None:
            return
        del member.consumer.deliveries[delivery]
        group = member.group
        got_room = member.refund(delivery.entry.size)
        if group is None:
            return
        group.closed(delivery)
        if got_room:
            group.gained_room(member)
            self._look_for_room(group)

    def has_next(self) -> bool:
        """Return True if `take` would find something."""
        return any(group.has_next for group in self._ready)

    def idle(self) -> bool:
        """Return True if some group has room and nothing to take."""
        return len(self._groups) - len(self._full) > sum(group.has_next for group in self._ready)

    def crowded(self) -> list[RouteGroup[M]]:
        """Return the groups that have entries and no room."""
        return [group for group in self._full if group.has_queued]

    def _set_routes(self, consumer: LaneConsumer[M], routes: Sequence[Route]) -> None:
        groups = _groups_of(consumer)
        known = {**consumer.members, **consumer.former}
        consumer.members = {}
        for name, route in zip(_route_names(routes), routes, strict=True):
            consumer.members[name] = known.pop(name) if name in known else RouteMember(consumer, route)
        consumer.former = {name: member for name, member in known.items() if member.messages}
        targets = [self._group_of(route) for route in routes]
        groups.update(dict.fromkeys(targets))
        # First all go out that do not stay, then the ranks change, then others come in: within a group no two
        # members ever have one rank.
        for member in known.values():
            _detach_member(member)
        for member, target in zip(consumer.members.values(), targets, strict=True):
            if member.group is not target:
                _detach_member(member)
        for number, member in enumerate(consumer.members.values()):
            member.rank = (consumer.arrival, number)
        for group in groups:
            group.reorder()
        for member, route, target in zip(consumer.members.values(), routes, targets, strict=True):
            _attach_member(member, route, target)
        self._place(groups)

    def _group_of(self, route: Route) -> RouteGroup[M]:
        key = _group_key(route.filter, route.priority)
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = group = self._make_group(route.filter, route.priority, self._ready)
        return group

    def _place(self, groups: Iterable[RouteGroup[M]]) -> None:
        """Put groups in the index by the rank of their first members, and take those without members out."""
        for group in groups:
            self._look_for_room(group)
            handle = self._handles.get(group)
            if handle is not None and group.members and handle.rank[1] == group.members[0].rank:
                continue
            self.version += 1
            if handle is not None:
                self._index.remove(self._handles.pop(group))
            if group.members:
                self._moved[group] = None
                self._handles[group] = self._index.add(
                    group.filter, group.priority, group, arrival=group.members[0].rank
                )
            else:
                self._forget(group)

    def _forget(self, group: RouteGroup[M]) -> None:
        key = _group_key(group.filter, group.priority)
        # By another strategy it may have a successor.
        if self._groups.get(key) is group:
            del self._groups[key]
        self._full.pop(group, None)
        self._uneven.pop(group, None)
        self._moved.pop(group, None)
        self._gone[group] = None

    def _look_for_room(self, group: RouteGroup[M]) -> None:
        if group.has_room:
            self._full.pop(group, None)
        else:
            self._full[group] = None


def _attach_member(member: RouteMember[M], route: Route, group: RouteGroup[M]) -> None:
    was_full = member.full
    member.configure(route)
    if member.group is None:
        group.add(member)
    elif was_full and not member.full:
        group.gained_room(member)
    elif member.full and not was_full:
        group.lost_room(member)


def _detach_member(member: RouteMember[M]) -> None:
    if member.group is not None:
        member.group.remove(member)


def _groups_of(consumer: LaneConsumer[M]) -> dict[RouteGroup[M], None]:
    return {member.group: None for member in consumer.members.values() if member.group is not None}


def _group_key(filter: Filter | None, priority: int) -> tuple[str | None, int]:
    return filter.canonical if filter else None, priority


def _route_names(routes: Sequence[Route]) -> list[str]:
    """Return the name of each route; one without a name has its number."""
    return [route.name or f"#{number}" for number, route in enumerate(routes, start=1)]


def _check_route_names(routes: Sequence[Route]) -> None:
    names = Counter(_route_names(routes))
    for name, number in names.items():
        if number > 1:
            raise ValueError(f"{number} routes are called {name!r}; each route of a consumer needs its own name")


def _group_maker(
    strategy: str, bucket_of: Callable[[M], int] | None, uneven: dict[RouteGroup[M], None]
) -> _MakeGroup[M]:
    if strategy not in STRATEGIES:
        raise ValueError(f"there is no strategy {strategy!r}; there are {', '.join(STRATEGIES)}")
    if strategy == "round_robin":
        return RoundRobinGroup
    if strategy == "dispatch_to_single":
        return DispatchToSingleGroup
    if bucket_of is None:
        raise ValueError(f"the strategy {strategy} needs a function `bucket_of`")
    return partial(PinnedGroup, bucket_of=bucket_of, uneven=uneven)
