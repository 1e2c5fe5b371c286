"""Handlers that write in the transaction of their progress: whatever changes, each message takes effect once."""

import asyncio
from typing import Any

import pytest

from engine.deploys.deploy import Deploy
from engine.deploys.load import Load
from engine.deploys.stored import Stored
from engine.deploys.version import Version
from patience import within

DEPLOYS = pytest.mark.shard("deploys")


async def written(stored: Stored) -> list[int]:
    """The positions of what took effect."""
    return [row[0] for row in await stored.ask('select "position" from {0}.effects')]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"orders": "property"}, id="orders", marks=DEPLOYS),
        pytest.param({"lanes": 7}, id="lanes", marks=DEPLOYS),
        pytest.param({"where": "n >= 0"}, id="where", marks=DEPLOYS),
        pytest.param({"orders": "function 1", "where": "n >= 0"}, id="orders-where", marks=DEPLOYS),
    ],
)
async def test_each_message_takes_effect_once(
    deploy: Deploy, load: Load, stored: Stored, changes: dict[str, Any]
) -> None:
    old = Version(label="v1", exactly_once=True, takes=0.005)
    new = old.but("v2", **changes)
    await stored.ask('create table {0}.effects ("position" bigint, version text)')
    async with load.going_on(pause=0.02):
        deploy.start(old)
        deploy.start(old)
        await deploy.until_handled(old, 20)
        deploy.start(new)
        await deploy.until_handled(new, 30)
    async with within(40, lambda: written(stored)):
        while set(await written(stored)) < load.positions:
            await asyncio.sleep(0.05)
    assert sorted(await written(stored)) == sorted(load.positions)
    rows = await stored.ask('select max("position"), version from {0}.effects group by version order by version')
    assert [version for _, version in rows] == ["v1", "v2"]
