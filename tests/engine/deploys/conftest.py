"""Two versions of a program at a time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.deploys.deploy import Deploy, deploying
from engine.deploys.load import Load
from engine.deploys.stored import Stored
from engine.deploys.version import Version
from milepost import Milepost


@pytest.fixture
def deploy(database_url: str, schema: str, tmp_path: Path) -> Iterator[Deploy]:
    """Processes of several versions, which end with the test."""
    with deploying(database_url, schema, tmp_path) as deploy:
        yield deploy


@pytest.fixture
def load(mp: Milepost) -> Load:
    """Messages for them."""
    return Load(mp)


@pytest.fixture
def stored(mp: Milepost, database_url: str, schema: str) -> Stored:
    """What they leave in the database of the log."""
    return Stored(database_url, schema)


@pytest.fixture(
    params=["rows", *(pytest.param(other, marks=pytest.mark.shard("deploys")) for other in ("advisory", "second"))]
)
def kept(request: pytest.FixtureRequest, stored: Stored, schema: str) -> tuple[Version, Stored]:
    """The first version, in each way to keep leases and progress, and what is stored there."""
    version = Version(label="v1")
    if request.param != "second":
        return version.but("v1", leases=request.param), stored
    second: str = request.getfixturevalue("second_url")
    return version.but("v1", progress=second), Stored(second, schema)
