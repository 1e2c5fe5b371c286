"""Positions in ranges: both ends of each belong to it."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator


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
