"""The server within a test's own process where that is enough, and in one of its own where it is not."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from milepost import Milepost
from milepost.server import Server, create_app
from server.process import ServerProcess, StartServer
from server.websocket.conftest import Serve, Serving, serving
from support import MakeMilepost


@pytest.fixture
def app(mp: Milepost) -> Server:
    """A server that asks for no token."""
    return create_app(mp, access="local")


@pytest.fixture
async def client(app: Server) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it, without a network between them."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@pytest.fixture
async def serve(mp: Milepost, make_mp: MakeMilepost) -> AsyncIterator[Serve]:
    """Starts servers in the test's process, with a network before them."""
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> Serving:
            return await stack.enter_async_context(serving(make_mp(), **options))

        yield start


@pytest.fixture
def start_server(mp: Milepost, database_url: str, schema: str) -> Iterator[StartServer]:
    """Starts servers on the test's schema, which exists already."""
    started: list[ServerProcess] = []

    def start(**options: float | str) -> ServerProcess:
        started.append(ServerProcess(database_url, schema, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for server in started:
        server.kill()
