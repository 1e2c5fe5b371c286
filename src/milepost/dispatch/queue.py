"""Entries to hand out, the lowest position first."""

from collections import deque
from heapq import heappop, heappush
from itertools import chain
from typing import Generic

from milepost.dispatch.delivery import OPEN, READY, Entry, M


class Queue(Generic[M]):
    """Entries in order of position.

    Nearly all arrive in order and cost an append; those that a settled message of their key freed, or that come
    back, go to a heap. An entry that is no longer READY is passed over, so that taking one out costs nothing.
    """

    __slots__ = ("_in_order", "_late")

    def __init__(self) -> None:
        self._in_order: deque[Entry[M]] = deque()
        self._late: list[tuple[int, Entry[M]]] = []

    def push(self, entry: Entry[M]) -> None:
        in_order = self._in_order
        if not in_order or in_order[-1].position < entry.position:
            in_order.append(entry)
        else:
            heappush(self._late, (entry.position, entry))

    def push_all(self, entries: list[Entry[M]]) -> None:
        """Several, in order."""
        if not self._in_order or (entries and self._in_order[-1].position < entries[0].position):
            self._in_order.extend(entries)
        else:
            for entry in entries:
                self.push(entry)

    def first(self) -> Entry[M] | None:
        """The next one, which stays."""
        in_order, late = self._in_order, self._late
        while in_order and in_order[0].place != READY:
            in_order.popleft()
        while late and late[0][1].place != READY:
            heappop(late)
        if late and (not in_order or late[0][0] < in_order[0].position):
            return late[0][1]
        return in_order[0] if in_order else None

    def pop(self) -> Entry[M] | None:
        """Takes the next one out."""
        entry = self.first()
        if entry is not None:
            if self._in_order and self._in_order[0] is entry:
                self._in_order.popleft()
            else:
                heappop(self._late)
        return entry

    def take(self, limit: int) -> list[Entry[M]]:
        """Takes the next ones out, at most so many, to be handed out: they are OPEN.

        One that left READY and came back may be in here twice.
        """
        found: list[Entry[M]] = []
        in_order, late = self._in_order, self._late
        left = limit
        while left > 0 and (late or in_order):
            entry = self.pop() if late else in_order.popleft()
            if entry is not None and entry.place == READY:
                entry.place = OPEN
                found.append(entry)
                left -= 1
        return found

    def all(self) -> set[Entry[M]]:
        """All that are in it, and stay."""
        entries = chain(self._in_order, (entry for _, entry in self._late))
        return {entry for entry in entries if entry.place == READY}

    def clear(self) -> list[Entry[M]]:
        """Takes all out, in order."""
        found = []
        while (entry := self.pop()) is not None:
            found.append(entry)
        return found

    def __len__(self) -> int:
        """How many there are, with those that were withdrawn and not come upon yet."""
        return len(self._in_order) + len(self._late) if self.first() is not None else 0

    def __bool__(self) -> bool:
        return self.first() is not None
