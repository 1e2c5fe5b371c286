"""Rolling deploys: process after process is replaced by one of another version, and back, while messages come."""

import pytest

from engine.deploys.deploy import Deploy, Process
from engine.deploys.load import Load
from engine.deploys.record import by_stream, disorders, overlaps, repeated
from engine.deploys.stored import Stored
from engine.deploys.version import Version

pytestmark = pytest.mark.shard("deploys")

V1 = Version(label="v1")


async def roll(deploy: Deploy, running: list[Process], version: Version) -> None:
    """Each process is replaced, the next when the one before works."""
    for number, process in enumerate(running):
        running[number] = deploy.start(version)
        await deploy.until(lambda pid=running[number].pid: pid in deploy.record.pids())  # type: ignore[misc]
        assert await process.stop() == 0


async def roll_back(deploy: Deploy, running: list[Process], version: Version) -> None:
    """The same with a version that was there before: it waits until all that is newer has ended."""
    for number, process in enumerate(running):
        running[number] = deploy.start(version)
        await running[number].until_said("orders: waits until a newer program has ended")
        assert await process.stop() == 0
    await deploy.until_handled(version)


@pytest.mark.timeout(180)
async def test_forwards_and_back_under_load(deploy: Deploy, load: Load, stored: Stored) -> None:
    async with load.going_on(pause=0.01):
        running = [deploy.start(V1), deploy.start(V1)]
        await deploy.until_handled(V1, 20)
        await roll(deploy, running, V1.but("v2", lanes=6))
        await roll_back(deploy, running, V1.but("v3"))
        await roll(deploy, running, V1.but("v4", types=("a", "b")))
        await roll_back(deploy, running, V1.but("v5"))
    await deploy.until_all(load.positions)
    assert disorders(deploy.record.handled(), by_stream) == []
    assert overlaps(deploy.record.lines(), by_stream) == []
    assert {line.attempt for line in deploy.record.lines()} == {1}
    # Changed lanes repeat nothing; another selection takes over at once, and what was not written comes again.
    quiet = [at for version in ("v1", "v2", "v3") for at in deploy.record.positions(version)]
    assert repeated(quiet) == []
    assert [each.lanes for each in await stored.definitions()] == [4, 6, 4, 4, 4]
