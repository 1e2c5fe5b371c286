"""Progress and leases, each kept in every way there is."""

from collections.abc import AsyncIterator, Callable

import pytest

from progress.crews import AdvisoryCrew, Crew, MemoryCrew, PostgresCrew
from progress.keepers import Keeper, MemoryKeeper, PostgresKeeper


@pytest.fixture
async def postgres(database_url: str, schema: str) -> AsyncIterator[PostgresKeeper]:
    """Progress in PostgreSQL."""
    keeper = await PostgresKeeper(database_url, schema).open()
    yield keeper
    await keeper.close()


@pytest.fixture(params=["memory", "embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
async def keeper(request: pytest.FixtureRequest, clean_schema: Callable[[str], str]) -> AsyncIterator[Keeper]:
    """Progress in each way."""
    if request.param == "memory":
        yield MemoryKeeper()
        return
    url = request.getfixturevalue(f"{request.param}_url")
    found = await PostgresKeeper(url, clean_schema(url)).open()
    yield found
    await found.close()


@pytest.fixture(params=[MemoryCrew, PostgresCrew, AdvisoryCrew])
async def crew(request: pytest.FixtureRequest, postgres: PostgresKeeper) -> AsyncIterator[Crew]:
    """Workers that share lanes in each way."""
    found: Crew = request.param(postgres)
    yield found
    await found.close()
