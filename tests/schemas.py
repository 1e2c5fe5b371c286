"""How the schema of a test goes."""

import threading
import warnings
from contextlib import closing

import psycopg
from psycopg import sql


class ConnectionLost(Exception):
    """The connection of a statement is gone, and it may be tried on another."""


def drop_schema(url: str, name: str) -> None:
    """Drops a schema. If the connection is lost at that, it is tried once more, and a warning says so.

    It names the threads that read for Milepost and are still there: one that used a connection which was closed
    under it could have done that to another's. Nearly all are idle, or about to end.
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
