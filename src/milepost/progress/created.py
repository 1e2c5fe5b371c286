"""Subscriptions that are created for consumers, in PostgreSQL."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from milepost.log.database import Database
from milepost.log.statements import Statements
from milepost.progress.postgresql import PROGRAM, as_declared
from milepost.progress.protocol import Definition, Opened, RowPlace

_opened = msgspec.json.Decoder(Opened)


class PostgresCreated:
    """Creates and finds them."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._statements = Statements(schema, "milepost.progress")

    async def find(self, group: str, name: str) -> Opened | None:
        """A subscription by its address, created or not."""
        rows = await self._database.execute(self._statements.get("find"), {"group": group, "name": name})
        return _opened.decode(rows[0][0]) if rows else None

    async def create(self, definition: Definition, settings: Mapping[str, Any], if_exists: str) -> str:
        """Creates it, or changes it if that is wanted; what came of it in a word."""
        parameters = {
            "definition": _json(as_declared(definition)),
            "settings": _json(settings),
            "if_exists": if_exists,
            "program": PROGRAM,
        }
        rows = await self._database.execute(self._statements.get("create_subscription"), parameters)
        outcome: str = rows[0][0]
        return outcome

    async def row_positions(self, subscription: int) -> list[int]:
        """The positions of all its rows."""
        parameters = {"subscription": subscription, "after": 0, "limit": None}
        rows = await self._database.execute(self._statements.get("row_positions"), parameters)
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
            "rows": _json([{"position": at, "lane": lane, "key": key} for at, lane, key in rows]),
            "program": PROGRAM,
        }
        found = await self._database.execute(self._statements.get("reorder_created"), parameters)
        return bool(found[0][0])


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
