"""Which message of a key may run: the lowest that is not settled."""

from collections.abc import Iterator
from typing import Generic

from milepost.dispatch.delivery import GONE, Entry, M


class Strays:
    """Positions that hold their keys, though they are in no chain: several of a key may be out at once."""

    __slots__ = ("_counts", "_keys")

    def __init__(self) -> None:
        self._keys: dict[int, str] = {}
        self._counts: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __contains__(self, position: int) -> bool:
        return position in self._keys

    def hold(self, key: str) -> bool:
        """Whether one of this key is out."""
        return key in self._counts

    def add(self, position: int, key: str) -> None:
        """One is out."""
        self._keys[position] = key
        self._counts[key] = self._counts.get(key, 0) + 1

    def drop(self, position: int) -> bool:
        """It is out no longer; False if it was no stray."""
        key = self._keys.pop(position, None)
        if key is None:
            return False
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
        return True


class Keys(Generic[M]):
    """The entries of each key in order, and what is known of its rows in the store.

    A key that is not in memory is not known here: it is looked up when a message of it comes, as long as the
    lane has rows at all.
    """

    __slots__ = ("heads", "stored", "strays", "unknown")

    def __init__(self) -> None:
        self.heads: dict[str, Entry[M]] = {}
        self.stored: dict[str, None] = {}
        """Keys with rows in the store that come before their new messages here."""
        self.unknown: dict[str, None] = {}
        """Keys whose rows have to be looked up before anything of them runs, in the order of asking."""
        self.strays = Strays()
        """What was out when the order changed: it is in no chain, and its key is unknown as long as it is out."""

    def append(self, entry: Entry[M], key: str) -> bool:
        """Puts an entry behind those of its key; whether it is the first."""
        head = self.heads.get(key)
        if head is None:
            self.heads[key] = entry
            return True
        (head.last or head).next = entry
        head.last = entry
        return False

    def advance(self, entry: Entry[M], key: str) -> Entry[M] | None:
        """Takes the first entry of its key out; the new first one, if there is one."""
        following, last = entry.next, entry.last
        entry.next = entry.last = None
        while following is not None and following.place == GONE:
            following = following.next
        if following is None:
            del self.heads[key]
            return None
        if last is not following:
            following.last = last
        self.heads[key] = following
        return following

    def chain(self, key: str) -> Iterator[Entry[M]]:
        """The entries of a key, in order."""
        entry = self.heads.get(key)
        while entry is not None:
            yield entry
            entry = entry.next

    def insert(self, entry: Entry[M], key: str) -> None:
        """Puts an entry where it belongs among those of its key, by position."""
        following = [each for each in self.chain(key) if each.place != GONE]
        self.heads.pop(key, None)
        for each in sorted([entry, *following]):
            each.next = each.last = None
            self.append(each, key)

    def clear(self) -> None:
        """Forgets all: every message gets its key anew."""
        self.heads.clear()
        self.stored.clear()
        self.unknown.clear()
        self.strays = Strays()

    def rebuild(self, key: str, first: list[Entry[M]]) -> None:
        """Puts entries before those of a key, and drops those that are gone."""
        entries = [*first, *(entry for entry in self.chain(key) if entry.place != GONE)]
        self.heads.pop(key, None)
        for entry in entries:
            entry.next = entry.last = None
        for entry in entries:
            self.append(entry, key)
