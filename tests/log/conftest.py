"""The log's tests run on the embedded PostgreSQL and on the oldest one that is supported."""

import pytest


@pytest.fixture(params=["embedded", "postgresql_15"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Each of the servers in turn."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
