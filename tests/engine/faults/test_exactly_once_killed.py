"""Exactly once, whatever is killed when."""

from pathlib import Path

import pytest

from engine.faults.killing import kill_for
from milepost import Milepost


@pytest.mark.timeout(100)
async def test_a_killed_worker_s_messages_take_effect_once(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    await kill_for(6, mp, database_url, schema, tmp_path)
