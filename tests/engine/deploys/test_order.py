"""Another order: old workers bring all lanes to one position, and nothing is lost, twice or out of order."""

import pytest

from engine.deploys.deploy import Deploy
from engine.deploys.load import Load
from engine.deploys.record import Key, Record, by_key, by_stream, disorders, overlaps, repeated
from engine.deploys.stored import Stored
from engine.deploys.version import Version
from milepost import Milepost, NewMessage

DEPLOYS = pytest.mark.shard("deploys")
V1 = Version(label="v1", lease=15)
ORDER: dict[str, Key] = {"stream": by_stream, "property": by_key, "function 1": by_key, "function 2": by_key}


def check_order(record: Record, **orders: str) -> None:
    """Each version keeps its own order, and begins where the one before has ended."""
    for version, order in orders.items():
        lines = [line for line in record.lines() if line.version == version]
        assert overlaps(lines, ORDER[order]) == []
        assert disorders(record.handled(version), ORDER[order]) == []
    for older, newer in zip(list(orders)[:-1], list(orders)[1:], strict=True):
        assert max(record.positions(older)) < min(record.positions(newer))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("stream", "property"),
        pytest.param("function 1", "function 2", marks=DEPLOYS),
        pytest.param("function 1", "stream", marks=DEPLOYS),
        pytest.param("property", "stream", marks=DEPLOYS),
    ],
)
async def test_a_barrier_while_old_workers_run(deploy: Deploy, load: Load, before: str, after: str) -> None:
    old, new = V1.but("v1", orders=before), V1.but("v2", orders=after)
    async with load.going_on():
        deploy.start(old)
        deploy.start(old)
        await deploy.until_handled(old, 30)
        process = deploy.start(new)
        await deploy.until_handled(new, 30)
    await deploy.until_all(load.positions)
    assert repeated(deploy.record.positions()) == []
    check_order(deploy.record, v1=before, v2=after)
    await process.until_said("orders: order is to change from ")
    await process.until_said(", as soon as all lanes have come to one position")
    await process.until_said("orders: order changed from ")
    for outdated in deploy.processes[:2]:
        words = after.replace("function ", "a function, version ")
        await outdated.until_said(f"orders: stands still: it is to order by {words}")
        await outdated.until_said("orders: waits until a newer program has ended")


async def left_behind(deploy: Deploy, load: Load, version: Version) -> None:
    """A program has ended in good order, in the middle of its work, with lanes at different positions."""
    await load.append(30, key=0)
    await load.append(key=0, takes=3600)
    await load.append(30, key=0)
    await load.append(120)
    process = deploy.start(version.but(version.label, grace=0.1))
    await deploy.until_handled(version, 60)
    assert await process.stop() == 0


@DEPLOYS
async def test_an_order_that_is_known_changes_after_the_old_program_is_gone(
    deploy: Deploy, load: Load, stored: Stored
) -> None:
    old, new = V1.but("v1", orders="property", window=50), V1.but("v2", fails=False)
    await left_behind(deploy, load, old)
    process = deploy.start(new)
    await process.until_said("orders: order changed from property key to stream, from position")
    await deploy.until_all(load.positions)
    assert repeated(deploy.record.positions()) == []
    # The new one does what is left of the old order, and knows when that is done.
    _, definition = await stored.definitions()
    reached = definition.positions[0]
    assert set(definition.positions) == {reached}
    handled = deploy.record.handled()
    assert disorders([line for line in handled if line.position <= reached], by_key) == []
    assert disorders([line for line in handled if line.position > reached], by_stream) == []
    await process.until_said(f"orders: order changed from property key to stream, from position {reached:,} on")


@DEPLOYS
async def test_an_order_that_nobody_knows_begins_where_the_lowest_lane_was(
    deploy: Deploy, load: Load, stored: Stored
) -> None:
    old = V1.but("v1", orders="function 1", window=50)
    new = V1.but("v2", orders="function 2", fails=False)
    await left_behind(deploy, load, old)
    process = deploy.start(new)
    await process.until_said("orders: order changed from a function, version 1 to a function, version 2, from")
    await deploy.until_all(load.positions)
    _, definition = await stored.definitions()
    [lowest] = set(definition.positions)
    assert max(deploy.record.positions("v1")) > lowest
    assert set(deploy.record.positions("v2")) == {position for position in load.positions if position > lowest}
    assert repeated(deploy.record.positions("v2")) == []
    assert disorders(deploy.record.handled("v2"), by_key) == []
    assert f"version 2, from position {lowest:,} on; of the " in process.said
    assert "what was handled comes again" in process.said


REFUSED = "and cannot: its lanes stand at different positions, nobody is left who knows the old order"


@pytest.fixture
async def effects(mp: Milepost, stored: Stored) -> None:
    """The table that exactly-once handlers write to."""
    await stored.ask('create table {0}.effects ("position" bigint, version text)')


async def written(stored: Stored) -> list[int]:
    """The positions of what took effect."""
    return [row[0] for row in await stored.ask('select "position" from {0}.effects')]


@DEPLOYS
@pytest.mark.usefixtures("effects")
@pytest.mark.parametrize("way", ["old program", "move"])
async def test_what_would_come_twice_is_refused_where_handlers_write_exactly_once(
    mp: Milepost, deploy: Deploy, load: Load, stored: Stored, way: str
) -> None:
    old = V1.but("v1", orders="function 1", exactly_once=True, window=50)
    new = old.but("v2", orders="function 2", other=True, fails=False)
    await left_behind(deploy, load, old)
    process = deploy.start(new)
    await process.until_said(REFUSED)
    # What else it has goes on.
    other = await mp.append("other-1", NewMessage("a", {}))
    await deploy.until(lambda: (deploy.folder / f"other-{other.position}").exists())
    assert not deploy.record.handled("v2")
    if way == "move":
        goal = max(load.positions)
        await mp.manage("orders").move(goal)
        last = await load.append(20)
        await deploy.until(lambda: last in deploy.record.positions("v2"))
        assert min(deploy.record.positions("v2")) > goal
    else:
        deploy.start(old.but("v1b", fails=False))
        await deploy.until_all(load.positions)
        await process.until_said("orders: order changed from a function, version 1 to a function, version 2")
        assert sorted(await written(stored)) == sorted(load.positions)
    assert repeated(await written(stored)) == []
