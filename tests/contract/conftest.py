"""What holds of the library holds of the client: each test here runs on both."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

import milepost
from contract.both import Both
from milepost import Milepost
from server.websocket.conftest import serving
from support import MakeMilepost


@pytest.fixture(params=["library", "client"])
async def both(request: pytest.FixtureRequest, mp: Milepost, make_mp: MakeMilepost) -> AsyncIterator[Both]:
    """A `Milepost`, and a client of one."""
    async with AsyncExitStack() as stack:
        if request.param == "library":
            yield mp
        else:
            server = await stack.enter_async_context(serving(make_mp(), grace=0))
            yield await stack.enter_async_context(milepost.connect(server.address))
