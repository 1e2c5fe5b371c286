"""Where lanes are put by a move or a replay: reckoned from where they stand, nothing is done."""

from collections.abc import Mapping, Sequence

import msgspec

from milepost.dispatch import Cursor
from milepost.progress.control import LanePlace
from milepost.progress.standing import LaneStanding
from milepost.ranges import NOTHING, Ranges

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
    passed = _passed(to)
    places = [
        LanePlace(
            lane=lane.number,
            position=to.position,
            ahead=Ranges(to.ahead),
            leaps=passed.minus(_passed(lane.cursor)),
        )
        for lane in lanes
    ]
    return Placing(lanes=tuple(places), above=to.position, up_to=None)


def replayed(
    lanes: Sequence[LaneStanding],
    rows: RowsOfLanes,
    leaps: Mapping[int, Ranges],
    start: int,
    end: int | None,
) -> Placing:
    """Back to `start`: what was handled up to `end`, or ever, comes again; what was beyond stays done.

    `rows` are those above `start`, and `leaps` what each lane passed over: such messages come too, but they had
    not been handled.
    """
    last = end if end is not None else max((_passed(lane.cursor).last for lane in lanes), default=0)
    places = []
    for lane in lanes:
        place = _replayed(lane, start, last)
        handled = place.replay.without(rows.get(lane.number, ())).minus(leaps.get(lane.number, NOTHING))
        places.append(msgspec.structs.replace(place, replay=handled))
    return Placing(lanes=tuple(places), above=start, up_to=last)


def _replayed(lane: LaneStanding, start: int, end: int) -> LanePlace:
    done, position = _passed(lane.cursor), min(start, lane.cursor.position)
    again = done.beyond(start).up_to(end)
    return LanePlace(
        lane=lane.number,
        position=position,
        ahead=done.beyond(position).up_to(start).joined(done.beyond(end)),
        replay=lane.replay.joined(again).beyond(position),
    )


def _passed(cursor: Cursor) -> Ranges:
    """What is behind a cursor, or done ahead of it."""
    behind = Ranges([(1, cursor.position)] if cursor.position > 0 else [])
    return behind.joined(Ranges(cursor.ahead))
