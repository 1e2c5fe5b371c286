"""A fresh schema for a test, and the programs that run on it."""

import asyncio
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from milepost.app import Milepost
from milepost.engine.values import checked, seconds
from milepost.errors import NoDatabase
from milepost.log import schema
from milepost.log.statements import Statements
from milepost.testing.bound import BoundMilepost
from milepost.testing.teardown import SchemaDropper

_seconds = seconds()


class MilepostDB:
    """What the fixture `milepost_db` gives: a schema with an empty log, dropped when the test has ended."""

    url: str
    """The address of its database. What is made there without a schema's name is dropped with the log."""
    schema: str
    """The schema that holds the log."""

    def __init__(self, url: str, schema: str) -> None:
        self.url = url
        self.schema = schema
        self.sync = SyncMilepostDB(url, schema)
        """The same for tests that are not async."""
        self._used: list[BoundMilepost] = []

    @classmethod
    @contextmanager
    def fresh(cls, url: str) -> "Iterator[MilepostDB]":
        """A new one in this PostgreSQL, from the beginning of the block to its end; for fixtures of your own."""
        name = f"test_{uuid4().hex[:12]}"
        log, own = (Statements(each, "milepost.testing") for each in (name, f"{name}_own"))
        database = cls(_for_tests(url, name, own.schema), name)
        with _connected(url) as connection:
            connection.execute(schema.printable(name).encode())
            connection.execute(log.get("prepare"))
            connection.execute(own.get("create"))
        try:
            yield database
        finally:
            database._end()
            with _connected(url) as connection:
                connection.execute(log.get("cut"))
            SchemaDropper(lambda: _connected(url), log).drop(log, own)

    def use(self, milepost: Milepost, *, provide: Mapping[Any, Any] | None = None) -> Milepost:
        """A copy of a program on this schema: its messages, subscriptions, providers and listeners.

        The original stays as it was, and what is declared on the copy is the copy's alone. The copy needs no
        `async with`: it is open while a call of it runs.

        Args:
            milepost: The program, or any other `Milepost`.
            provide: Objects that handlers get in place of what the program provides, by its type:
                `{Mailer: FakeMailer()}`.
        """
        if not isinstance(milepost, Milepost):
            raise TypeError(f"use: a Milepost is wanted, such as shop.mp, not {milepost!r}")
        copy = BoundMilepost(milepost, url=self.url, schema=self.schema, provide=provide or {})
        self._used.append(copy)
        return copy

    async def advance(self, seconds: float) -> None:
        """Moves the schema's clock forwards: what is due by then is due now. Nothing waits for it."""
        await asyncio.to_thread(self.sync.advance, seconds)

    def _end(self) -> None:
        for copy in self._used:
            copy.end()

    def __repr__(self) -> str:
        return f"MilepostDB({self.schema!r})"


class SyncMilepostDB:
    """What `milepost_db.sync` gives, for tests that are not async."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._statements = Statements(schema, "milepost.testing")

    def advance(self, seconds: float) -> None:
        """Moves the schema's clock forwards: what is due by then is due now."""
        by = timedelta(seconds=checked("advance", _seconds, seconds))
        # Workers that live here would have gone on beating; of those elsewhere nobody knows.
        own = f"{socket.gethostname()}-{os.getpid()}-"
        with _connected(self._url) as connection, connection.transaction():
            connection.execute(self._statements.get("advance"), {"by": by, "own": own})
            connection.execute(self._statements.get("look_again"))


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    try:
        connection = psycopg.connect(url, autocommit=True)
    except psycopg.Error as error:
        reason = str(error).strip().partition("\n")[0]
        raise NoDatabase(f"there is no PostgreSQL to run tests on: {reason}") from error
    with connection:
        yield connection


def _for_tests(url: str, name: str, own: str) -> str:
    """The address with a schema for tables of the test's own, and a name by which its connections are known."""
    options = conninfo_to_dict(url).get("options", "")
    more = {"options": f"{options} -c search_path={own},public".strip(), "application_name": name}
    if "://" not in url:
        return make_conninfo(url, **more)
    return f"{url}{'&' if '?' in url else '?'}{urlencode(more, quote_via=quote)}"
