"""A server, and what stands before it."""

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import pytest

import milepost
from client.proxy import Proxy
from contract.farm import Farm
from milepost import Milepost
from milepost.client.client import Client
from server.websocket.conftest import Serving, serving
from support import MakeMilepost


@pytest.fixture(scope="session")
def farm() -> Iterator[Farm]:
    """A process for servers."""
    farm = Farm()
    yield farm
    farm.end()


@pytest.fixture
async def server(mp: Milepost, make_mp: MakeMilepost) -> AsyncIterator[Serving]:
    """A server on the test's schema, in this process."""
    async with serving(make_mp()) as server:
        yield server


@pytest.fixture
def address(server: Serving) -> str:
    """Where that server is."""
    return server.address


@pytest.fixture
def far_address(mp: Milepost, farm: Farm, database_url: str, schema: str) -> Iterator[str]:
    """The same in another process, for clients that block this one."""
    yield farm.serve(database_url, schema)
    farm.stop()


@pytest.fixture
async def proxy(address: str) -> AsyncIterator[Proxy]:
    """Before that server."""
    async with Proxy(address) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    """A client of it, through the proxy."""
    async with milepost.connect(proxy.address) as client:
        yield client


@pytest.fixture
def nobody() -> Iterator[Callable[[], str]]:
    """Return a function that gives addresses at which nobody listens, and which nobody else gets meanwhile."""
    with ExitStack() as stack:

        def nobody() -> str:
            bound = stack.enter_context(socket.socket())
            bound.bind(("127.0.0.1", 0))
            return f"http://127.0.0.1:{bound.getsockname()[1]}"

        yield nobody
