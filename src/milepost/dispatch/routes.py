"""All consumers of a lane, and which of them gets a message."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Generic, TypeAlias

from milepost.dispatch.delivery import Delivery, Entry, M
from milepost.dispatch.group import EVERYTHING, Group
from milepost.dispatch.member import Consumer, Member
from milepost.dispatch.pinned import Pinned
from milepost.dispatch.route import Route
from milepost.dispatch.strategies import DispatchToSingle, RoundRobin
from milepost.filter import Filter, FilterIndex, Handle

__all__ = ["EVERYTHING", "STRATEGIES", "Consumer", "Group", "Member", "Route", "Routes"]

STRATEGIES = ("round_robin", "dispatch_to_single", "pinned", "pinned_by_correlation")
"""How the members of a group may share its messages."""

_MakeGroup: TypeAlias = Callable[[Filter | None, int, "deque[Group[M]]"], Group[M]]
_position = attrgetter("position")


class Routes(Generic[M]):
    """Consumers with their routes, the groups that these form, and what is queued for each group.

    `bucket_of` says for the two pinned strategies which of the 1,024 buckets a message is in.
    """

    def __init__(self, strategy: str, bucket_of: Callable[[M], int] | None = None) -> None:
        self.consumers: dict[str, Consumer[M]] = {}
        """By name, in the order in which they came."""
        self.version = 0
        """Grows whenever a message may match another group than before."""
        self._uneven: dict[Group[M], None] = {}
        """Groups where entries may wait for one, while others have room."""
        self._make_group: _MakeGroup[M] = _group_maker(strategy, bucket_of, self._uneven)
        self._arrivals = 0
        self._index: FilterIndex[Group[M]] = FilterIndex()
        self._groups: dict[tuple[str | None, int], Group[M]] = {}
        self._handles: dict[Group[M], Handle[Group[M]]] = {}
        self._ready: deque[Group[M]] = deque()
        """All groups that have something to take, and some that turn out not to."""
        self._full: dict[Group[M], None] = {}
        self._queued: dict[Group[M], None] = {}
        """Groups that entries were queued for since `clear`."""
        self._moved: dict[Group[M], None] = {}
        self._gone: dict[Group[M], None] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def groups(self) -> Collection[Group[M]]:
        """In the order in which they came to be."""
        return self._groups.values()

    def join(self, name: str, routes: Sequence[Route]) -> Consumer[M]:
        """Adds a consumer; ValueError if there is one of this name, or two routes have the same name."""
        if name in self.consumers:
            raise ValueError(f"there is a consumer {name!r} already; change its routes with `configure`")
        _check_names(routes)
        self._arrivals += 1
        consumer: Consumer[M] = Consumer(name, self._arrivals)
        self.consumers[name] = consumer
        self._set_routes(consumer, routes)
        return consumer

    def configure(self, name: str, routes: Sequence[Route]) -> None:
        """Replaces a consumer's routes; KeyError if there is no such consumer.

        A route keeps its budget by its name, whatever else of it changes, and the consumer keeps its place.
        """
        consumer = self.consumers[name]
        _check_names(routes)
        self._set_routes(consumer, routes)

    def share_by(self, strategy: str, bucket_of: Callable[[M], int] | None = None) -> None:
        """Share messages by another strategy from now on. What consumers have stays with them."""
        self._make_group = _group_maker(strategy, bucket_of, self._uneven)
        self._groups = {}
        for consumer in self.consumers.values():
            self._set_routes(consumer, [member.route for member in consumer.members.values()])

    def leave(self, name: str) -> Consumer[M]:
        """Takes a consumer out; what it has open is closed by the caller."""
        consumer = self.consumers.pop(name)
        groups = _groups_of(consumer)
        for member in consumer.members.values():
            _detach(member)
        self._place(groups)
        return consumer

    def doubt(self, name: str) -> None:
        """A consumer was late: others get what would wait for it, until it is trusted again."""
        consumer = self.consumers[name]
        consumer.doubted = True
        for member in consumer.members.values():
            if member.group is not None:
                member.group.doubt(member)

    def trust(self, name: str) -> None:
        """A consumer keeps up again."""
        consumer = self.consumers[name]
        consumer.doubted = False
        for member in consumer.members.values():
            if member.group is not None:
                member.group.trust(member)

    def match(self, message: M) -> Group[M] | None:
        """Whose message this is: of the highest priority that matches, whoever came first."""
        return self._index.first(message.properties)

    def push(self, group: Group[M], entry: Entry[M]) -> None:
        """Queues an entry that is READY for the group that it matches."""
        self._queued[group] = None
        group.push(entry)

    def take(self) -> tuple[Entry[M], Member[M]] | None:
        """Takes out an entry for a member with room; the groups take turns.

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
        """Lets members with room have what waits for others of their group; whether there was something."""
        return any(group.share() for group in list(self._uneven))

    def clear(self) -> list[Entry[M]]:
        """Takes all entries out, in order of position, to be matched again."""
        found: dict[Entry[M], None] = {}
        for group in self._queued:
            found.update(dict.fromkeys(group.clear()))
        self._queued.clear()
        return sorted(found, key=_position)

    def changes(self) -> tuple[list[Group[M]], list[Group[M]]]:
        """Groups that are new or have another rank, and those that are gone, since this was last asked."""
        moved, gone = list(self._moved), list(self._gone)
        self._moved.clear()
        self._gone.clear()
        return moved, gone

    def opened(self, delivery: Delivery[M]) -> None:
        """Charges a delivery that was handed out to the member that it names."""
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

    def closed(self, delivery: Delivery[M]) -> None:
        """Refunds a delivery that is no longer open; KeyError if it was not."""
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
        """Whether `take` would find something."""
        return any(group.has_next for group in self._ready)

    def idle(self) -> bool:
        """Whether some group has room and nothing to take."""
        return len(self._groups) - len(self._full) > sum(group.has_next for group in self._ready)

    def crowded(self) -> list[Group[M]]:
        """Groups that have entries and no room."""
        return [group for group in self._full if group.has_queued]

    def _set_routes(self, consumer: Consumer[M], routes: Sequence[Route]) -> None:
        groups = _groups_of(consumer)
        known = {**consumer.members, **consumer.former}
        consumer.members = {}
        for name, route in zip(_names(routes), routes, strict=True):
            consumer.members[name] = known.pop(name) if name in known else Member(consumer, route)
        consumer.former = {name: member for name, member in known.items() if member.messages}
        targets = [self._group_of(route) for route in routes]
        groups.update(dict.fromkeys(targets))
        # First all go out that do not stay, then the ranks change, then others come in: within a group no two
        # members ever have one rank.
        for member in known.values():
            _detach(member)
        for member, target in zip(consumer.members.values(), targets, strict=True):
            if member.group is not target:
                _detach(member)
        for number, member in enumerate(consumer.members.values()):
            member.rank = (consumer.arrival, number)
        for group in groups:
            group.reorder()
        for member, route, target in zip(consumer.members.values(), routes, targets, strict=True):
            _attach(member, route, target)
        self._place(groups)

    def _group_of(self, route: Route) -> Group[M]:
        key = _key(route.filter, route.priority)
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = group = self._make_group(route.filter, route.priority, self._ready)
        return group

    def _place(self, groups: Iterable[Group[M]]) -> None:
        """Puts groups in the index where their first members stand, and takes those without members out."""
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

    def _forget(self, group: Group[M]) -> None:
        key = _key(group.filter, group.priority)
        # By another strategy it may have a successor.
        if self._groups.get(key) is group:
            del self._groups[key]
        self._full.pop(group, None)
        self._uneven.pop(group, None)
        self._moved.pop(group, None)
        self._gone[group] = None

    def _look_for_room(self, group: Group[M]) -> None:
        if group.has_room:
            self._full.pop(group, None)
        else:
            self._full[group] = None


