"""What a worker keeps in memory does not grow with what waits for it."""

import asyncio
from pathlib import Path

import psutil
import pytest

from engine.faults.crew import Crew, Worker, crew, until
from milepost import Milepost, NewMessage
from patience import within

pytestmark = pytest.mark.shard("large")

FEW, MANY = 20_000, 100_000
MORE = 40 * 2**20
"""Bytes that a worker may take more for five times the backlog; the messages themselves would take far more."""
SLOWLY = {"takes": 0.05, "text": "x" * 200}


async def append(mp: Milepost, count: int) -> None:
    """Messages of many streams, in large transactions."""
    messages = [NewMessage("placed", SLOWLY)] * 10
    for first in range(0, count, 5000):
        await mp.append_many({f"order-{first + number}": messages for number in range(500)})


async def resident(workers: Crew, worker: Worker) -> int:
    """What a process takes once that has stopped to grow, in bytes: for a second in which it did its work."""
    process = psutil.Process(worker.pid)
    least_growth, quiet, most, handled = 2**20, 0, 0, 0
    async with within(60, lambda: f"{most} bytes, still growing or at rest; {workers}"):
        while quiet < 10 or workers.handled_by(worker) == handled:
            await asyncio.sleep(0.1)
            taken = process.memory_info().rss
            quiet = quiet + 1 if taken < most + least_growth else 0
            handled = handled if quiet else workers.handled_by(worker)
            most = max(most, taken)
    return most


@pytest.mark.timeout(110)
async def test_memory_does_not_grow_with_the_backlog(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    """Neither of a worker that runs while the backlog grows, nor of one that comes to it."""
    await append(mp, FEW)
    with crew(database_url, schema, tmp_path, lines={"lanes": 4}) as workers:
        worker = workers.start()
        await until(lambda: workers.handled_by(worker) > 0)
        few = await resident(workers, worker)
        await append(mp, MANY - FEW)
        assert await resident(workers, worker) < few + MORE
        assert await workers.stop(worker) == 0
        another = workers.start()
        await until(lambda: workers.handled_by(another) > 0)
        assert await resident(workers, another) < few + MORE
