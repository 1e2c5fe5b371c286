"""Positions in ranges: both ends of each belong to it."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from milepost.names import MAX_POSITION_NUMBER


class Ranges:
    """Positions in a few ranges that do not overlap, in order."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        pairs = list(ranges)
        self._starts = [start for start, _ in pairs]
        self._ends = [end for _, end in pairs]

    def up_to(self, position: int) -> "Ranges":
        """What of them lies at or below a position."""
        return Ranges((start, min(end, position)) for start, end in self if start <= position)

    def beyond(self, position: int) -> "Ranges":
        """What of them lies above a position."""
        return Ranges((max(start, position + 1), end) for start, end in self if end > position)

    def past(self, position: int) -> int:
        """The end of the range that the next position belongs to, or the position itself."""
        place = bisect_right(self._starts, position + 1) - 1
        return max(position, self._ends[place]) if place >= 0 else position

    def __contains__(self, position: int) -> bool:
        place = bisect_right(self._starts, position) - 1
        return place >= 0 and position <= self._ends[place]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Ranges({list(self)!r})"

    @property
    def size(self) -> int:
        """How many positions that is."""
        return sum(end - start + 1 for start, end in self)

    @property
    def last(self) -> int:
        """The highest of them; 0 if there is none."""
        return self._ends[-1] if self._ends else 0

    def joined(self, other: "Ranges") -> "Ranges":
        """What is in one of both."""
        pairs: list[tuple[int, int]] = []
        for start, end in sorted([*self, *other]):
            if pairs and start <= pairs[-1][1] + 1:
                pairs[-1] = (pairs[-1][0], max(pairs[-1][1], end))
            else:
                pairs.append((start, end))
        return Ranges(pairs)

    def minus(self, other: "Ranges") -> "Ranges":
        """What is in these and not in the other ones."""
        pairs: list[tuple[int, int]] = []
        for start, end in self:
            after = start
            for low, high in other.beyond(start - 1).up_to(end):
                if after < low:
                    pairs.append((after, low - 1))
                after = high + 1
            if after <= end:
                pairs.append((after, end))
        return Ranges(pairs)

    def both(self, other: "Ranges") -> "Ranges":
        """What is in these and in the other ones."""
        return self.minus(self.minus(other))

    def without(self, positions: Iterable[int]) -> "Ranges":
        """All but these positions, which come in order."""
        pairs, rest = [], list(self)[::-1]
        for position in positions:
            while rest and rest[-1][1] < position:
                pairs.append(rest.pop())
            if rest and rest[-1][0] <= position:
                start, end = rest.pop()
                if start < position:
                    pairs.append((start, position - 1))
                if position < end:
                    rest.append((position + 1, end))
        return Ranges([*pairs, *reversed(rest)])


NO_POSITIONS = Ranges()
"""No position at all."""
ALL_POSITIONS = Ranges([(1, MAX_POSITION_NUMBER)])
"""Every position that there can be."""
