"""The messages that a lane has taken from the log and not settled, and how far its cursor may move."""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Generic

from milepost.dispatch.delivery import LaneEntry, M
from milepost.dispatch.exchange import Cursor
from milepost.ranges import Ranges


class Window(Generic[M]):
    """The messages that are taken and have neither been settled nor got a row, in order of position.

    All other positions up to `reach` are done or have a row: those that the filter rejected, those of other
    lanes, those that were settled. Cursor and `ahead` are therefore derived from the entries, and a million
    rejected messages cost nothing.
    """

    __slots__ = ("_done", "entries", "reach")

    reach: int
    """The position up to which everything has been taken."""

    def __init__(self, cursor: Cursor) -> None:
        self._done = Ranges(cursor.ahead)
        self.entries: dict[int, LaneEntry[M]] = {}
        self.reached(cursor.position)

    @property
    def some_done(self) -> bool:
        """True if positions beyond `reach` were passed before this owner came."""
        return bool(self._done)

    def is_done(self, position: int) -> bool:
        """Return True if a position was passed before this owner came."""
        return position in self._done

    def reached(self, position: int) -> None:
        """Note that everything up to a position has been taken, with what follows and is done already."""
        self.reach = self._done.past(position)
        if self._done:
            self._done = self._done.beyond(self.reach)

    def rewind(self, position: int, done: Ranges) -> None:
        """Go back to a position: messages above it are to be taken again, but for those that are done."""
        self._done = self._done.joined(done).beyond(position)
        self.reached(position)

    @property
    def low(self) -> int:
        """The position of the cursor, without its ranges."""
        return next(iter(self.entries), self.reach + 1) - 1

    @property
    def passes_last(self) -> bool:
        """True if positions were passed after the last message that is open."""
        return next(reversed(self.entries), self.reach) < self.reach

    def cursor(self, passing: Collection[int] = ()) -> Cursor:
        """Return the cursor once the messages at `passing` are passed as well."""
        unsettled = [position for position in self.entries if position not in passing]
        if not unsettled:
            return Cursor(self.reach, tuple(self._done))
        ahead = [(low + 1, high - 1) for low, high in pairwise(unsettled) if high - low > 1]
        if unsettled[-1] < self.reach:
            ahead.append((unsettled[-1] + 1, self.reach))
        return Cursor(unsettled[0] - 1, (*ahead, *self._done))


def check_page_fits(messages: Sequence[M], keys: Sequence[str] | None, up_to: int, *, ordered: bool) -> None:
    """Refuse a page that would lose a message or hand one out twice: ValueError."""
    if ordered is (keys is None) or (keys is not None and len(keys) != len(messages)):
        raise ValueError("with an order every message has a key, without one none has")
    if messages and messages[-1].position > up_to:
        raise ValueError(f"position {messages[-1].position} is beyond {up_to}, the end of the page")
