"""What several tests of the engine need."""

import pytest

from engine.notes import Notes
from milepost import Milepost


@pytest.fixture
def notes(mp: Milepost) -> Notes:
    """What listeners of the test's `Milepost` are told."""
    return Notes(mp)
