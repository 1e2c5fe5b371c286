"""A real PostgreSQL for every test, and a schema of its own for each."""

import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from milepost import Milepost
from schemas import SchemaPool, drop_schema, own_database
from servers import DEBIAN_15, Server, embedded_binaries
from shards import ABSENT, COLLECTED, FAST, SHARDS, shard_of, variants_that_are_not_there
from support import MakeMilepost

pytest_plugins = ["hangs", "roles"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--shard`."""
    parser.addoption(
        "--shard",
        default=FAST,
        choices=[*SHARDS, "all"],
        help="Which tests to run: " + "; ".join(f"{name}: {what}" for name, what in SHARDS.items()),
    )


def pytest_configure() -> None:
    """Processes that tests start can be interrupted, also where a shell runs the tests in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return two workers for each core: many tests wait for processes and servers."""
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or 2 * (os.cpu_count() or 1))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only the tests of the shard that was asked for."""
    wanted = config.getoption("--shard")
    by_shard: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_shard.setdefault(shard_of(item), []).append(item)
    config.stash[COLLECTED] = {shard: [item.nodeid for item in some] for shard, some in by_shard.items()}
    config.stash[ABSENT] = variants_that_are_not_there(items)
    left_out = [item for shard, some in by_shard.items() if wanted not in ("all", shard) for item in some]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if wanted in ("all", shard_of(item))]


def pytest_collection_finish() -> None:
    """Leave what was collected out of garbage collection: it lives to the end, and there is much of it."""
    gc.collect()
    gc.freeze()


def absent(what: str) -> None:
    """Skips a test for want of a program; in CI that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and in CI nothing may be")
    pytest.skip(f"{what} is not installed")


@pytest.fixture(scope="session")
def embedded_url() -> Iterator[str]:
    """The PostgreSQL of the tests: an embedded one, or a database of this process's own at `MILEPOST_TEST_URL`."""
    given = os.environ.get("MILEPOST_TEST_URL")
    if given:
        with own_database(given) as url:
            yield url
        return
    with shared_server(embedded_binaries()) as url:
        yield url


@pytest.fixture(scope="session")
def postgresql_15_url() -> Iterator[str]:
    """The oldest PostgreSQL that Milepost runs on."""
    if not (DEBIAN_15 / "postgres").exists():
        absent("PostgreSQL 15")
    with shared_server(DEBIAN_15) as url:
        yield url


@contextmanager
def shared_server(binaries: Path) -> Iterator[str]:
    """A server for the tests of this process. Plans depend on no statistics that come sooner or later."""
    server = Server(binaries, settings={"max_prepared_transactions": "10", "autovacuum": "off"}).create()
    yield server.url()
    server.remove()


@pytest.fixture(scope="session")
def schema_pools() -> Iterator[dict[str, SchemaPool]]:
    """The clean schemas of each server."""
    pools: dict[str, SchemaPool] = {}
    yield pools
    for pool in pools.values():
        pool.close()


@pytest.fixture(scope="session")
def second_database() -> Iterator[Callable[[str], str]]:
    """Return a function that gives the second database of a server."""
    with ExitStack() as stack:
        yield cache(lambda url: stack.enter_context(own_database(url)))


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
def clean_schema(schema_pools: dict[str, SchemaPool]) -> Iterator[Callable[[str], str]]:
    """Return a function that gives this test a migrated schema that nothing has been written to, on a server."""
    with ExitStack() as stack:

        def clean_schema(url: str) -> str:
            pool = schema_pools.setdefault(url, SchemaPool(url))
            return stack.enter_context(pool.schema())

        yield clean_schema


@pytest.fixture
def schema(database_url: str, clean_schema: Callable[[str], str]) -> str:
    """A clean schema on the test's server."""
    return clean_schema(database_url)


@pytest.fixture
def second_url(
    database_url: str,
    schema: str,
    schema_pools: dict[str, SchemaPool],
    second_database: Callable[[str], str],
) -> Iterator[str]:
    """Return the address of a database beside that of the log, for progress: its schema is clean, too."""
    url = second_database(database_url)
    with schema_pools.setdefault(url, SchemaPool(url)).schema(schema):
        yield url


@pytest.fixture
def empty_url(database_url: str) -> Iterator[str]:
    """Return the address of a database in which Milepost is not installed."""
    with own_database(database_url) as url:
        yield url


@pytest.fixture
def unused_schema(database_url: str) -> Iterator[str]:
    """The name of a schema that is not there; what a test makes of it is dropped."""
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
