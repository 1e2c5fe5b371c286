"""Servers on one database: each says where it is, and who owns a subscription is known by its address."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from milepost.log.database import Database
from milepost.log.statements import Statements
from milepost.names import is_loopback
from milepost.progress.postgresql import PROGRAM

LIVES: Final = timedelta(seconds=10)
"""How long a server that has not told anything is taken for alive."""

MACHINE: Final = socket.gethostname()


def is_loopback_url(address: str) -> bool:
    """Return True if only the machine itself reaches the address of a server, however that is written."""
    host = (urlsplit(address).hostname or "").removesuffix(".")
    with suppress(OSError, UnicodeError):
        # Connecting takes 127.1 and 2130706433 for 127.0.0.1.
        host = socket.inet_ntoa(socket.inet_aton(host))
    return is_loopback(host) or host.endswith(".localhost") or host in ("0.0.0.0", "::")  # noqa: S104 - none is bound


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
    """Of the server that it is; None: nobody here can be sent there."""


class PostgresNodes:
    """Tells and finds them.

    An address that only its own machine reaches is told with the machine's name, and found by servers and programs
    of that machine alone.
    """

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._statements = Statements(schema, "milepost.progress")

    async def beat(self, id: str, address: str) -> None:
        """A server lives."""
        machine = MACHINE if is_loopback_url(address) else None
        await self._execute("beat_node", id=id, address=address, machine=machine, version=PROGRAM, during=LIVES)

    async def leave(self, id: str) -> None:
        """It takes no more clients."""
        await self._execute("leave_node", id=id)

    async def all(self) -> list[Node]:
        """Return those that live and can be reached from this machine, the first that came first."""
        return [Node(*row) for row in await self._execute("nodes", machine=MACHINE)]

    async def owner(self, group: str, name: str) -> Owner | None:
        """Who serves the consumers of a subscription; None: nobody has told so in the last seconds."""
        rows = await self._execute("owner_node", group=group, name=name, machine=MACHINE)
        return Owner(*rows[0]) if rows else None

    async def _execute(self, statement: str, **parameters: Any) -> Sequence[Any]:
        return await self._database.execute(self._statements.get(statement), parameters)
