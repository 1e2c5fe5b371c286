"""Two versions of a program at a time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.deploys.deploy import Deploy, deploying
from engine.deploys.load import Load
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
