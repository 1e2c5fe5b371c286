"""Many filters with priorities, and which of them match a message."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Generic, TypeAlias, TypeVar

from milepost.filter.compiler import Decision
from milepost.filter.demand import NO_DEMAND, Demand, Equality, demand, says_all
from milepost.filter.filter import Filter
from milepost.filter.values import value_of

__all__ = ["FilterIndex", "Handle"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Handle(Generic[T]):
    """A place in an index, which `FilterIndex.remove` takes back."""

    rank: tuple[int, tuple[int, ...], int]
    matches: Decision
    item: T
    demand: Demand


_rank = attrgetter("rank")
_Bucket: TypeAlias = list[Handle[T]]
_Table: TypeAlias = dict[tuple[type, object], _Bucket[T]]


class FilterIndex(Generic[T]):
    """Filters with a priority and an item each, found as if they were tried one by one.

    The order is from the highest priority down, and within one priority that of arrival. A filter
    that demands an equality, such as `CustomerId == 1000`, costs nothing for a message that does
    not meet it; the rest is tried in order. A message's properties are a plain dict.
    """

    def __init__(self) -> None:
        self._handles: set[Handle[T]] = set()
        self._tables: dict[str, _Table[T]] = {}
        self._rest: _Bucket[T] = []
        self._arrivals = 0

    def add(
        self, filter: Filter | None, priority: int, item: T, *, arrival: tuple[int, ...] | None = None
    ) -> Handle[T]:
        """Adds an item; None in place of a filter matches every message.

        `arrival` says where it stands within its priority, so that an item put back later keeps its place;
        without it that is behind all that were added before. Use it for all items of an index or for none.
        """
        self._arrivals += 1
        # With `region == "EU" && customer == 7` and its like, the demand that the fewest filters
        # share is the one that tells them apart.
        demanded = demand(filter.tree, self._filters_sharing) if filter else NO_DEMAND
        # A filter that is one equality need not be asked what the look-up has found already.
        certain = filter is None or (demanded and says_all(filter.tree))
        matches = _everything if filter is None or certain else filter.matches
        rank = (-priority, (self._arrivals,) if arrival is None else arrival, self._arrivals)
        handle = Handle(rank, matches, item, demanded)
        self._handles.add(handle)
        for equality in demanded:
            table = self._tables.setdefault(equality.name, {})
            insort(table.setdefault(_key(equality), []), handle, key=_rank)
        if not demanded:
            insort(self._rest, handle, key=_rank)
        return handle

    def remove(self, handle: Handle[T]) -> None:
        """Takes an item out; ValueError if it is not, or no longer, in this index."""
        if handle not in self._handles:
            raise ValueError("the handle is not, or no longer, in this index")
        self._handles.remove(handle)
        for equality in handle.demand:
            self._remove_from_table(handle, equality)
        if not handle.demand:
            _take_out(self._rest, handle)

    def first(self, properties: Mapping[str, object]) -> T | None:
        """The item of the first filter that matches, or None."""
        for handle in self._candidates(properties):
            if handle.matches(properties):
                return handle.item
        return None

    def all(self, properties: Mapping[str, object]) -> list[T]:
        """The items of all filters that match, in order."""
        return [handle.item for handle in self._candidates(properties) if handle.matches(properties)]

    def __len__(self) -> int:
        return len(self._handles)

    def _filters_sharing(self, demanded: Demand) -> int:
        return sum(len(self._bucket(equality)) for equality in demanded)

    def _bucket(self, equality: Equality) -> _Bucket[T]:
        return self._tables.get(equality.name, {}).get(_key(equality), [])

    def _remove_from_table(self, handle: Handle[T], equality: Equality) -> None:
        table = self._tables[equality.name]
        bucket = table[_key(equality)]
        _take_out(bucket, handle)
        if not bucket:
            del table[_key(equality)]
        if not table:
            del self._tables[equality.name]

    def _candidates(self, properties: Mapping[str, object]) -> Iterable[Handle[T]]:
        """All handles that may match, in order."""
        found = self._buckets_of(properties)
        if not found:
            return self._rest
        few = found[0] if len(found) == 1 else sorted(set(chain(*found)), key=_rank)
        return _interleaved(few, self._rest) if self._rest else few

    def _buckets_of(self, properties: Mapping[str, object]) -> list[_Bucket[T]]:
        found = []
        tables = self._tables
        for name in tables if len(tables) <= len(properties) else properties:
            table = tables.get(name)
            if table is None or name not in properties:
                continue
            raw = properties[name]
            kind = type(raw)
            # The usual types are spared the call.
            value = raw if kind is int or kind is str or kind is bool else value_of(raw)
            bucket = table.get((type(value), value))
            if bucket:
                found.append(bucket)
        return found


def _everything(properties: Mapping[str, object]) -> bool:
    return True


def _key(equality: Equality) -> tuple[type, object]:
    return equality.type, equality.value


def _take_out(bucket: _Bucket[T], handle: Handle[T]) -> None:
    del bucket[bisect_left(bucket, handle.rank, key=_rank)]


def _interleaved(few: _Bucket[T], many: _Bucket[T]) -> Iterator[Handle[T]]:
    start = 0
    for handle in few:
        end = bisect_left(many, handle.rank, lo=start, key=_rank)
        for position in range(start, end):
            yield many[position]
        yield handle
        start = end
    for position in range(start, len(many)):
        yield many[position]
