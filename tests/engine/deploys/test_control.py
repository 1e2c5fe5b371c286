"""What people do to a subscription while its definition changes."""

import asyncio

import pytest

from engine.deploys.deploy import Deploy
from engine.deploys.load import Load
from engine.deploys.record import by_stream, disorders, repeated
from engine.deploys.stored import Stored
from engine.deploys.version import Version
from milepost import Milepost, NewMessage
from patience import within

pytestmark = pytest.mark.shard("deploys")

V1 = Version(label="v1")


async def standing_apart(mp: Milepost, deploy: Deploy, load: Load, version: Version) -> None:
    """Paused in the middle of work, with lanes at different positions."""
    await load.append(100, stream="s-0", takes=0.02)
    await load.append(200)
    deploy.start(version)
    await deploy.until(lambda: len(deploy.record.positions()) > 150)
    await mp.manage("orders").pause()
    assert len({lane.position for lane in (await mp.manage("orders").info()).lanes}) > 1


async def test_paused_it_stays_paused_and_changes_when_it_goes_on(
    mp: Milepost, deploy: Deploy, load: Load, stored: Stored
) -> None:
    await standing_apart(mp, deploy, load, V1)
    handled = len(deploy.record.positions())
    process = deploy.start(V1.but("v2", lanes=6, other=True))
    await process.until_said(
        "orders: lanes are to change from 4 to 6, as soon as all lanes have come to one position"
    )
    await process.until_said("orders: it is paused")
    # What else it has goes on meanwhile.
    other = await mp.append("other-1", NewMessage("a", {}))
    await deploy.until(lambda: (deploy.folder / f"other-{other.position}").exists())
    assert len(deploy.record.positions()) == handled
    assert (await mp.manage("orders").info()).status == "paused"
    # Nothing keeps a person from doing something else.
    assert (await mp.manage("orders").info()).barrier is None
    await mp.manage("orders").resume()
    await deploy.until_all(load.positions)
    await process.until_said("orders: lanes changed from 4 to 6, from position")
    await load.append(40)
    await deploy.until_all(load.positions)
    assert repeated(deploy.record.positions()) == []
    assert disorders(deploy.record.handled(), by_stream) == []
    assert len(deploy.record.positions("v2")) >= 40


async def test_a_filter_changes_while_it_is_paused(mp: Milepost, deploy: Deploy, load: Load) -> None:
    await standing_apart(mp, deploy, load, V1)
    done = set(deploy.record.positions())
    process = deploy.start(V1.but("v2", where="n % 2 == 0"))
    await process.until_said("orders: filter changed: it selected everything and now selects n % 2 == 0, from")
    assert (await mp.manage("orders").info()).status == "paused"
    await mp.manage("orders").resume()
    left = {message.position async for message in mp.read(category="s", where="n % 2 == 0")} - done
    await deploy.until(lambda: left <= set(deploy.record.positions("v2")))
    assert set(deploy.record.positions("v2")) == left
    assert set(deploy.record.positions("v1")) == done


async def test_a_replay_comes_to_its_end_first(mp: Milepost, deploy: Deploy, load: Load, stored: Stored) -> None:
    old = V1.but("v1", takes=0.02)
    deploy.start(old)
    await load.append(200)
    await deploy.until_all(load.positions)
    await until_no_lag(mp)
    # Paused, so that the new program is there before the replay has an end.
    await mp.manage("orders").pause()
    assert await mp.manage("orders").replay(0) == 200
    process = deploy.start(V1.but("v2", lanes=6))
    more = await load.append(50)
    await process.until_said("orders: lanes are to change from 4 to 6")
    await mp.manage("orders").resume()
    await process.until_said("orders: lanes changed from 4 to 6, from position")
    await deploy.until(lambda: more in deploy.record.positions())
    await deploy.until(lambda: len(deploy.record.positions()) == 450)
    replayed = [line.position for line in deploy.record.handled() if line.replay]
    assert sorted(replayed) == sorted(at for at in load.positions if at <= 200)
    assert repeated(line.position for line in deploy.record.handled() if not line.replay) == []
    # The old program did it: it was not interrupted.
    assert {line.version for line in deploy.record.handled() if line.replay} == {"v1"}
    assert (await mp.manage("orders").info()).replaying == 0


async def until_no_lag(mp: Milepost) -> None:
    async with within(40, mp.manage("orders").info):
        while (await mp.manage("orders").info()).lag.positions:
            await asyncio.sleep(0.02)


async def test_a_replay_goes_on_when_the_old_program_is_gone(
    mp: Milepost, deploy: Deploy, load: Load, stored: Stored
) -> None:
    """The new one brings it to its end, by the old order, before that changes."""
    first = deploy.start(V1)
    await load.append(200)
    await deploy.until_all(load.positions)
    await until_no_lag(mp)
    assert await first.stop() == 0
    assert await mp.manage("orders").replay(50) == 150
    process = deploy.start(V1.but("v2", orders="property", takes=0.01))
    await process.until_said("orders: order changed from stream to property key, from position")
    assert (await stored.definitions())[-1].positions == [200] * 4
    replayed = [line for line in deploy.record.handled() if line.replay]
    assert sorted(line.position for line in replayed) == list(range(51, 201))
    assert disorders(replayed, by_stream) == []
    await load.append(30)
    await deploy.until(lambda: len(deploy.record.positions("v2")) == 180)
    assert repeated(deploy.record.positions("v2")) == []
