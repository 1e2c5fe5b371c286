"""How members share what is queued for them: round robin, or one until it is full."""

from abc import abstractmethod
from bisect import bisect_left, insort
from collections import deque

from milepost.dispatch.delivery import Entry, M
from milepost.dispatch.group import EVERYTHING, Group
from milepost.dispatch.member import Member
from milepost.filter import Filter


class InTurn(Group[M]):
    """One queue for all members; whose turn it is gets the next entry."""

    __slots__ = ()

    @property
    def has_next(self) -> bool:
        entry = self._queue.first()
        return entry is not None and entry.position <= self._known_to and self.has_room

    def take(self) -> tuple[Entry[M], Member[M]] | None:
        if not self.has_room:
            return None
        # Mostly all is known, and then one look at the queue is enough.
        if self._known_to != EVERYTHING and not self.has_next:
            return None
        entry = self._queue.pop()
        return None if entry is None else (entry, self._whose_turn())

    def assign(self, entry: Entry[M], *, first: bool = False) -> Member[M] | None:
        if not self.has_room or (not first and (self._queue or entry.position > self._known_to)):
            return None
        return self._whose_turn()

    @abstractmethod
    def _whose_turn(self) -> Member[M]: ...


class RoundRobin(InTurn[M]):
    """Each entry to the next member with room, in the order in which they came."""

    __slots__ = ("_after", "_turn")

    def __init__(self, filter: Filter | None, priority: int, ready: deque[Group[M]]) -> None:
        super().__init__(filter, priority, ready)
        # Those with room, by rank. What follows the last one's rank is found anew each time, since members
        # come into the list and go out of it on either side.
        self._turn: list[tuple[int, int, Member[M]]] = []
        self._after = (0, 0)

    @property
    def has_room(self) -> bool:
        return bool(self._turn)

    def _whose_turn(self) -> Member[M]:
        turn = self._turn
        if len(turn) == 1:
            return turn[0][2]
        place = bisect_left(turn, self._after)
        arrival, number, member = turn[place] if place < len(turn) else turn[0]
        self._after = (arrival, number + 1)
        return member

    def gained_room(self, member: Member[M]) -> None:
        insort(self._turn, (*member.rank, member))
        self.wake()

    def lost_room(self, member: Member[M]) -> None:
        del self._turn[bisect_left(self._turn, member.rank)]

    def reorder(self) -> None:
        super().reorder()
        self._turn = [(*member.rank, member) for member in self.members if not member.full]


class DispatchToSingle(InTurn[M]):
    """All entries to one member until it is full, then to the next; who gets room again is the last."""

    __slots__ = ("_turn",)

    def __init__(self, filter: Filter | None, priority: int, ready: deque[Group[M]]) -> None:
        super().__init__(filter, priority, ready)
        self._turn: deque[Member[M]] = deque()

    @property
    def has_room(self) -> bool:
        return bool(self._turn)

    def _whose_turn(self) -> Member[M]:
        return self._turn[0]

    def gained_room(self, member: Member[M]) -> None:
        self._turn.append(member)
        self.wake()

    def lost_room(self, member: Member[M]) -> None:
        # It is the first, unless it was reconfigured or leaves.
        self._turn.remove(member)
