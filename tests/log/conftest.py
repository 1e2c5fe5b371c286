"""The log's tests run on the embedded PostgreSQL and on the oldest one that is supported."""

from collections.abc import AsyncIterator

import pytest

from milepost.log.database import Database


@pytest.fixture(params=["embedded", "postgresql_15"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Each of the servers in turn."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A pool of one connection."""
    database = Database(database_url, pool_size=1)
    await database.open()
    yield database
    await database.close()
