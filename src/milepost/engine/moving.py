"""Where lanes are put by a move or a replay: reckoned from where they stand, nothing is done."""

from collections.abc import Sequence

import msgspec

from milepost.dispatch import Cursor
from milepost.engine.past import Past, passed_by
from milepost.progress.control import LanePlace
from milepost.progress.memories import Memories
from milepost.progress.standing import LaneStanding
from milepost.ranges import NOTHING, Ranges


class Placing(msgspec.Struct, frozen=True, kw_only=True):
    """Where all lanes are put, and which rows go: those above a position, and up to another if there is one."""

    lanes: tuple[LanePlace, ...]
    memories: Memories
    """What had been handled before, of what comes again."""
    above: int
    up_to: int | None
    followers: Sequence[int] = ()
    """Rows beyond that go as well: they wait behind one that goes, and come again after it."""

    @property
    def again(self) -> Ranges:
        """What had been handled and comes again, of all lanes together."""
        found = Ranges()
        for lane in self.lanes:
            found = found.joined(lane.replay.beyond(lane.position))
        return found


def moved(lanes: Sequence[LaneStanding], memories: Memories, to: Cursor) -> Placing:
    """All lanes to one place. Rows below it stay, and so does what is known of them."""
    passed = passed_by(to)
    places = [
        LanePlace(
            lane=lane.number,
            position=to.position,
            ahead=Ranges(to.ahead),
            replay=lane.replay.up_to(to.position),
            leaps=passed.minus(passed_by(lane.cursor)),
        )
        for lane in lanes
    ]
    return Placing(lanes=tuple(places), memories=memories, above=to.position, up_to=None)


def replayed(
    lanes: Sequence[LaneStanding],
    rows: Sequence[int],
    past: Past,
    memories: Memories,
    start: int,
    end: int | None,
) -> Placing:
    """Back to `start`: what was passed up to `end`, or ever, comes again; what was beyond stays done.

    `rows` are the positions of those above `start` that are not done, and of those beyond `end` that wait behind
    one of them: such messages come too, but they had not been handled. What was passed when it had begun does not
    come. `memories` are those of replays under way.
    """
    last = end if end is not None else max((passed_by(lane.cursor).last for lane in lanes), default=0)
    handled = {of: ranges.beyond(start).up_to(last).without(rows) for of, ranges in past.handled.items()}
    followers = [position for position in rows if position > last]
    known = msgspec.structs.replace(past, handled=handled)
    return Placing(
        lanes=tuple(_replayed(lane, known, start, last, followers) for lane in lanes),
        memories={of: handled.get(of, NOTHING).joined(memories.get(of, NOTHING)) for of in {*handled, *memories}},
        above=start,
        up_to=last,
        followers=followers,
    )


def _replayed(lane: LaneStanding, past: Past, start: int, end: int, followers: Sequence[int]) -> LanePlace:
    done = passed_by(lane.cursor)
    again = done.beyond(start).up_to(end).minus(past.begun)
    stays = done.minus(again).without(followers)
    position = stays.past(0)
    return LanePlace(
        lane=lane.number,
        position=position,
        ahead=stays.beyond(position),
        replay=lane.replay.joined(again.both(past.of_lane(lane.number))),
    )
