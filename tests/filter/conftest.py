"""What the tests of the filter language share."""

from collections.abc import Iterator

import psycopg
import pytest


@pytest.fixture(
    scope="session",
    params=["embedded_url", pytest.param("postgresql_15_url", marks=pytest.mark.shard("oldest"))],
)
def filter_database(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """A connection to each PostgreSQL that conditions have to work on."""
    with psycopg.connect(request.getfixturevalue(request.param), autocommit=True) as connection:
        yield connection
