"""Another filter, other types: from one position on, while workers of the old version run."""

import pytest

from engine.deploys.deploy import Deploy
from engine.deploys.load import Load
from engine.deploys.record import by_stream, disorders, overlaps
from engine.deploys.version import Version
from milepost import Milepost

V1 = Version(label="v1", where="n % 2 == 0")


async def test_a_changed_filter_holds_from_one_position_on(mp: Milepost, deploy: Deploy, load: Load) -> None:
    old, new = V1, V1.but("v2", where="n % 3 == 0")
    async with load.going_on():
        deploy.start(old)
        await deploy.until_handled(old, 50)
        second = deploy.start(new)
        await deploy.until_handled(new, 50)
    await deploy.until_all({position for position in load.positions if False})
    print(second.said)
    print(deploy.processes[0].said)
    print(len(deploy.record.positions("v1")), max(deploy.record.positions("v1")), min(deploy.record.positions("v2")))
