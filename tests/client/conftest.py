"""A server in a process of its own, and what stands before it."""

from collections.abc import AsyncIterator, Iterator

import pytest

import milepost
from client.proxy import Proxy
from contract.farm import Farm
from milepost import Milepost
from milepost.client.client import Client


@pytest.fixture(scope="session")
def farm() -> Iterator[Farm]:
    """A process for servers."""
    farm = Farm()
    yield farm
    farm.end()


@pytest.fixture
def address(mp: Milepost, farm: Farm, database_url: str, schema: str) -> Iterator[str]:
    """Of a server on the test's schema."""
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
