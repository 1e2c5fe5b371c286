"""Subscriptions that are created for consumers, in PostgreSQL."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from milepost.dispatch import Cursor, Row
from milepost.log.database import Database
from milepost.log.statements import Statements
from milepost.progress.postgresql import PROGRAM, as_declared
from milepost.progress.protocol import Definition, Held, Opened, RowPlace
from milepost.progress.refusals import of_this_life, stale

ATTENDS: Final = timedelta(seconds=10)
"""How long what a process tells of its consumers is taken for what they do."""

_opened = msgspec.json.Decoder(Opened)
_rows = msgspec.json.Decoder(list[Row])


class Attendance(msgspec.Struct, frozen=True, kw_only=True):
    """What a process with consumers of a subscription tells."""

    acted: int
    """Which change of the subscription it follows, by the number of them."""
    owns: bool
    """Whether it has the lane; else it stands by."""
    consumers: int
    statistics: Any
    """What its consumers do, if it has the lane."""
    node: str | None
    """The address at which it serves consumers elsewhere, if it does."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner of a subscription has told last, and what is stored of messages that nobody takes."""

    owner: str | None
    at: datetime | None
    statistics: str | None
    """As JSON."""
    unrouted: int | None
    """The position of the first message that no consumer takes."""
    unrouted_since: datetime | None
    now: float
    """The database's time, in seconds since 1970."""


class PostgresCreated:
    """Creates and finds them."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._patient = database.within(None)
        self._statements = Statements(schema, "milepost.progress")

    async def find(self, group: str, name: str) -> Opened | None:
        """A subscription by its address, created or not."""
        rows = await self._execute("find", group=group, name=name)
        return _opened.decode(rows[0][0]) if rows else None

    async def create(self, definition: Definition, settings: Mapping[str, Any], if_exists: str) -> str:
        """Creates it, or changes it if that is wanted; what came of it in a word."""
        with of_this_life():
            rows = await self._execute(
                "create_subscription",
                definition=_json(as_declared(definition)),
                settings=_json(settings),
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
        definition: Definition,
        settings: Mapping[str, Any],
        rows: Sequence[RowPlace],
    ) -> bool:
        """Another order, behind a barrier; False if that does not stand any more."""
        parameters = {
            "subscription": subscription,
            "barrier": barrier,
            "definition": _json(as_declared(definition)),
            "settings": _json(settings),
            "rows": _as_places(rows),
            "program": PROGRAM,
        }
        with of_this_life():
            found = await self._patient.execute(self._statements.get("reorder_created"), parameters)
        return bool(found[0][0])

    async def adopt(self, subscription: int, number: int, cursor: Cursor) -> None:
        """The owner of its lane goes by another definition for what this does not have."""
        ahead = [position for pair in cursor.ahead for position in pair]
        await self._execute(
            "adopt", subscription=subscription, number=number, position=cursor.position, ahead=ahead
        )

    async def rekey(
        self, held: Held, number: int, rows: Sequence[RowPlace], known: Mapping[int, int | None]
    ) -> dict[int, Row]:
        """Give all rows their keys by the order of a definition, as the owner of their lane.

        Returns what those say now that had the revisions in `known`; None stands for any. Raises `Stale` if it has
        another owner.
        """
        parameters = {
            "subscription": held.subscription,
            "life": held.life,
            "epoch": held.epoch,
            "revision": held.revision,
            "number": number,
            "rows": _as_places(rows),
            "known": _json([{"position": at, "revision": revision} for at, revision in known.items()]),
        }
        with of_this_life():
            [[found]] = await self._patient.execute(self._statements.get("rekey"), parameters)
        if found is None:
            raise stale()
        return {row.position: row for row in _rows.decode(found)}

    # Who attends

    async def attend(self, subscription: int, worker: str, attendance: Attendance) -> None:
        """A process has consumers of it."""
        await self._execute(
            "attend",
            subscription=subscription,
            worker=worker,
            during=ATTENDS,
            acted=attendance.acted,
            owns=attendance.owns,
            consumers=attendance.consumers,
            statistics=None if attendance.statistics is None else _json(attendance.statistics),
            node=attendance.node,
        )

    async def attend_no_more(self, subscription: int, worker: str) -> None:
        """A process has no consumers of it any more."""
        await self._execute("attend_no_more", subscription=subscription, worker=worker)

    async def unfollowed(self, subscription: int, acted: int) -> list[str]:
        """Who serves its consumers without following what was changed up to then."""
        rows = await self._execute("unfollowed", subscription=subscription, acted=acted)
        return [row[0] for row in rows]

    async def told(self, subscription: int) -> Told:
        """What its owner told, and what nobody takes."""
        [row] = await self._execute("attended", subscription=subscription)
        return Told(**dict(zip(Told.__struct_fields__, row, strict=True)))

    async def _execute(self, statement: str, **parameters: Any) -> Sequence[Any]:
        return await self._database.execute(self._statements.get(statement), parameters)


def _as_places(rows: Sequence[RowPlace]) -> str:
    return _json([{"position": at, "lane": lane, "key": key} for at, lane, key in rows])


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
