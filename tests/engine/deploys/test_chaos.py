"""Many deploys at random."""

from pathlib import Path

import pytest

from engine.deploys.chaos import deploys_for
from milepost import Milepost

pytestmark = pytest.mark.shard("deploys")


@pytest.mark.timeout(140)
@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
async def test_whatever_is_deployed_every_message_is_handled_in_order(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path, exactly_once: bool
) -> None:
    await deploys_for(10, mp, database_url, schema, tmp_path, exactly_once=exactly_once)
