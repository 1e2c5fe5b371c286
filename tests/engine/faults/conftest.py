"""Servers and proxies that the tests of this folder may break."""

from collections.abc import AsyncIterator, Iterator

import pytest

from engine.faults import talk
from engine.faults.proxy import Proxy
from servers import Server, embedded_binaries

pytest.register_assert_rewrite("engine.faults.chaos", "engine.faults.killing", "engine.faults.watch")


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    """A proxy before the server of all tests."""
    async with Proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of the test's own."""
    server = Server(embedded_binaries()).create()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def talkative() -> Iterator[Server]:
    """A server that writes down every statement."""
    server = Server(embedded_binaries(), settings=talk.SETTINGS).create()
    yield server
    server.remove()
