"""Dropping the schema of a test: a lost connection is told, and nothing else is hidden."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from schemas import drop_schema


def exists(url: str, name: str) -> bool:
    with psycopg.connect(url) as connection:
        found = connection.execute("select count(*) from pg_namespace where nspname = %s", [name]).fetchone()
    return found == (1,)


@pytest.fixture
def made(database_url: str, schema: str) -> str:
    """A schema that is there."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"create schema {schema}".encode())
    return schema


@pytest.fixture
def doomed(made: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A schema that is there; the server ends the next connection as soon as it is made."""
    connect = psycopg.connect

    def lost(url: str, **options: Any) -> Any:
        monkeypatch.setattr(psycopg, "connect", connect)
        connection = connect(url, **options)
        with connect(url, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s, 20000)", [connection.info.backend_pid])
        return connection

    monkeypatch.setattr(psycopg, "connect", lost)
    return made


@contextmanager
def reader() -> Iterator[None]:
    """A thread that has the name of one that reads for Milepost."""
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, name="milepost-reader-of-a-test", daemon=True)
    thread.start()
    try:
        yield
    finally:
        may_end.set()
        thread.join()


def test_a_lost_connection_is_told_and_another_does_it(database_url: str, doomed: str) -> None:
    with pytest.warns(UserWarning, match="a connection was lost when schema"):
        drop_schema(database_url, doomed)
    assert not exists(database_url, doomed)


def test_a_reader_that_is_still_there_is_named(database_url: str, doomed: str) -> None:
    with reader(), pytest.warns(UserWarning, match="beside .*milepost-reader-of-a-test"):
        drop_schema(database_url, doomed)


def test_what_the_server_refuses_is_raised(database_url: str, made: str) -> None:
    url = make_conninfo(database_url, options="-c default_transaction_read_only=on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        drop_schema(url, made)
