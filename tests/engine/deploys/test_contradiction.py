"""Two programs of one group that say different things under one name, and both live."""

import pytest

from engine.deploys.deploy import Deploy
from engine.deploys.load import Load
from engine.deploys.record import repeated
from engine.deploys.stored import Stored
from engine.deploys.version import Version
from milepost import DeclaredInCode, Milepost


@pytest.mark.parametrize("kept", ["rows", "advisory"], indirect=True)
@pytest.mark.shard("deploys")
async def test_the_older_one_waits_and_they_do_not_take_turns(
    mp: Milepost, deploy: Deploy, load: Load, kept: tuple[Version, Stored]
) -> None:
    first, stored = kept
    old, new = first.but("v1", where="n % 2 == 0", asks_often=True), first.but("v2", where="n >= 0", lanes=5)
    async with load.going_on(pause=0.05):
        waiting = deploy.start(old)
        await deploy.until_handled(old, 10)
        runs = deploy.start(new)
        await runs.until_said("lanes changed from 4 to 5, from position")
        await waiting.until_said(
            "orders: waits until a newer program has ended, which runs it with another definition: "
            "filter n >= 0, here n % 2 == 0; lanes 5, here 4"
        )
        asked = deploy.folder / f"asked-{waiting.pid}"
        await deploy.until(asked.exists)
        before = asked.stat().st_size
        await deploy.until(lambda: asked.stat().st_size >= before + 3)
        assert [each.number for each in await stored.definitions()][-1] == 2
        assert waiting.said.count("waits until") == 1
        assert "WARNING" not in runs.said
        at_most = max(deploy.record.positions("v1"))
        # When the newer one has ended, the other goes on, and says what that means.
        assert await runs.stop() == 0
        await waiting.until_said("orders: filter changed: it selected n >= 0 and now selects n % 2 == 0")
        await deploy.until(lambda: max(deploy.record.positions("v1")) > at_most)
    assert repeated(deploy.record.positions("v2")) == []


@pytest.mark.shard("deploys")
async def test_who_waits_can_be_seen(mp: Milepost, deploy: Deploy, load: Load) -> None:
    old = Version(label="v1", where="n % 2 == 0")
    deploy.start(old)
    await load.append(20)
    await deploy.until_handled(old, 10)
    newer = deploy.start(old.but("v2", where="n >= 0"))
    await newer.until_said("filter changed")
    await load.append(20)
    await deploy.until(lambda: len(deploy.record.positions("v2")) >= 20)
    info = await mp.manage("orders").info()
    assert info.status == "running"
    assert [owner.split("-")[-2] for owner in info.owners] == [str(deploy.processes[1].pid)]
    assert [worker.split("-")[-2] for worker in info.outdated] == [str(deploy.processes[0].pid)]


@pytest.mark.shard("deploys")
async def test_what_code_declares_is_changed_there_and_what_operators_limit_outlives_it(
    mp: Milepost, deploy: Deploy, load: Load
) -> None:
    old = Version(label="v1", orders="none", takes=0.02)
    first = deploy.start(old)
    await load.append(40)
    await deploy.until_all(load.positions)
    assert most_at_once(deploy, "v1") > 1
    for option in ({"where": "n > 3"}, {"category": "t"}, {"ordered_by": None}, {"lanes": 3}):
        with pytest.raises(DeclaredInCode, match=next(iter(option))):
            await mp.manage("orders").update(**option)
    await mp.manage("orders").update(concurrency=1)
    deploy.start(old.but("v2", where="n >= 0", lanes=6))
    assert await first.stop() == 0
    await load.append(40)
    await deploy.until_all(load.positions)
    assert most_at_once(deploy, "v2") == 1


def most_at_once(deploy: Deploy, version: str) -> int:
    """How many messages a version had in its handlers at the same time, at most."""
    running, most = 0, 0
    for line in deploy.record.lines():
        if line.version == version:
            running += 1 if line.event == "began" else -1
            most = max(most, running)
    return most
