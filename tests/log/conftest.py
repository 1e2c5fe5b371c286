"""The log's tests run on the embedded PostgreSQL, and in the shard `oldest` on the oldest one that is supported.

Files about what differs between servers, as functions, locks and plans do, override `database_url` to run on both.
"""

from collections.abc import AsyncIterator

import pytest

from milepost.postgres.pool import Database


@pytest.fixture(params=["embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
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
