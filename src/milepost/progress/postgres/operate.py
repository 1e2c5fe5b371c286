"""Create, change, pause, move and delete subscriptions, and tell who attends to those with consumers."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from milepost.dispatch import Cursor, DeliveryRow
from milepost.log.query import Since
from milepost.postgres.pool import Database
from milepost.postgres.statements import Statements
from milepost.progress.postgres.errors import retry_deadlocks, translate_another_life
from milepost.progress.postgres.progress import PROGRAM, definition_parameters
from milepost.progress.postgres.trace import ranges_from_flat
from milepost.progress.protocol import (
    HandledBefore,
    LaneGrant,
    RowLocation,
    SubscriptionDefinition,
    SubscriptionRecord,
    stale_lane_error,
)
from milepost.progress.reports import ConsumerOwnerReport, ConsumerPresence
from milepost.ranges import NO_POSITIONS, Ranges

BARRIER_VALID_TIME = timedelta(seconds=10)
"""How long a barrier stands by itself: whoever set it sets it again, or is gone."""


class PlacedLane(msgspec.Struct, frozen=True, kw_only=True):
    """Where a lane is put."""

    lane: int
    position: int
    ahead: Ranges = NO_POSITIONS
    replay: Ranges = NO_POSITIONS
    """What comes again on purpose."""
    leaps: Ranges = NO_POSITIONS
    """What is passed over."""


class PostgresControl:
    """Actions, each a transaction that its workers are told of."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database.within(None)
        self._statements = Statements(schema, "milepost.progress.postgres")

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
        parameters = {"subscription": subscription, "barrier": barrier, "during": BARRIER_VALID_TIME}
        rows = await self._database.execute(self._statements.get("set_barrier"), parameters)
        stands: str = rows[0][0]
        return stands

    async def take_back(self, subscription: int) -> None:
        """Have everything that is out given back at once, while nothing may run."""
        parameters = {"subscription": subscription}
        await retry_deadlocks(lambda: self._database.execute(self._statements.get("take_back"), parameters))

    async def yield_barrier(self, subscription: int, barrier: str) -> None:
        """Let all go on until what runs now has ended, while the barrier stands: others may set none."""
        parameters = {"subscription": subscription, "barrier": barrier, "during": BARRIER_VALID_TIME}
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
        lanes: Sequence[PlacedLane],
        memories: HandledBefore,
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
                [[cursor.position for cursor in stood], [_flat_ranges(Ranges(cursor.ahead)) for cursor in stood]]
            ).decode(),
            "lanes": msgspec.json.encode([_placement_parameters(lane) for lane in lanes]).decode(),
            "memories": msgspec.json.encode(
                [
                    {"number": number, "lane": lane, "ranges": _flat_ranges(ranges)}
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
        with translate_another_life():
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

    async def memories(self, subscription: int) -> HandledBefore:
        """What had been handled before the replays that are under way."""
        rows = await self._database.execute(self._statements.get("memories"), {"subscription": subscription})
        return {(number, lane): ranges_from_flat(ranges) for number, lane, ranges in rows}

    async def since(self, subscription: int) -> Since | None:
        """The time before which messages are passed over, if there is one."""
        rows = await self._database.execute(self._statements.get("since"), {"subscription": subscription})
        return Since(*rows[0]) if rows and rows[0][0] is not None else None


def _placement_parameters(lane: PlacedLane) -> dict[str, object]:
    return {
        "lane": lane.lane,
        "position": lane.position,
        "ahead": _flat_ranges(lane.ahead),
        "replay": _flat_ranges(lane.replay),
        "leaps": [{"low": low, "high": high} for low, high in lane.leaps],
    }


def _flat_ranges(ranges: Ranges) -> list[int]:
    return [end for pair in ranges for end in pair]


PRESENCE_VALID_TIME: Final = timedelta(seconds=10)
"""How long what a process tells of its consumers is taken for what they do."""

_record_decoder = msgspec.json.Decoder(SubscriptionRecord)
_rows_decoder = msgspec.json.Decoder(list[DeliveryRow])


class PostgresConsumerSubscriptions:
    """Creates and finds them."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._patient = database.within(None)
        self._statements = Statements(schema, "milepost.progress.postgres")

    async def find(self, group: str, name: str) -> SubscriptionRecord | None:
        """A subscription by its address, created or not."""
        rows = await self._execute("find", group=group, name=name)
        return _record_decoder.decode(rows[0][0]) if rows else None

    async def create(self, definition: SubscriptionDefinition, settings: Mapping[str, Any], if_exists: str) -> str:
        """Creates it, or changes it if that is wanted; what came of it in a word."""
        with translate_another_life():
            rows = await self._execute(
                "create_subscription",
                definition=_json_text(definition_parameters(definition)),
                settings=_json_text(settings),
                if_exists=if_exists,
                program=PROGRAM,
            )
        outcome: str = rows[0][0]
        return outcome

    async def row_positions(self, subscription: int) -> list[int]:
        """The positions of all its rows."""
        parameters = {"subscription": subscription, "after": 0, "limit": None}
        rows = await self._patient.execute(self._statements.get("row_positions"), parameters)
        return [row[0] for row in rows]

    async def reorder(
        self,
        subscription: int,
        barrier: str,
        definition: SubscriptionDefinition,
        settings: Mapping[str, Any],
        rows: Sequence[RowLocation],
    ) -> bool:
        """Another order, behind a barrier; False if that does not stand any more."""
        parameters = {
            "subscription": subscription,
            "barrier": barrier,
            "definition": _json_text(definition_parameters(definition)),
            "settings": _json_text(settings),
            "rows": _row_locations_json(rows),
            "program": PROGRAM,
        }
        with translate_another_life():
            found = await self._patient.execute(self._statements.get("reorder_created"), parameters)
        return bool(found[0][0])

    async def adopt(self, subscription: int, number: int, cursor: Cursor) -> None:
        """The owner of its lane goes by another definition for what this does not have."""
        ahead = [position for pair in cursor.ahead for position in pair]
        await self._execute(
            "adopt", subscription=subscription, number=number, position=cursor.position, ahead=ahead
        )

    async def rekey(
        self, held: LaneGrant, number: int, rows: Sequence[RowLocation], known: Mapping[int, int | None]
    ) -> dict[int, DeliveryRow]:
        """Give all rows their keys by the order of a definition, as the owner of their lane.

        Returns what those say now that had the revisions in `known`; None stands for any. Raises `StaleLane` if it
        has
        another owner.
        """
        parameters = {
            "subscription": held.subscription,
            "life": held.life,
            "epoch": held.epoch,
            "revision": held.revision,
            "number": number,
            "rows": _row_locations_json(rows),
            "known": _json_text([{"position": at, "revision": revision} for at, revision in known.items()]),
        }
        with translate_another_life():
            [[found]] = await self._patient.execute(self._statements.get("rekey"), parameters)
        if found is None:
            raise stale_lane_error()
        return {row.position: row for row in _rows_decoder.decode(found)}

    # Who attends

    async def attend(self, subscription: int, worker: str, attendance: ConsumerPresence) -> None:
        """A process has consumers of it."""
        await self._execute(
            "attend",
            subscription=subscription,
            worker=worker,
            during=PRESENCE_VALID_TIME,
            acted=attendance.acted,
            owns=attendance.owns,
            consumers=attendance.consumers,
            statistics=None if attendance.statistics is None else _json_text(attendance.statistics),
            node=attendance.node,
        )

    async def attend_no_more(self, subscription: int, worker: str) -> None:
        """A process has no consumers of it any more."""
        await self._execute("attend_no_more", subscription=subscription, worker=worker)

    async def unfollowed(self, subscription: int, acted: int) -> list[str]:
        """Who serves its consumers without following what was changed up to then."""
        rows = await self._execute("unfollowed", subscription=subscription, acted=acted)
        return [row[0] for row in rows]

    async def told(self, subscription: int) -> ConsumerOwnerReport:
        """What its owner told, and what nobody takes."""
        [row] = await self._execute("attended", subscription=subscription)
        return ConsumerOwnerReport(**dict(zip(ConsumerOwnerReport.__struct_fields__, row, strict=True)))

    async def _execute(self, statement: str, **parameters: Any) -> Sequence[Any]:
        return await self._database.execute(self._statements.get(statement), parameters)


def _row_locations_json(rows: Sequence[RowLocation]) -> str:
    return _json_text([{"position": at, "lane": lane, "key": key} for at, lane, key in rows])


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
