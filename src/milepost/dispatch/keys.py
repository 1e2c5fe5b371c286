"""The order within a key: only its lowest message that is not settled may run."""

from collections.abc import Iterator
from typing import Generic

from milepost.dispatch.delivery import STATUS_GONE, LaneEntry, M


class Strays:
    """Positions that hold their keys though they are in no chain: several of a key may be out at once."""

    __slots__ = ("_counts", "_keys")

    def __init__(self) -> None:
        self._keys: dict[int, str] = {}
        self._counts: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __contains__(self, position: int) -> bool:
        return position in self._keys

    def hold(self, key: str) -> bool:
        """Return True if a position of this key is out."""
        return key in self._counts

    def add(self, position: int, key: str) -> None:
        """Add a position that is out."""
        self._keys[position] = key
        self._counts[key] = self._counts.get(key, 0) + 1

    def drop(self, position: int) -> bool:
        """Remove a position that is no longer out; False if it was no stray."""
        key = self._keys.pop(position, None)
        if key is None:
            return False
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
        return True


class Keys(Generic[M]):
    """The entries of each key in order, and the knowledge of its rows in the store.

    A key that is not in memory is not known here: it is looked up when a message of it comes, as long as the
    lane has rows at all.
    """

    __slots__ = ("heads", "stored", "strays", "unknown")

    def __init__(self) -> None:
        self.heads: dict[str, LaneEntry[M]] = {}
        self.stored: dict[str, None] = {}
        """Keys with rows in the store that come before their new messages here."""
        self.unknown: dict[str, None] = {}
        """Keys whose rows have to be looked up before anything of them runs, in the order of asking."""
        self.strays = Strays()
        """Entries that were out when the order changed: in no chain, and their keys unknown until they end."""

    def append(self, entry: LaneEntry[M], key: str) -> bool:
        """Put an entry behind those of its key; return True if it is the first."""
        head = self.heads.get(key)
        if head is None:
            self.heads[key] = entry
            return True
        (head.last or head).next = entry
        head.last = entry
        return False

    def advance(self, entry: LaneEntry[M], key: str) -> LaneEntry[M] | None:
        """Take the first entry of its key out; return the new first one, if there is one."""
        following, last = entry.next, entry.last
        entry.next = entry.last = None
        while following is not None and following.status == STATUS_GONE:
            following = following.next
        if following is None:
            del self.heads[key]
            return None
        if last is not following:
            following.last = last
        self.heads[key] = following
        return following

    def chain(self, key: str) -> Iterator[LaneEntry[M]]:
        """Yield the entries of a key, in order."""
        entry = self.heads.get(key)
        while entry is not None:
            yield entry
            entry = entry.next

    def insert(self, entry: LaneEntry[M], key: str) -> None:
        """Put an entry where it belongs among those of its key, by position."""
        following = [each for each in self.chain(key) if each.status != STATUS_GONE]
        self.heads.pop(key, None)
        for each in sorted([entry, *following]):
            each.next = each.last = None
            self.append(each, key)

    def clear(self) -> None:
        """Forget all: every message gets its key anew."""
        self.heads.clear()
        self.stored.clear()
        self.unknown.clear()
        self.strays = Strays()

    def rebuild(self, key: str, first: list[LaneEntry[M]]) -> None:
        """Put entries before those of a key, and drop those that are gone."""
        entries = [*first, *(entry for entry in self.chain(key) if entry.status != STATUS_GONE)]
        self.heads.pop(key, None)
        for entry in entries:
            entry.next = entry.last = None
        for entry in entries:
            self.append(entry, key)
