"""What holds of the library holds of the client: each test here runs on both, and on a server's process."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

import milepost
from contract.both import Both
from contract.farm import Farm
from milepost import Milepost


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


@pytest.fixture(params=["library", "client"])
async def both(request: pytest.FixtureRequest, mp: Milepost) -> AsyncIterator[Both]:
    """A `Milepost`, and a client of one."""
    async with AsyncExitStack() as stack:
        if request.param == "library":
            yield mp
        else:
            yield await stack.enter_async_context(milepost.connect(request.getfixturevalue("address")))
