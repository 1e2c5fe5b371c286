"""Members with equal filter and priority, which are one route."""

from abc import ABC, abstractmethod
from bisect import insort
from collections import deque
from operator import attrgetter
from typing import Final, Generic

from milepost.dispatch.delivery import Delivery, Entry, M
from milepost.dispatch.member import Member
from milepost.dispatch.queue import Queue
from milepost.filter import Filter

EVERYTHING: Final = 2**63 - 1
"""The highest position."""

_rank = attrgetter("rank")


class Group(ABC, Generic[M]):
    """A queue, and the members that share what is in it; a strategy says how.

    `ready` is where it puts itself when there may be something to take.
    """

    __slots__ = ("_known_to", "_queue", "_ready", "filter", "label", "listed", "members", "priority")

    def __init__(self, filter: Filter | None, priority: int, ready: "deque[Group[M]]") -> None:
        self.filter = filter
        self.priority = priority
        # No filter can be written as an asterisk.
        self.label = f"{priority}: {filter.canonical if filter else '*'}"
        """The canonical filter and the priority, which no other group has both of."""
        self.members: list[Member[M]] = []
        """In the order in which they came."""
        self.listed = False
        """Whether it is in `ready`."""
        self._ready = ready
        self._queue: Queue[M] = Queue()
        self._known_to = EVERYTHING

    @property
    def known_to(self) -> int:
        """Entries above this position are not taken yet. Defaults to EVERYTHING."""
        return self._known_to

    @known_to.setter
    def known_to(self, position: int) -> None:
        self._known_to = position
        self.wake()

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether any member has."""

    @property
    def has_queued(self) -> bool:
        """Whether entries wait here, for room or for being known."""
        return bool(self._queue)

    @property
    @abstractmethod
    def has_next(self) -> bool:
        """Whether `take` would find something."""

    @abstractmethod
    def take(self) -> tuple[Entry[M], Member[M]] | None:
        """Takes out the lowest entry that a member has room for, and says which."""

    @abstractmethod
    def assign(self, entry: Entry[M], *, first: bool = False) -> Member[M] | None:
        """Who gets a new entry at once; None if it has to be queued.

        With `first` it goes before what is queued and what is not known yet.
        """

    @property
    def free(self) -> int:
        """How many more entries it could hand out, beside those that it has and may hand out."""
        room = sum(member.route.capacity - member.messages for member in self.members if not member.full)
        return max(0, room - self._at_hand())

    def _at_hand(self) -> int:
        # What is queued beyond `known_to` waits for what is before it, and takes no room from that.
        return len(self._queue) if self.has_next else 0

    def push(self, entry: Entry[M]) -> None:
        """Queues an entry that is READY."""
        self._queue.push(entry)
        if not self.listed:
            self.wake()

    def clear(self) -> list[Entry[M]]:
        """Takes all entries out, in order of position."""
        # One that left READY and came back may be in the queue twice.
        return list(dict.fromkeys(self._queue.clear()))

    def wake(self) -> None:
        """Says that there may be something to take."""
        if not self.listed:
            self.listed = True
            self._ready.append(self)

    def add(self, member: Member[M]) -> None:
        insort(self.members, member, key=_rank)
        member.group = self
        if not member.full:
            self.gained_room(member)

    def remove(self, member: Member[M]) -> None:
        self.members.remove(member)
        member.group = None
        if not member.full:
            self.lost_room(member)

    def reorder(self) -> None:
        """Follows a change of the members' ranks."""
        self.members.sort(key=_rank)

    @abstractmethod
    def gained_room(self, member: Member[M]) -> None:
        """Follows a member that gets more from now on."""

    @abstractmethod
    def lost_room(self, member: Member[M]) -> None:
        """Follows a member that gets no more for now."""

    # Not every strategy counts what is open, or says whose an entry is before there is room for it.

    def opened(self, delivery: Delivery[M]) -> None:
        """Follows a delivery that was handed out."""

    def closed(self, delivery: Delivery[M]) -> None:
        """Follows a delivery that is no longer open."""

    def doubt(self, member: Member[M]) -> None:
        """Follows a member that was late: others get what would wait for it."""

    def trust(self, member: Member[M]) -> None:
        """Follows a member that keeps up again."""

    def share(self) -> bool:
        """Lets members with room have what waits for those without; returns whether there was something."""
        return False
