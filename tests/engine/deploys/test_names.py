"""A subscription with another name: `renamed_from`, while old processes run, restart, and come back."""

import pytest

from engine.deploys.deploy import Deploy
from engine.deploys.load import Load
from engine.deploys.record import by_stream, disorders, repeated
from engine.deploys.version import Version
from milepost import Milepost

V1 = Version(label="v1", lease=15)
V2 = V1.but("v2", name="purchases", renamed_from="orders")


async def names(mp: Milepost) -> list[str]:
    return [info.name for info in await mp.subscriptions()]


@pytest.mark.shard("deploys")
async def test_a_rename_goes_on_where_it_was_while_old_processes_run(
    mp: Milepost, deploy: Deploy, load: Load
) -> None:
    async with load.going_on():
        old = deploy.start(V1)
        await deploy.until_handled(V1, 20)
        new = deploy.start(V2)
        # Both share the work: nothing else has changed.
        await deploy.until_handled(V2, 20)
        await new.until_said("purchases: it was named orders and is now purchases, and goes on where it was")
        assert await names(mp) == ["purchases"]
        assert await old.stop() == 0
    await deploy.until_all(load.positions)
    assert repeated(deploy.record.positions()) == []
    assert disorders(deploy.record.handled(), by_stream) == []


@pytest.mark.shard("deploys")
async def test_an_old_process_that_starts_again_does_not_begin_anew(
    mp: Milepost, deploy: Deploy, load: Load
) -> None:
    first = deploy.start(V1)
    await load.append(100)
    await deploy.until_all(load.positions)
    second = deploy.start(V2)
    await second.until_said("it was named orders and is now purchases")
    assert await first.stop() == 0
    again = V1.but("v1b")
    deploy.start(again)
    async with load.going_on():
        await deploy.until_handled(again, 30)
    await deploy.until_all(load.positions)
    assert repeated(deploy.record.positions()) == []
    # The newer program's name holds as long as that runs, and the older name leads there.
    assert await names(mp) == ["purchases"]
    assert (await mp.manage("orders").info()).name == "purchases"


@pytest.mark.shard("deploys")
async def test_a_rollback_gives_the_old_name_back(mp: Milepost, deploy: Deploy, load: Load) -> None:
    for version in (V1, V2, V1.but("v3"), V2.but("v4"), V2.but("v5", renamed_from=None)):
        process = deploy.start(version)
        await load.append(40)
        await deploy.until_all(load.positions)
        assert await names(mp) == [version.name]
        assert await process.stop() == 0
    assert repeated(deploy.record.positions()) == []


@pytest.mark.shard("deploys")
async def test_a_new_subscription_may_take_the_old_name(mp: Milepost, deploy: Deploy, load: Load) -> None:
    first = deploy.start(V1)
    await load.append(40)
    await deploy.until_all(load.positions)
    assert await first.stop() == 0
    deploy.start(V2.but("v2", beside="orders"))
    await load.append(40)
    await deploy.until(lambda: len(deploy.record.positions("v2")) == 40)
    # The one of the old name is new, and begins at the beginning.
    await deploy.until(lambda: len(deploy.record.positions("v2-orders")) == 80)
    assert await names(mp) == ["orders", "purchases"]