def _attach(member: Member[M], route: Route, group: Group[M]) -> None:
    was_full = member.full
    member.configure(route)
    if member.group is None:
        group.add(member)
    elif was_full and not member.full:
        group.gained_room(member)
    elif member.full and not was_full:
        group.lost_room(member)


def _detach(member: Member[M]) -> None:
    if member.group is not None:
        member.group.remove(member)


def _groups_of(consumer: Consumer[M]) -> dict[Group[M], None]:
    return {member.group: None for member in consumer.members.values() if member.group is not None}


def _key(filter: Filter | None, priority: int) -> tuple[str | None, int]:
    return filter.canonical if filter else None, priority


def _names(routes: Sequence[Route]) -> list[str]:
    """The name of each; one without has its place."""
    return [route.name or f"#{number}" for number, route in enumerate(routes, start=1)]


def _check_names(routes: Sequence[Route]) -> None:
    names = Counter(_names(routes))
    for name, number in names.items():
        if number > 1:
            raise ValueError(f"{number} routes are called {name!r}; each route of a consumer needs its own name")


def _group_maker(
    strategy: str, bucket_of: Callable[[M], int] | None, uneven: dict[Group[M], None]
) -> _MakeGroup[M]:
    if strategy not in STRATEGIES:
        raise ValueError(f"there is no strategy {strategy!r}; there are {', '.join(STRATEGIES)}")
    if strategy == "round_robin":
        return RoundRobin
    if strategy == "dispatch_to_single":
        return DispatchToSingle
    if bucket_of is None:
        raise ValueError(f"the strategy {strategy} needs a function `bucket_of`")
    return partial(Pinned, bucket_of=bucket_of, uneven=uneven)
