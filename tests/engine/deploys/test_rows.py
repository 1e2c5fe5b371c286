"""Messages that were set aside when order or lanes change: they keep their state under their new key and lane."""

import asyncio

import pytest

from engine.deploys.deploy import Deploy
from engine.deploys.load import Load
from engine.deploys.record import by_key, disorders, overlaps, repeated
from engine.deploys.stored import Row, Stored
from engine.deploys.version import Version
from milepost import Milepost
from milepost.names import bucket_of
from patience import within

V1 = Version(label="v1", lease=15)


async def parked_one(deploy: Deploy, load: Load, stored: Stored, version: Version) -> int:
    """The position of a message that a version has parked, with others of its stream behind it."""
    await load.append(20)
    position = await load.append(parks=True)
    await load.append(60)
    stream = load.messages[position][0]
    behind = {at for at, (of, _) in load.messages.items() if of == stream and at > position}
    deploy.start(version)
    await deploy.until_all(load.positions - behind - {position})
    rows = await until_rows(stored, behind | {position})
    assert {row.state for row in rows.values()} == {"parked", "waiting"}
    return position


async def test_a_parked_message_holds_its_new_key(
    mp: Milepost, deploy: Deploy, load: Load, stored: Stored
) -> None:
    new = V1.but("v2", orders="property", lanes=3, fails=False)
    parked = await parked_one(deploy, load, stored, V1)
    stream, key = load.messages[parked]
    waited = set(await stored.rows()) - {parked}
    process = deploy.start(new)
    await process.until_said("orders: order changed from stream to property key; lanes changed from 4 to 3, from")
    _, definition = await stored.definitions()
    later = await load.append(50)
    # What waited for its stream waits for its key now, or for nobody; what comes later waits for its key.
    holds = {
        at for at, (_, of) in load.messages.items() if of == key and (at in waited or at > definition.positions[0])
    }
    await deploy.until_all(load.positions - holds - {parked})
    rows = await until_rows(stored, holds | {parked})
    assert {(row.key, row.lane) for row in rows.values()} == {(str(key), bucket_of(str(key)) % 3)}
    assert (rows[parked].state, rows[parked].attempts) == ("parked", 1)
    await mp.manage("orders").retry([parked])
    await deploy.until_all(load.positions)
    assert later in deploy.record.positions("v2")
    lines = [line for line in deploy.record.lines() if line.version == "v2"]
    assert overlaps(lines, by_key) == []
    assert disorders(deploy.record.handled("v2"), by_key) == []
    assert repeated(deploy.record.positions()) == []
    assert stream == "s-0"


async def until_rows(stored: Stored, positions: set[int]) -> dict[int, Row]:
    """Waits until these are set aside, and nothing else."""
    async with within(40, stored.rows):
        while set(rows := await stored.rows()) != positions:
            await asyncio.sleep(0.05)
    return rows


@pytest.mark.shard("deploys")
async def test_without_an_order_nothing_waits_any_more(deploy: Deploy, load: Load, stored: Stored) -> None:
    parked = await parked_one(deploy, load, stored, V1)
    process = deploy.start(V1.but("v2", orders="none", lanes=8))
    await process.until_said("orders: order changed from stream to none; lanes changed from 4 to 8, from position")
    await deploy.until_all(load.positions - {parked})
    rows = await until_rows(stored, {parked})
    stream, _ = load.messages[parked]
    assert rows[parked] == Row(parked, "parked", bucket_of(stream) % 8, None, 1)
    assert repeated(deploy.record.positions()) == []


@pytest.mark.shard("deploys")
async def test_with_an_order_later_ones_wait(mp: Milepost, deploy: Deploy, load: Load, stored: Stored) -> None:
    old, new = V1.but("v1", orders="none"), V1.but("v2", fails=False)
    deploy.start(old)
    parked = await load.append(parks=True)
    await load.append(100)
    await deploy.until_all(load.positions - {parked})
    process = deploy.start(new)
    await process.until_said("orders: order changed from none to stream, from position")
    stream, _ = load.messages[parked]
    before = load.positions
    await load.append(60)
    behind = {at for at, (of, _) in load.messages.items() if of == stream and at not in before}
    assert len(behind) == 3
    await deploy.until_all(load.positions - behind - {parked})
    rows = await until_rows(stored, behind | {parked})
    assert {row.key for row in rows.values()} == {stream}
    await mp.manage("orders").retry([parked])
    await deploy.until_all(load.positions)
    in_stream = [line.position for line in deploy.record.handled("v2") if line.stream == stream]
    assert in_stream == [parked, *sorted(behind)]


@pytest.mark.shard("deploys")
async def test_a_message_between_two_attempts_keeps_their_number_and_its_time(
    deploy: Deploy, load: Load, stored: Stored
) -> None:
    old = V1.but("v1", delay=6)
    deploy.start(old)
    failing = await load.append(fails=1)
    await load.append(60)
    stream, key = load.messages[failing]
    behind = {at for at, (of, _) in load.messages.items() if of == stream and at > failing}
    await deploy.until_all(load.positions - behind - {failing})
    before = (await until_rows(stored, behind | {failing}))[failing]
    assert (before.state, before.attempts) == ("retrying", 1)
    process = deploy.start(V1.but("v2", orders="property", lanes=2))
    await process.until_said("orders: order changed from stream to property key")
    assert (await stored.rows())[failing] == Row(failing, "retrying", bucket_of(str(key)) % 2, str(key), 1)
    assert failing not in deploy.record.positions()
    await deploy.until_all(load.positions)
    attempts = [line.attempt for line in deploy.record.handled("v2") if line.position == failing]
    assert attempts == [2]
    # Those of its stream that have another key did not wait for it any longer.
    order = deploy.record.positions("v2")
    assert all(order.index(at) < order.index(failing) for at in behind if load.messages[at][1] != key)
    assert disorders(deploy.record.handled("v2"), by_key) == []
