"""What the tests of consumers share."""

from collections.abc import AsyncIterator, Iterator

import pytest

from engine.consuming.processes import Start, processes
from engine.faults.proxy import Proxy
from servers import Server, embedded_binaries


@pytest.fixture
def start(database_url: str, schema: str) -> Iterator[Start]:
    """Starts processes with consumers."""
    with processes(database_url, schema) as start:
        yield start


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    """A proxy before the server of all tests."""
    async with Proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that may be restarted."""
    server = Server(embedded_binaries()).create()
    yield server
    server.remove()
