"""Where lanes are put by a move or a replay: reckoned from where they stand, nothing is done."""

from collections.abc import Mapping, Sequence

import msgspec

from milepost.dispatch import Cursor
from milepost.progress.control import LanePlace
from milepost.progress.standing import LaneStanding
from milepost.ranges import Ranges

RowsOfLanes = Mapping[int, Sequence[int]]
"""For each lane that has some, the positions of its rows, in order."""


class Placing(msgspec.Struct, frozen=True, kw_only=True):
    """Where all lanes are put, and which rows go: those above a position, and up to another if there is one."""

    lanes: tuple[LanePlace, ...]
    above: int
    up_to: int | None

    @property
    def again(self) -> Ranges:
        """What had been handled and comes again, of all lanes together."""
        found = Ranges()
        for lane in self.lanes:
            found = found.joined(lane.replay)
        return found


def moved(lanes: Sequence[LaneStanding], to: Cursor) -> Placing:
    """All lanes to one place. Rows below it stay."""
    return Placing(
        lanes=tuple(
            LanePlace(
                lane=lane.number,
                position=to.position,
                ahead=Ranges(to.ahead),
                leap=(lane.cursor.position + 1, to.position) if lane.cursor.position < to.position else None,
            )
            for lane in lanes
        ),
        above=to.position,
        up_to=None,
    )


def replayed(lanes: Sequence[LaneStanding], rows: RowsOfLanes, start: int, end: int | None) -> Placing:
    """Back to `start`: what was handled up to `end`, or ever, comes again; what was beyond stays done.

    `rows` are those above `start`: their messages come too, but they had not been handled.
    """
    last = end if end is not None else max((_done(lane).last for lane in lanes), default=0)
    places = [_replayed(lane, rows.get(lane.number, ()), start, last) for lane in lanes]
    return Placing(lanes=tuple(places), above=start, up_to=last)


def _replayed(lane: LaneStanding, rows: Sequence[int], start: int, end: int) -> LanePlace:
    done, position = _done(lane), min(start, lane.cursor.position)
    again = done.beyond(start).up_to(end)
    return LanePlace(
        lane=lane.number,
        position=position,
        ahead=done.beyond(position).up_to(start).joined(done.beyond(end)),
        replay=lane.replay.joined(again).beyond(position).without(rows),
    )


def _done(lane: LaneStanding) -> Ranges:
    """What a lane has passed."""
    passed = Ranges([(1, lane.cursor.position)] if lane.cursor.position > 0 else [])
    return passed.joined(Ranges(lane.cursor.ahead))
