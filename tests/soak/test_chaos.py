"""Everything dies at random, for longer than in the tests; MILEPOST_SOAK_SECONDS says how long."""

import os
from pathlib import Path

import pytest

from servers import Server, embedded_binaries

pytest.register_assert_rewrite("engine.faults.chaos", "engine.faults.watch")

from engine.faults.chaos import chaos  # noqa: E402

SECONDS = float(os.environ.get("MILEPOST_SOAK_SECONDS", "60"))

pytestmark = [pytest.mark.shard("soak"), pytest.mark.timeout(SECONDS + 300)]


async def test_whatever_dies_every_message_is_handled_or_parked(tmp_path: Path) -> None:
    server = Server(embedded_binaries()).create()
    try:
        await chaos(SECONDS, server, tmp_path)
    finally:
        server.remove()
