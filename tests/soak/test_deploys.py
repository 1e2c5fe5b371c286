"""Many deploys at random, for longer than in the tests; MILEPOST_SOAK_SECONDS says how long."""

import os
from pathlib import Path

import pytest

from engine.deploys.chaos import deploys_for
from milepost import Milepost

SECONDS = float(os.environ.get("MILEPOST_SOAK_SECONDS", "60"))

pytestmark = [pytest.mark.shard("soak"), pytest.mark.timeout(SECONDS + 300)]


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
async def test_whatever_is_deployed_every_message_is_handled_in_order(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path, exactly_once: bool
) -> None:
    await deploys_for(SECONDS, mp, database_url, schema, tmp_path, exactly_once=exactly_once)
