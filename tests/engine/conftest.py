"""What several tests of the engine need."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from engine.notes import Notes
from milepost import Milepost


@pytest.fixture
def second_url(database_url: str) -> Iterator[str]:
    """A database beside that of the log, where progress can be kept."""
    name = f"second_{uuid4().hex[:12]}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        yield make_conninfo(database_url, dbname=name)
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def notes(mp: Milepost) -> Notes:
    """What listeners of the test's `Milepost` are told."""
    return Notes(mp)
