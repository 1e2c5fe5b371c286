"""Servers on one database: each says where it is, and who owns a subscription is known by its address."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from milepost.log.database import Database
from milepost.log.statements import Statements
from milepost.progress.postgresql import PROGRAM

LIVES: Final = timedelta(seconds=10)
"""How long a server that has not told anything is taken for alive."""


class Node(msgspec.Struct, frozen=True):
    """A server that lives."""

    address: str
    """Where clients reach it: a URL."""
    version: str
    """Of its program."""
    since: datetime
    """When it came, by the database's clock."""


class Owner(msgspec.Struct, frozen=True):
    """The process that serves the consumers of a subscription."""

    worker: str
    address: str | None
    """Of the server that it is; None: no client can be sent there."""


class PostgresNodes:
    """Tells and finds them."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._statements = Statements(schema, "milepost.progress")

    async def beat(self, id: str, address: str) -> None:
        """A server lives."""
        await self._execute("beat_node", id=id, address=address, version=PROGRAM, during=LIVES)

    async def leave(self, id: str) -> None:
        """It takes no more clients."""
        await self._execute("leave_node", id=id)

    async def all(self) -> list[Node]:
        """Those that live, the first that came first."""
        return [Node(*row) for row in await self._execute("nodes")]

    async def owner(self, group: str, name: str) -> Owner | None:
        """Who serves the consumers of a subscription; None: nobody has told so in the last seconds."""
        rows = await self._execute("owner_node", group=group, name=name)
        return Owner(*rows[0]) if rows else None

    async def _execute(self, statement: str, **parameters: Any) -> Sequence[Any]:
        return await self._database.execute(self._statements.get(statement), parameters)
