"""Several processes that pull, and are killed while they do: nothing is lost, and the order stays."""

import asyncio
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.pulling import Clock, Jobs
from milepost import Milepost, NewMessage, Retry

PROGRAM = Path(__file__).with_name("pull_program.py")
PATIENCE = 90.0


class Crew:
    """Processes that pull; whoever ends is replaced."""

    def __init__(self, url: str, schema: str, path: Path, limit: int, timeout: float) -> None:
        self._command = [sys.executable, str(PROGRAM), url, schema, str(path), str(limit), str(timeout)]
        self.members: list[subprocess.Popen[bytes]] = []
        self.path = path

    def start(self, count: int) -> None:
        self.members += [subprocess.Popen(self._command) for _ in range(count)]

    def kill(self, one: subprocess.Popen[bytes]) -> None:
        one.send_signal(signal.SIGKILL)
        one.wait()
        self.members.remove(one)

    def replace_ended(self) -> bool:
        """Whether there was one."""
        ended = [each for each in self.members if each.poll() is not None]
        for one in ended:
            self.members.remove(one)
            self.start(1)
        return bool(ended)

    def handled(self) -> dict[str, list[int]]:
        """The versions of each stream, as they came."""
        seen: dict[str, list[int]] = defaultdict(list)
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            stream, version = line.split()
            seen[stream].append(int(version))
        return seen


MakeCrew = Callable[[int, float], Crew]


@pytest.fixture
def crew(database_url: str, schema: str, tmp_path: Path) -> Iterator[MakeCrew]:
    crews: list[Crew] = []

    def make(limit: int, timeout: float) -> Crew:
        crews.append(Crew(database_url, schema, tmp_path / "handled", limit, timeout))
        return crews[-1]

    yield make
    for one in crews:
        for member in list(one.members):
            one.kill(member)


@pytest.mark.shard("faults")
async def test_killed_processes_lose_nothing_and_the_order_stays(mp: Milepost, crew: MakeCrew) -> None:
    streams, versions = 6, 40
    jobs = await Jobs.create(mp, ordered_by="stream", retry=Retry(attempts=100, delay=0.05), stall_after=1000)
    at_work = crew(4, 1.5)
    at_work.start(4)
    chance = random.Random(7)
    for version in range(versions):
        for stream in range(streams):
            await jobs.append(stream=f"job-{stream}")
        if version % 8 == 7:
            await asyncio.sleep(0.3)
            at_work.kill(chance.choice(at_work.members))
            at_work.start(1)
    async with asyncio.timeout(PATIENCE):
        while await jobs.managed.count_deliveries() or (await jobs.managed.info()).lag.positions:
            await asyncio.sleep(0.1)
    handled = at_work.handled()
    assert set(handled) == {f"job-{stream}" for stream in range(streams)}
    for seen in handled.values():
        # What was being handled when its process died comes again, before anything later.
        assert all(later - earlier in (0, 1) for earlier, later in zip([0, *seen], seen, strict=False))
        assert seen[-1] == versions


@pytest.mark.shard("faults")
async def test_a_message_that_kills_whoever_has_it_is_parked(mp: Milepost, crew: MakeCrew) -> None:
    jobs = await Jobs.create(mp, retry=Retry(attempts=3, delay=0.05))
    await jobs.append(10)
    await mp.append("job-2", NewMessage("deadly"))
    await jobs.append(10, "job-3")
    at_work, clock = crew(1, 600), Clock(mp)
    at_work.start(1)
    async with asyncio.timeout(PATIENCE):
        while await jobs.states() != {11: "parked"} or (await jobs.managed.info()).lag.positions:
            if at_work.replace_ended():
                # What it had claimed is free again.
                await clock.advance(601)
            await asyncio.sleep(0.02)
    [parked] = await jobs.rows()
    assert (parked.attempts, parked.reason[:19]) == (3, "its claim expired: ")
    assert {stream: sorted(set(seen)) for stream, seen in at_work.handled().items()} == {
        "job-1": list(range(1, 11)),
        "job-3": list(range(1, 11)),
    }
