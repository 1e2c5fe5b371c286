"""Everything dies at random."""

from pathlib import Path

import pytest

from engine.faults.chaos import chaos
from servers import Server

pytestmark = pytest.mark.shard("faults")


@pytest.mark.timeout(110)
async def test_whatever_dies_every_message_is_handled_or_parked(server: Server, tmp_path: Path) -> None:
    await chaos(10, server, tmp_path)
