"""Groups of routes with equal filter and priority, and the strategies that share one queue among their members."""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import deque
from operator import attrgetter
from typing import Generic

from milepost.dispatch.delivery import LaneDelivery, LaneEntry, M
from milepost.dispatch.queue import Queue
from milepost.dispatch.routing.route import RouteMember
from milepost.filter import Filter
from milepost.names import MAX_POSITION_NUMBER

_rank = attrgetter("rank")


class RouteGroup(ABC, Generic[M]):
    """A queue of entries and the members that share them. The subclass is the strategy.

    A group adds itself to `ready` when there may be something to take.
    """

    __slots__ = ("_known_to", "_queue", "_ready", "filter", "label", "listed", "members", "priority")

    def __init__(self, filter: Filter | None, priority: int, ready: "deque[RouteGroup[M]]") -> None:
        self.filter = filter
        self.priority = priority
        # No filter can be written as an asterisk.
        self.label = f"{priority}: {filter.canonical if filter else '*'}"
        """The priority and the canonical filter, which together no other group has."""
        self.members: list[RouteMember[M]] = []
        """The members, in the order of their ranks."""
        self.listed = False
        """True if it is in `ready`."""
        self._ready = ready
        self._queue: Queue[M] = Queue()
        self._known_to = MAX_POSITION_NUMBER

    @property
    def known_to(self) -> int:
        """Entries above this position are not taken yet. Defaults to MAX_POSITION_NUMBER: all are known."""
        return self._known_to

    @known_to.setter
    def known_to(self, position: int) -> None:
        self._known_to = position
        self.wake()

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """True if any member has room."""

    @property
    def has_queued(self) -> bool:
        """True if entries wait here, for room or beyond `known_to`."""
        return bool(self._queue)

    @property
    @abstractmethod
    def has_next(self) -> bool:
        """True if `take` would find something."""

    @abstractmethod
    def take(self) -> tuple[LaneEntry[M], RouteMember[M]] | None:
        """Take out the lowest entry that a member has room for; return both."""

    @abstractmethod
    def assign(self, entry: LaneEntry[M], *, first: bool = False) -> RouteMember[M] | None:
        """Return the member that gets a new entry at once; None if it has to be queued.

        With `first` it goes before entries that are queued and rows that are not known yet.
        """

    @property
    def free(self) -> int:
        """Number of entries that it could hand out beside those that it has and may hand out."""
        room = sum(member.route.capacity - member.messages for member in self.members if not member.full)
        return max(0, room - self._at_hand())

    def _at_hand(self) -> int:
        # What is queued beyond `known_to` waits for what is before it, and takes no room from that.
        return len(self._queue) if self.has_next else 0

    def push(self, entry: LaneEntry[M]) -> None:
        """Queue an entry that is READY."""
        self._queue.push(entry)
        if not self.listed:
            self.wake()

    def clear(self) -> list[LaneEntry[M]]:
        """Take all entries out, in order of position."""
        # One that left READY and came back may be in the queue twice.
        return list(dict.fromkeys(self._queue.clear()))

    def wake(self) -> None:
        """Note that there may be something to take."""
        if not self.listed:
            self.listed = True
            self._ready.append(self)

    def add(self, member: RouteMember[M]) -> None:
        insort(self.members, member, key=_rank)
        member.group = self
        if not member.full:
            self.gained_room(member)

    def remove(self, member: RouteMember[M]) -> None:
        self.members.remove(member)
        member.group = None
        if not member.full:
            self.lost_room(member)

    def reorder(self) -> None:
        """Sort the members anew after their ranks changed."""
        self.members.sort(key=_rank)

    @abstractmethod
    def gained_room(self, member: RouteMember[M]) -> None:
        """Note that a member gets more from now on."""

    @abstractmethod
    def lost_room(self, member: RouteMember[M]) -> None:
        """Note that a member gets no more for now."""

    # Only the pinned strategies count what is open, and say whose an entry is before there is room for it.

    def opened(self, delivery: LaneDelivery[M]) -> None:
        """Note that a delivery was handed out."""

    def closed(self, delivery: LaneDelivery[M]) -> None:
        """Note that a delivery is no longer open."""

    def doubt(self, member: RouteMember[M]) -> None:
        """Note that a member was late: others get the entries that would wait for it."""

    def trust(self, member: RouteMember[M]) -> None:
        """Note that a member keeps up again."""

    def share(self) -> bool:
        """Let members with room have entries that wait for full ones; return True if there were any."""
        return False


class SharedQueueGroup(RouteGroup[M]):
    """One queue for all members: they take turns, and the next entry goes to the member whose turn it is."""

    __slots__ = ()

    @property
    def has_next(self) -> bool:
        entry = self._queue.first()
        return entry is not None and entry.position <= self._known_to and self.has_room

    def take(self) -> tuple[LaneEntry[M], RouteMember[M]] | None:
        if not self.has_room:
            return None
        # Mostly all is known, and then one look at the queue is enough.
        if self._known_to != MAX_POSITION_NUMBER and not self.has_next:
            return None
        entry = self._queue.pop()
        return None if entry is None else (entry, self._whose_turn())

    def assign(self, entry: LaneEntry[M], *, first: bool = False) -> RouteMember[M] | None:
        if not self.has_room or (not first and (self._queue or entry.position > self._known_to)):
            return None
        return self._whose_turn()

    @abstractmethod
    def _whose_turn(self) -> RouteMember[M]: ...


class RoundRobinGroup(SharedQueueGroup[M]):
    """The strategy "round_robin": each entry to the next member with room, by rank."""

    __slots__ = ("_after", "_turn")

    def __init__(self, filter: Filter | None, priority: int, ready: deque[RouteGroup[M]]) -> None:
        super().__init__(filter, priority, ready)
        # Those with room, by rank. What follows the last one's rank is found anew each time, since members
        # come into the list and go out of it on either side.
        self._turn: list[tuple[int, int, RouteMember[M]]] = []
        self._after = (0, 0)

    @property
    def has_room(self) -> bool:
        return bool(self._turn)

    def _whose_turn(self) -> RouteMember[M]:
        turn = self._turn
        if len(turn) == 1:
            return turn[0][2]
        place = bisect_left(turn, self._after)
        arrival, number, member = turn[place] if place < len(turn) else turn[0]
        self._after = (arrival, number + 1)
        return member

    def gained_room(self, member: RouteMember[M]) -> None:
        insort(self._turn, (*member.rank, member))
        self.wake()

    def lost_room(self, member: RouteMember[M]) -> None:
        del self._turn[bisect_left(self._turn, member.rank)]

    def reorder(self) -> None:
        super().reorder()
        self._turn = [(*member.rank, member) for member in self.members if not member.full]


class DispatchToSingleGroup(SharedQueueGroup[M]):
    """The strategy "dispatch_to_single": all entries to one member until it is full, then to the next.

    A member that gets room again is the last in turn.
    """

    __slots__ = ("_turn",)

    def __init__(self, filter: Filter | None, priority: int, ready: deque[RouteGroup[M]]) -> None:
        super().__init__(filter, priority, ready)
        self._turn: deque[RouteMember[M]] = deque()

    @property
    def has_room(self) -> bool:
        return bool(self._turn)

    def _whose_turn(self) -> RouteMember[M]:
        return self._turn[0]

    def gained_room(self, member: RouteMember[M]) -> None:
        self._turn.append(member)
        self.wake()

    def lost_room(self, member: RouteMember[M]) -> None:
        # It is the first, unless it was reconfigured or leaves.
        self._turn.remove(member)
