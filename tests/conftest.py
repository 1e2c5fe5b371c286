"""A real PostgreSQL for every test, and a schema of its own for each."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from milepost import Milepost
from schemas import drop_schema
from servers import DEBIAN_15, Server, embedded_binaries
from support import MakeMilepost


def pytest_configure() -> None:
    """Processes that tests start can be interrupted, also where a shell runs the tests in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def absent(what: str) -> None:
    """Skips a test for want of a program; in CI that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and in CI nothing may be")
    pytest.skip(f"{what} is not installed")


@pytest.fixture(scope="session")
def embedded_url() -> Iterator[str]:
    """The PostgreSQL of the tests: the embedded one, or `MILEPOST_TEST_URL`."""
    given = os.environ.get("MILEPOST_TEST_URL")
    if given:
        yield given
        return
    server = Server(embedded_binaries(), settings={"max_prepared_transactions": "10"}).create()
    yield server.url()
    server.remove()


@pytest.fixture(scope="session")
def postgresql_15_url() -> Iterator[str]:
    """The oldest PostgreSQL that Milepost runs on."""
    if not (DEBIAN_15 / "postgres").exists():
        absent("PostgreSQL 15")
    server = Server(DEBIAN_15, settings={"max_prepared_transactions": "10"}).create()
    yield server.url()
    server.remove()


@pytest.fixture
def database_url(embedded_url: str) -> str:
    """The server that a test runs on; tests of the log override it to run on several."""
    return embedded_url


@pytest.fixture
def prepared_transactions(database_url: str) -> None:
    """Skips a test where the server takes no prepared transactions."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute("show max_prepared_transactions").fetchone()
    if row == ("0",):
        absent("a server with max_prepared_transactions")


@pytest.fixture
def schema(database_url: str) -> Iterator[str]:
    """A schema's name that no other test uses; what is in it is dropped."""
    name = f"t_{uuid4().hex[:12]}"
    yield name
    drop_schema(database_url, name)


@pytest.fixture
def make_mp(database_url: str, schema: str) -> MakeMilepost:
    """Makes a `Milepost` on the test's schema; each stands for a process of its own."""

    def make(**options: Any) -> Milepost:
        return Milepost(**{"url": database_url, "schema": schema, **options})

    return make


@pytest.fixture
async def mp(make_mp: MakeMilepost) -> AsyncIterator[Milepost]:
    """An open `Milepost` on a fresh schema."""
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(make_mp())
