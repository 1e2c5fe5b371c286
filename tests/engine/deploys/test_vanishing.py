"""Processes that vanish in the middle of a change of order, and several that want the same at once."""

import asyncio

import pytest

from engine.deploys.deploy import Deploy
from engine.deploys.load import Load
from engine.deploys.record import by_key, by_stream, disorders, overlaps, repeated
from engine.deploys.stored import Stored
from engine.deploys.version import Version
from engine.vanished import expire
from milepost import Milepost
from patience import within

DEPLOYS = pytest.mark.shard("deploys")
V1 = Version(label="v1")

LONG = 5.0
"""Seconds that a message takes which holds a change up."""


async def in_the_middle(
    deploy: Deploy,
    load: Load,
    stored: Stored,
    old: Version,
    new: Version,
    phase: str,
    takes: float = LONG,
) -> None:
    """Starts both versions, and waits until a change of order has come to a phase, where it stays for seconds."""
    deploy.start(old)
    await load.append(60)
    await deploy.until_all(load.positions)
    if phase == "let go":
        await load.append(takes=takes)
    else:
        # One lane is far behind the others, which it has to be brought to.
        await load.append(100, stream="s-0", takes=takes / 100)
    await load.append(60)
    await deploy.until(lambda: len(deploy.record.positions()) > 100)
    deploy.start(new)
    async with within(40, stored.barrier):
        while await stored.barrier() != phase:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kept", ["rows", pytest.param("advisory", marks=DEPLOYS)], indirect=True)
@pytest.mark.parametrize("phase", ["let go", pytest.param("brought", marks=DEPLOYS)])
async def test_the_old_program_vanishes(
    mp: Milepost, deploy: Deploy, load: Load, kept: tuple[Version, Stored], phase: str
) -> None:
    first, stored = kept
    old = first.but("v1", lease=60)
    new = old.but("v2", orders="property", fails=False)
    await in_the_middle(deploy, load, stored, old, new, phase, takes=3600 if phase == "let go" else 100)
    killed, process = deploy.processes
    killed.kill()
    await expire(mp, killed.pid)
    await process.until_said("orders: order changed from stream to property key, from position")
    await load.append(60)
    await deploy.until_all(load.positions)
    assert (await stored.definitions())[-1].number == 2
    # What it had handled and not written comes again, in order.
    assert len(repeated(deploy.record.positions())) < 60
    reached = (await stored.definitions())[-1].positions[0]
    lines = [line for line in deploy.record.lines() if line.position <= reached]
    assert overlaps(lines, by_stream, killed=[killed.pid]) == []
    handled = deploy.record.handled()
    assert disorders([line for line in handled if line.position <= reached], by_stream) == []
    assert disorders([line for line in handled if line.position > reached], by_key) == []


@pytest.mark.parametrize("phase", ["let go", "brought"])
@pytest.mark.shard("deploys")
async def test_the_new_program_vanishes_and_the_old_one_goes_on(
    deploy: Deploy, load: Load, stored: Stored, phase: str
) -> None:
    """By itself: a barrier ends after ten seconds, if nobody renews it."""
    await in_the_middle(deploy, load, stored, V1, V1.but("v2", orders="property"), phase)
    deploy.processes[1].kill()
    await load.append(60)
    await deploy.until_all(load.positions, seconds=30)
    assert [each.number for each in await stored.definitions()] == [1]
    assert deploy.record.positions("v2") == []
    assert repeated(deploy.record.positions()) == []
    assert disorders(deploy.record.handled(), by_stream) == []


@pytest.mark.shard("deploys")
async def test_two_new_processes_at_once(deploy: Deploy, load: Load, stored: Stored) -> None:
    new = V1.but("v2", orders="property", lanes=6)
    async with load.going_on():
        old = deploy.start(V1)
        await deploy.until_handled(V1, 50)
        both = [deploy.start(new), deploy.start(new)]
        await deploy.until(lambda: deploy.record.pids() == {old.pid, *(one.pid for one in both)})
        assert await old.stop() == 0
    await deploy.until_all(load.positions)
    assert [each.number for each in await stored.definitions()] == [1, 2]
    assert repeated(deploy.record.positions()) == []
    assert disorders(deploy.record.handled("v2"), by_key) == []
    assert max(deploy.record.positions("v1")) < min(deploy.record.positions("v2"))


@pytest.mark.shard("deploys")
async def test_two_different_new_programs_at_once(deploy: Deploy, load: Load, stored: Stored) -> None:
    """One after the other; which is the last does not matter, and the others wait."""
    deploy.start(V1)
    await load.append(60)
    await deploy.until_all(load.positions)
    deploy.start(V1.but("v2", orders="property"))
    deploy.start(V1.but("v3", lanes=7))
    async with within(30, stored.definitions):
        while len(await stored.definitions()) < 3:
            await asyncio.sleep(0.05)
    async with load.going_on():
        await deploy.until(lambda: len(set(deploy.record.positions())) > 200)
    await deploy.until_all(load.positions)
    definitions = await stored.definitions()
    assert [each.number for each in definitions] == [1, 2, 3]
    assert repeated(deploy.record.positions()) == []
