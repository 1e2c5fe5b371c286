"""Worker processes that are killed at any moment: nothing is lost, and order holds."""

import asyncio
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.faults.chance import seeded
from engine.vanished import expire
from milepost import Milepost, NewMessage
from patience import within
from support import qualified, rows_by_state

PROGRAM = Path(__file__).with_name("program.py")
LEASE = 1.0


class Crew:
    """Worker processes on the test's schema."""

    def __init__(self, url: str, schema: str, path: Path, lease: float) -> None:
        self._arguments = [sys.executable, str(PROGRAM), url, schema, str(path), str(lease)]
        self._path = path
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        self.workers.append(subprocess.Popen(self._arguments))
        return self.workers[-1]

    def calls(self) -> list[tuple[str, int, int]]:
        """Stream, version and attempt of what was handled, in order."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [(stream, int(version), int(attempt)) for stream, version, attempt in map(str.split, lines)]

    def handled(self) -> dict[str, list[int]]:
        """The versions of each stream, in the order in which they were handled."""
        found: dict[str, list[int]] = defaultdict(list)
        for stream, version, _ in self.calls():
            found[stream].append(version)
        return found

    async def until(self, count: int) -> None:
        """Waits until so many messages have been handled at least once."""
        async with within(60, lambda: f"{self}, wanted {count}"):
            while sum(len(set(versions)) for versions in self.handled().values()) < count:
                await asyncio.sleep(0.05)

    def __repr__(self) -> str:
        """What was handled, and how each process stands: for tests that wait in vain."""
        handled = {stream: sorted(set(versions)) for stream, versions in sorted(self.handled().items())}
        return f"{handled} by processes with status {[worker.poll() for worker in self.workers]}"


@contextmanager
def crew(url: str, schema: str, path: Path, lease: float = LEASE) -> Iterator[Crew]:
    found = Crew(url, schema, path, lease)
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
@pytest.mark.shard("faults")
async def test_killed_workers_lose_nothing_and_keep_the_order(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    with seeded() as chance, crew(database_url, schema, tmp_path / "handled") as workers:
        for _ in range(2):
            workers.start()
        appended = 0
        for _ in range(100):
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
        disordered = {stream: found for stream, found in workers.handled().items() if not is_in_order(found)}
        assert disordered == {}


async def test_a_message_that_kills_its_process_is_parked_and_its_neighbours_are_not(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    """Also those that run when it does: they take longer than it, and each of them had one attempt."""
    for number in range(10):
        await mp.append(f"order-{number}", NewMessage("deadly", 0.1) if number == 5 else NewMessage("placed", 0.3))
    with crew(database_url, schema, tmp_path / "handled", lease=60) as workers:

        async def found() -> str:
            return f"{workers}; rows {await rows_by_state(mp)}"

        what = "select \"position\", attempts, reason from {}.deliveries where state = 'parked'"
        statement = qualified(what, mp)
        async with within(100, found):
            while not (parked := list(await mp.log.database.execute(statement, {}))):
                if all(worker.poll() is not None for worker in workers.workers):
                    await expire(mp, *(worker.pid for worker in workers.workers))
                    workers.start()
                await asyncio.sleep(0.05)
        await workers.until(9)
        assert parked == [(6, 3, "its process vanished")]
        # The first crash could not be blamed on anything.
        assert sum(worker.poll() == 9 for worker in workers.workers) == 1 + 3
        wanted = {(f"order-{number}", 1, 1) for number in range(10) if number != 5}
        assert set(workers.calls()) == wanted


async def test_a_graceful_stop_releases_at_once_and_counts_nothing(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    """With a lease that nobody waits for, and that no busy machine loses."""
    with crew(database_url, schema, tmp_path / "handled", lease=15) as workers:
        for turn in range(2):
            for number in range(20):
                await mp.append(f"order-{number}", NewMessage("placed"))
            worker = workers.start()
            await workers.until((turn + 1) * 20)
            worker.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.wait, 20) == 0
            owned = await mp.log.database.execute(qualified("select count(owner) from {}.lanes", mp), {})
            assert list(owned) == [(0,)]
        assert all(versions == [1, 2] for versions in workers.handled().values())
        rows = await mp.log.database.execute(qualified("select count(*) from {}.deliveries", mp), {})
        assert list(rows) == [(0,)]
