"""More lanes and fewer, while messages come: nothing is lost, nothing comes twice, nothing is out of order."""

import pytest

from engine.deploys.deploy import Deploy
from engine.deploys.load import Load
from engine.deploys.record import by_stream, disorders, overlaps, repeated
from engine.deploys.stored import Stored
from engine.deploys.version import Version

pytestmark = pytest.mark.shard("deploys")


@pytest.mark.timeout(110)
async def test_lanes_grow_and_shrink(deploy: Deploy, load: Load, kept: tuple[Version, Stored]) -> None:
    first, stored = kept
    lanes = [4, 9, 2, 16, 1] if first.leases == "rows" and first.progress is None else [4, 9, 2]
    async with load.going_on():
        before = deploy.start(first)
        await deploy.until_handled(first, 40)
        for number, wanted in enumerate(lanes[1:], 2):
            version = first.but(f"v{number}", lanes=wanted)
            process = deploy.start(version)
            await deploy.until_handled(version, 40)
            had = lanes[number - 2]
            assert f"orders: lanes changed from {had} to {wanted}, from position" in process.said
            assert await before.stop() == 0
            before = process
    await deploy.until_all(load.positions)
    assert repeated(deploy.record.positions()) == []
    assert disorders(deploy.record.handled(), by_stream) == []
    assert overlaps(deploy.record.lines(), by_stream) == []
    definitions = await stored.definitions()
    assert [each.lanes for each in definitions] == lanes
    assert all(len(set(each.positions)) == 1 for each in definitions)
