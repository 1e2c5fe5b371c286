"""Entries to hand out, the lowest position first."""

from collections import deque
from heapq import heappop, heappush
from itertools import chain
from typing import Generic

from milepost.dispatch.delivery import STATUS_OPEN, STATUS_READY, LaneEntry, M


class Queue(Generic[M]):
    """Entries in order of position.

    Nearly all arrive in order and cost an append. Entries that a settled message of their key freed, or that come
    back, go to a heap. An entry that is no longer READY is passed over, so that taking one out costs nothing.
    """

    __slots__ = ("_in_order", "_late")

    def __init__(self) -> None:
        self._in_order: deque[LaneEntry[M]] = deque()
        self._late: list[tuple[int, LaneEntry[M]]] = []

    def push(self, entry: LaneEntry[M]) -> None:
        in_order = self._in_order
        if not in_order or in_order[-1].position < entry.position:
            in_order.append(entry)
        else:
            heappush(self._late, (entry.position, entry))

    def push_all(self, entries: list[LaneEntry[M]]) -> None:
        """Push several entries, in order of position."""
        if not self._in_order or (entries and self._in_order[-1].position < entries[0].position):
            self._in_order.extend(entries)
        else:
            for entry in entries:
                self.push(entry)

    def first(self) -> LaneEntry[M] | None:
        """Return the next entry, which stays in the queue."""
        in_order, late = self._in_order, self._late
        while in_order and in_order[0].status != STATUS_READY:
            in_order.popleft()
        while late and late[0][1].status != STATUS_READY:
            heappop(late)
        if late and (not in_order or late[0][0] < in_order[0].position):
            return late[0][1]
        return in_order[0] if in_order else None

    def pop(self) -> LaneEntry[M] | None:
        """Take the next entry out."""
        entry = self.first()
        if entry is not None:
            if self._in_order and self._in_order[0] is entry:
                self._in_order.popleft()
            else:
                heappop(self._late)
        return entry

    def take(self, limit: int) -> list[LaneEntry[M]]:
        """Take the next entries out, at most `limit`, to be handed out: they become OPEN.

        An entry that left READY and came back may be in the queue twice.
        """
        found: list[LaneEntry[M]] = []
        in_order, late = self._in_order, self._late
        left = limit
        while left > 0 and (late or in_order):
            entry = self.pop() if late else in_order.popleft()
            if entry is not None and entry.status == STATUS_READY:
                entry.status = STATUS_OPEN
                found.append(entry)
                left -= 1
        return found

    def all(self) -> set[LaneEntry[M]]:
        """Return all READY entries, which stay in the queue."""
        entries = chain(self._in_order, (entry for _, entry in self._late))
        return {entry for entry in entries if entry.status == STATUS_READY}

    def clear(self) -> list[LaneEntry[M]]:
        """Take all entries out, in order of position."""
        found = []
        while (entry := self.pop()) is not None:
            found.append(entry)
        return found

    def __len__(self) -> int:
        """Number of entries, including those that left READY and were not passed over yet."""
        return len(self._in_order) + len(self._late) if self.first() is not None else 0

    def __bool__(self) -> bool:
        return self.first() is not None
