"""What people do to subscriptions whose progress is in PostgreSQL."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from milepost.dispatch import Cursor
from milepost.log.database import Database
from milepost.log.since import Since
from milepost.log.statements import Statements
from milepost.progress.deadlocks import despite_deadlocks
from milepost.progress.memories import Memories
from milepost.progress.refusals import of_this_life
from milepost.progress.tracing import ranges_of
from milepost.ranges import NOTHING, Ranges

STANDS = timedelta(seconds=10)
"""How long a barrier stands by itself: whoever set it sets it again, or is gone."""


class LanePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a lane is put."""

    lane: int
    position: int
    ahead: Ranges = NOTHING
    replay: Ranges = NOTHING
    """What comes again on purpose."""
    leaps: Ranges = NOTHING
    """What is passed over."""


class PostgresControl:
    """Actions, each a transaction that its workers are told of."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database.within(None)
        self._statements = Statements(schema, "milepost.progress")

    async def set_status(self, subscription: int, status: str) -> bool:
        """`running` or `paused`; whether it was otherwise."""
        parameters = {"subscription": subscription, "status": status}
        rows = await self._database.execute(self._statements.get("set_status"), parameters)
        return bool(rows[0][0])

    async def set_limits(self, subscription: int, limits: Mapping[str, int | None]) -> None:
        """What operators set beside what the code says; None takes it back."""
        parameters = {"subscription": subscription, "limits": msgspec.json.encode(limits).decode()}
        await self._database.execute(self._statements.get("set_limits"), parameters)

    async def set_barrier(self, subscription: int, barrier: str) -> str:
        """Nothing may run for a while; whose barrier stands, which may be another's."""
        parameters = {"subscription": subscription, "barrier": barrier, "during": STANDS}
        rows = await self._database.execute(self._statements.get("set_barrier"), parameters)
        stands: str = rows[0][0]
        return stands

    async def take_back(self, subscription: int) -> None:
        """Have everything that is out given back at once, while nothing may run."""
        parameters = {"subscription": subscription}
        await despite_deadlocks(lambda: self._database.execute(self._statements.get("take_back"), parameters))

    async def yield_barrier(self, subscription: int, barrier: str) -> None:
        """Let all go on until what runs now has ended, while the barrier stands: others may set none."""
        parameters = {"subscription": subscription, "barrier": barrier, "during": STANDS}
        await self._database.execute(self._statements.get("yield_barrier"), parameters)

    async def waits(self, subscription: int) -> bool:
        """Return True while something still runs that ran when the barrier yielded."""
        rows = await self._database.execute(self._statements.get("waits"), {"subscription": subscription})
        return bool(rows[0][0])

    async def lift_barrier(self, subscription: int, barrier: str) -> None:
        """All may go on."""
        parameters = {"subscription": subscription, "barrier": barrier}
        await self._database.execute(self._statements.get("lift_barrier"), parameters)

    async def place(
        self,
        subscription: int,
        barrier: str,
        stood: Sequence[Cursor],
        lanes: Sequence[LanePlace],
        memories: Memories,
        *,
        life: UUID | None,
        above: int,
        up_to: int | None,
        followers: Sequence[int],
        since: Since | None,
    ) -> int | None:
        """Puts lanes elsewhere behind a barrier, and lifts it; None if it does not stand any more.

        `stood` is where the lanes were when this was reckoned: None also if they are not there now.
        Rows above a position and up to another are removed, and so are `followers`; returns how many. Raises
        `AnotherLife` unless the server has the life in which this was reckoned.
        """
        parameters = {
            "subscription": subscription,
            "life": life,
            "barrier": barrier,
            "stood": msgspec.json.encode(
                [[cursor.position for cursor in stood], [_flat(Ranges(cursor.ahead)) for cursor in stood]]
            ).decode(),
            "lanes": msgspec.json.encode([_as_json(lane) for lane in lanes]).decode(),
            "memories": msgspec.json.encode(
                [
                    {"number": number, "lane": lane, "ranges": _flat(ranges)}
                    for (number, lane), ranges in memories.items()
                    if ranges
                ]
            ).decode(),
            "above": above,
            "up_to": up_to,
            "followers": list(followers),
            "since": None if since is None else since.time,
            "since_above": 0 if since is None else since.above,
        }
        with of_this_life():
            rows = await self._database.execute(self._statements.get("place_lanes"), parameters)
        removed: int | None = rows[0][0]
        return removed

    async def delete(self, subscription: int, barrier: str) -> bool:
        """Forgets it, behind a barrier; False if that does not stand any more."""
        parameters = {"subscription": subscription, "barrier": barrier}
        rows = await self._database.execute(self._statements.get("delete_subscription"), parameters)
        return bool(rows[0][0])

    async def rows_between(self, subscription: int, above: int, up_to: int | None) -> list[tuple[int, int, str]]:
        """Position, lane and state of the rows above a position and up to another, in order; and of those beyond
        that wait behind one of them."""
        parameters = {"subscription": subscription, "above": above, "up_to": up_to}
        rows = await self._database.execute(self._statements.get("rows_between"), parameters)
        return [(row[0], row[1], row[2]) for row in rows]

    async def memories(self, subscription: int) -> Memories:
        """What had been handled before the replays that are under way."""
        rows = await self._database.execute(self._statements.get("memories"), {"subscription": subscription})
        return {(number, lane): ranges_of(ranges) for number, lane, ranges in rows}

    async def since(self, subscription: int) -> Since | None:
        """The time before which messages are passed over, if there is one."""
        rows = await self._database.execute(self._statements.get("since"), {"subscription": subscription})
        return Since(*rows[0]) if rows and rows[0][0] is not None else None


def _as_json(lane: LanePlace) -> dict[str, object]:
    return {
        "lane": lane.lane,
        "position": lane.position,
        "ahead": _flat(lane.ahead),
        "replay": _flat(lane.replay),
        "leaps": [{"low": low, "high": high} for low, high in lane.leaps],
    }


def _flat(ranges: Ranges) -> list[int]:
    return [end for pair in ranges for end in pair]
