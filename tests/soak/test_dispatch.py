"""Random schedules for the dispatch core with ever new seeds; MILEPOST_SOAK_SECONDS says how long."""

import os
import random
import time
from itertools import count

import pytest

from dispatch.simulation.schedule import KINDS
from dispatch.simulation.search import found_by

SECONDS = float(os.environ.get("MILEPOST_SOAK_SECONDS", "60"))

pytestmark = [pytest.mark.shard("soak"), pytest.mark.timeout(SECONDS + 300)]


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_happens_what_always_holds_does(kind: str) -> None:
    until = time.monotonic() + SECONDS / len(KINDS)
    first = random.SystemRandom().randrange(10**9)
    for start in count(first, 100):
        found = found_by(kind, range(start, start + 100))
        assert found is None, found
        if time.monotonic() > until:
            return
