"""Clean, migrated schemas for tests: made once, emptied after each test, and handed out again."""

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from milepost.postgres import schema as log_schema

Connection = psycopg.Connection[tuple[object, ...]]

RESET = Path(__file__).with_name("reset_schema.sql").read_text()
"""Empties a schema, and tells what cannot be emptied: a fingerprint of what its catalog says."""


SECOND = log_schema.Migration(
    log_schema.NEWEST_MIGRATION_NUMBER + 1,
    "second",
    log_schema.NEWEST_MIGRATION_NUMBER,
    'create table :"schema".second (n integer);',
)
"""What a later version may add, for tests of upgrades."""


class ConnectionLost(Exception):
    """The connection of a statement was lost; it can be tried on another."""


@dataclass
class SchemaPool:
    """The schemas of one database. Each test gets one that nothing has been written to."""

    url: str
    free: list[str] = field(default_factory=list)
    fingerprints: dict[str, str] = field(default_factory=dict)
    """What the catalog said of each schema when it was made."""
    connection: Connection | None = None

    @contextmanager
    def schema(self, name: str | None = None) -> Iterator[str]:
        """A clean schema until the end of the block, of this name if that matters.

        Connections that the block leaves behind are ended.
        """
        connection = self._connected()
        if name is None:
            name = self.free[-1] if self.free else f"t_{uuid4().hex[:12]}"
        if name in self.free:
            self.free.remove(name)
        else:
            self._create(connection, name)
        began = connection.execute("select clock_timestamp()").fetchone()
        yield name
        connection = self._connected()
        _end_connections(connection, began)
        fingerprint = self.fingerprints.pop(name)
        try:
            is_clean = self._reset(connection, name) == fingerprint
        except psycopg.Error:
            drop_schema(self.url, name)
            raise
        if is_clean:
            self.fingerprints[name] = fingerprint
            self.free.append(name)
        else:
            drop_schema(self.url, name)

    def close(self) -> None:
        """Close the connection that all this goes through."""
        if self.connection is not None:
            self.connection.close()

    def _create(self, connection: Connection, name: str) -> None:
        connection.execute(log_schema.printable_sql(name).encode())
        try:
            self.fingerprints[name] = self._reset(connection, name)
        except psycopg.Error:
            drop_schema(self.url, name)
            raise

    def _reset(self, connection: Connection, name: str) -> str:
        connection.execute(sql.SQL("set tests.schema = {}").format(name))
        connection.execute(RESET.encode())
        row = connection.execute("show tests.fingerprint").fetchone()
        assert row is not None
        return str(row[0])

    def _connected(self) -> Connection:
        """The pool's connection, or a new one if a test has ended it."""
        if self.connection is not None:
            with suppress(psycopg.OperationalError):
                self.connection.execute("select 1")
                return self.connection
            self.connection.close()
        self.connection = psycopg.connect(self.url, autocommit=True)
        return self.connection


def _end_connections(connection: Connection, began: tuple[object, ...] | None) -> None:
    """End what connected during a test and is still there: a killed process, or one that has not quite gone."""
    # The server's own waiting for an end looks every 100 ms, and most connections are gone after one or two.
    until = monotonic() + 20
    while connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend' "
        "and datname = current_database() and backend_start > %s and pid <> pg_backend_pid()",
        began,
    ).fetchall():
        assert monotonic() < until, "connections of a test are still there 20 s after they were ended"
        sleep(0.002)


@contextmanager
def own_database(url: str) -> Iterator[str]:
    """The address of a database of this process's own, on a server that others use too."""
    name = sql.Identifier(f"test_{os.getpid()}_{uuid4().hex[:6]}")
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(sql.SQL("create database {}").format(name))
    yield make_conninfo(url, dbname=name.as_string().strip('"'))
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(sql.SQL("drop database {} with (force)").format(name))


def drop_schema(url: str, name: str) -> None:
    """Drop a schema. If the connection is lost meanwhile, try once more, and say so in a warning.

    The warning names the threads that read for Milepost and are still there: one that used a connection which was
    closed under it could have done that to another's. Nearly all are idle, or about to end.
    """
    try:
        _drop(url, name)
    except ConnectionLost as lost:
        readers = [thread.name for thread in threading.enumerate() if thread.name.startswith("milepost-reader")]
        beside = f" beside {', '.join(readers)}" if readers else ""
        _warn(f"a connection was lost when schema {name} was dropped{beside}: {lost.__cause__!r}")
        _drop(url, name)


def _drop(url: str, name: str) -> None:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        try:
            connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))
        except psycopg.Error as error:
            if connection.broken:
                raise ConnectionLost from error
            raise


def _warn(words: str) -> None:
    """In the summary of the run: of warnings, which are errors elsewhere, this one fails no test."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.warn(words, stacklevel=3)
