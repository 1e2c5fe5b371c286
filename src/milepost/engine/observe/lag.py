"""How far a subscription is behind the log."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from milepost.dispatch import Cursor
from milepost.log.protocol import HeldBack, Log

PositionRanges = list[tuple[int, int]]
"""Positions, both ends of each range among them."""


class Lag(msgspec.Struct, frozen=True):
    """What of the log a subscription has not passed, by what is stored.

    A lane has passed a position when its cursor has, or when the position is settled ahead of the cursor. The
    subscription has passed it when all its lanes have; positions of other lanes, and those that the filter
    rejects, are passed as soon as everything before them is. What has a row, because it failed, waits or is
    parked, is passed too: `retrying`, `waiting`, `parked` and `unrouted` count that. So both are 0 when
    everything was handled.

    What was handled is stored at the subscription's cadence (0.2 s by default), and a lane that only passed
    messages which were not for it is stored within some two seconds. Both numbers may be behind by that much.
    """

    positions: int
    """How many positions up to the horizon it has not passed. One slow message among many counts as one."""
    seconds: float
    """The age of the first message that it has not passed, by the database's clock; 0.0 if there is none."""
    held_positions: int = 0
    """How many positions it has not passed beyond the horizon: nobody can while a transaction holds that."""
    held_seconds: float = 0.0
    """The age of the oldest transaction that holds the horizon back; 0.0 if nothing is held."""


def positions_not_passed(cursors: Iterable[Cursor], head: int) -> PositionRanges:
    """The positions up to a head that some of these cursors have not passed, in order."""
    merged: PositionRanges = []
    for low, high in sorted(gap for cursor in cursors for gap in _gaps(cursor, head)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def _gaps(cursor: Cursor, head: int) -> Iterator[tuple[int, int]]:
    low = cursor.position + 1
    for first, last in cursor.ahead:
        if low <= min(first - 1, head):
            yield low, min(first - 1, head)
        low = max(low, last + 1)
    if low <= head:
        yield low, head


def add_held_positions(lag: Lag, cursors: Iterable[Cursor], held: HeldBack) -> Lag:
    """Add what lies beyond the horizon, while somebody holds that."""
    if not held.positions:
        return lag
    low = held.horizon + 1
    positions = sum(
        last - max(first, low) + 1 for first, last in positions_not_passed(cursors, held.drawn) if last >= low
    )
    return Lag(lag.positions, lag.seconds, positions, held.seconds if positions else 0.0)


async def compute_lags(behind: Sequence[PositionRanges], log: Log) -> list[Lag]:
    """For subscriptions that have not passed these positions, the lag of each."""
    ages = await log.oldest_ages({number: ranges for number, ranges in enumerate(behind) if ranges})
    return [
        Lag(sum(high - low + 1 for low, high in ranges), ages.get(number, 0.0))
        for number, ranges in enumerate(behind)
    ]
