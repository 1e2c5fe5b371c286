"""Exactly once, whatever is killed when, for longer than in the tests."""

from pathlib import Path

import pytest

from engine.faults.killing import kill_for
from milepost import Milepost

SECONDS = 30

pytestmark = [pytest.mark.shard("soak"), pytest.mark.timeout(SECONDS + 120)]


async def test_a_killed_worker_s_messages_take_effect_once(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    await kill_for(SECONDS, mp, database_url, schema, tmp_path)
