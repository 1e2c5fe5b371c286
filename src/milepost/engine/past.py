"""What a subscription has handled, by which definition and in which lane: from what is stored, without I/O."""

from collections.abc import Sequence
from functools import reduce

import msgspec

from milepost.dispatch import Cursor
from milepost.engine.trace.eras import eras
from milepost.progress.memories import Memories
from milepost.progress.tracing import StoredDefinition, StoredSubscription
from milepost.ranges import NOTHING, Ranges


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all that a subscription has passed."""

    begun: Ranges
    """What had been passed when it began, and has not come since."""
    handled: Memories
    """What lanes have passed, and nobody moved them past: of that, what the definition selected."""
    alike: frozenset[int]
    """The definitions that order as the newest does: their lanes are those of now."""

    def of_lane(self, lane: int) -> Ranges:
        """Where a message that is in this lane now can have been handled."""
        found = Ranges()
        for (number, its_lane), ranges in self.handled.items():
            if its_lane == lane or number not in self.alike:
                found = found.joined(ranges)
        return found


def past_of(stored: StoredSubscription) -> Past:
    """What is stored, reckoned backwards: what a definition began with was passed by those before."""
    handled: dict[tuple[int, int], Ranges] = {}
    passed = [passed_by(cursor) for cursor in stored.cursors]
    for era in eras(stored.definitions):
        if len(passed) != era.oldest.lanes:
            passed = passed[:1] * era.oldest.lanes
        for definition in era.definitions:
            begun = [passed_by(definition.begins(lane)) for lane in range(definition.lanes)]
            for lane, ranges in enumerate(passed):
                leaps = _leaps(stored, definition, lane)
                handled[definition.number, lane] = ranges.minus(begun[lane]).minus(leaps)
            passed = [ranges.both(begun[lane]) for lane, ranges in enumerate(passed)]
        # An order begins with all lanes in one place.
        passed = [reduce(Ranges.both, passed)] * len(passed)
    return Past(begun=passed[0], handled=handled, alike=frozenset(_alike(stored.definitions)))


def passed_by(cursor: Cursor) -> Ranges:
    """What is behind a cursor, or done ahead of it."""
    behind = Ranges([(1, cursor.position)] if cursor.position > 0 else [])
    return behind.joined(Ranges(cursor.ahead))


def _leaps(stored: StoredSubscription, definition: StoredDefinition, lane: int) -> Ranges:
    """What somebody moved a lane past, as far as its lanes are those of a definition."""
    orders = {each.number: (each.orders, each.lanes) for each in stored.definitions}
    found = NOTHING
    for leap in stored.leaps:
        if leap.lane == lane and orders[leap.number] == orders[definition.number]:
            found = found.joined(Ranges([(leap.low, leap.high)]))
    return found


def _alike(definitions: Sequence[StoredDefinition]) -> list[int]:
    newest = definitions[-1]
    return [each.number for each in definitions if (each.orders, each.lanes) == (newest.orders, newest.lanes)]
