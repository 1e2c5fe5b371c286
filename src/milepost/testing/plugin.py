"""The pytest plugin: two fixtures and an option. Before a test asks for one it imports nothing but pytest."""

import inspect
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from milepost.testing.database import MilepostDB

URL_VARIABLE = "MILEPOST_TEST_URL"
ASYNC_RUNNER_MARKS = frozenset({"asyncio", "anyio", "trio", "tornado", "twisted"})
"""Marks of plugins that run async tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--milepost-url`."""
    parser.getgroup("milepost").addoption(
        "--milepost-url",
        metavar="URL",
        help=f"A PostgreSQL of your own for the fixture milepost_db: postgresql://…; else {URL_VARIABLE}. "
        "Defaults to an embedded one, started for the session.",
    )


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs an async test that asks for `milepost_db`, where no other plugin does."""
    if not _is_left_to_this(pyfuncitem):
        return None
    import asyncio

    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**given))
    return True


def _is_left_to_this(test: pytest.Function) -> bool:
    marks = {mark.name for mark in test.iter_markers()}
    return (
        "milepost_db" in test.fixturenames
        and "anyio_backend" not in test.fixturenames
        and not marks & ASYNC_RUNNER_MARKS
        and inspect.iscoroutinefunction(test.obj)
    )


@pytest.fixture(scope="session")
def milepost_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """The address of the PostgreSQL that `milepost_db` makes its schemas in; override it to give another."""
    given = pytestconfig.getoption("--milepost-url") or os.environ.get(URL_VARIABLE)
    if given:
        yield str(given)
        return
    from milepost.errors import NoDatabase
    from milepost.testing.server import shared_server

    # All workers of pytest-xdist share one server.
    session = getattr(pytestconfig, "workerinput", {}).get("testrunuid") or uuid4().hex
    try:
        with shared_server(session) as url:
            yield url
    except NoDatabase as error:
        pytest.fail(f"milepost_db: {error}; --milepost-url or {URL_VARIABLE} names one of your own", pytrace=False)


@pytest.fixture
def milepost_db(milepost_url: str) -> "Iterator[MilepostDB]":
    """A fresh schema: `mp = milepost_db.use(shop.mp)` is a copy of a program on it."""
    from milepost.errors import NoDatabase
    from milepost.testing.database import MilepostDB

    try:
        with MilepostDB.fresh(milepost_url) as database:
            yield database
    except NoDatabase as error:
        pytest.fail(f"milepost_db: {error}", pytrace=False)
