"""Worker processes that are killed at any moment: nothing is lost, and order holds."""

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from milepost import Milepost, NewMessage
from support import qualified

PROGRAM = Path(__file__).with_name("program.py")
LEASE = 1.0


class Crew:
    """Worker processes on the test's schema."""

    def __init__(self, url: str, schema: str, path: Path) -> None:
        self._arguments = [sys.executable, str(PROGRAM), url, schema, str(path), str(LEASE)]
        self._path = path
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        self.workers.append(subprocess.Popen(self._arguments))
        return self.workers[-1]

    def handled(self) -> dict[str, list[int]]:
        """The versions of each stream, in the order in which they were handled."""
        found: dict[str, list[int]] = defaultdict(list)
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            stream, version = line.split()
            found[stream].append(int(version))
        return found

    async def until(self, count: int) -> None:
        """Waits until so many messages have been handled at least once."""
        async with asyncio.timeout(60):
            while sum(len(set(versions)) for versions in self.handled().values()) < count:
                await asyncio.sleep(0.05)


@contextmanager
def crew(url: str, schema: str, path: Path) -> Iterator[Crew]:
    found = Crew(url, schema, path)
    try:
        yield found
    finally:
        for worker in found.workers:
            worker.kill()
            worker.wait()


def is_in_order(versions: list[int]) -> bool:
    """Whether each version came first after all before it had come; after a crash some come again."""
    highest = 0
    for version in versions:
        if version > highest + 1:
            return False
        highest = max(highest, version)
    return True


@pytest.mark.timeout(110)
async def test_killed_workers_lose_nothing_and_keep_the_order(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    with crew(database_url, schema, tmp_path / "handled") as workers:
        for _ in range(2):
            workers.start()
        until = time.monotonic() + 8
        appended = 0
        while time.monotonic() < until:
            for _ in range(20):
                await mp.append(f"order-{chance.randrange(20)}", NewMessage("placed"))
                appended += 1
            await asyncio.sleep(chance.random() * 0.1)
            if chance.random() < 0.1:
                victim = chance.choice(workers.workers)
                if victim.poll() is None:
                    victim.send_signal(signal.SIGKILL)
                workers.start()
        await workers.until(appended)
        handled = workers.handled()
    assert all(is_in_order(versions) for versions in handled.values()), f"seed {seed}"


async def test_a_message_that_kills_its_process_is_parked_and_its_neighbours_are_not(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    for number in range(10):
        await mp.append(f"order-{number}", NewMessage("deadly" if number == 5 else "placed"))
    with crew(database_url, schema, tmp_path / "handled") as workers:
        what = "select \"position\", attempts, reason from {}.deliveries where state = 'parked'"
        statement = qualified(what, mp)
        async with asyncio.timeout(100):
            while not (parked := list(await mp.log.database.execute(statement, {}))):
                if all(worker.poll() is not None for worker in workers.workers):
                    workers.start()
                await asyncio.sleep(0.05)
        await workers.until(9)
        assert parked == [(6, 3, "its process vanished")]
        # The first crash could not be blamed on anything.
        assert sum(worker.poll() == 9 for worker in workers.workers) == 1 + 3
        assert set(workers.handled()) == {f"order-{number}" for number in range(10) if number != 5}


async def test_a_graceful_stop_releases_at_once_and_counts_nothing(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    with crew(database_url, schema, tmp_path / "handled") as workers:
        for turn in range(3):
            for number in range(20):
                await mp.append(f"order-{number}", NewMessage("placed"))
            worker = workers.start()
            await workers.until((turn + 1) * 20)
            worker.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.wait, 20) == 0
            owned = await mp.log.database.execute(qualified("select count(owner) from {}.lanes", mp), {})
            assert list(owned) == [(0,)]
        assert all(versions == [1, 2, 3] for versions in workers.handled().values())
        rows = await mp.log.database.execute(qualified("select count(*) from {}.deliveries", mp), {})
        assert list(rows) == [(0,)]
