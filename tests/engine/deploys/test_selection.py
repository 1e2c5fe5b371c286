"""Another filter, other types: from one position on, while workers of the old version run."""

import asyncio
from collections.abc import Callable

import pytest

from engine.deploys.deploy import Deploy
from engine.deploys.load import Load
from engine.deploys.record import Record, by_stream, disorders, overlaps
from engine.deploys.stored import Definition, Stored
from engine.deploys.version import Version
from milepost import Message, Milepost
from patience import within

V1 = Version(label="v1", lease=15)

Wanted = Callable[[Message[object]], bool]


async def decided(
    mp: Milepost, newer: Definition, old: Wanted, new: Wanted
) -> tuple[dict[int, int], dict[int, int]]:
    """The positions of what the old and the new definition had to select; each was passed by exactly one."""
    by_old, by_new = {}, {}
    async for message in mp.read(category="s"):
        if newer.had_passed(message.stream, message.position):
            if old(message):
                by_old[message.position] = message.version
        elif new(message):
            by_new[message.position] = message.version
    return by_old, by_new


def check_order(record: Record) -> None:
    """In both versions, and from one to the other."""
    assert overlaps(record.lines(), by_stream) == []
    for version in ("v1", "v2"):
        assert disorders(record.handled(version), by_stream) == []


@pytest.mark.shard("deploys")
async def test_a_changed_filter_holds_from_one_position_on(
    mp: Milepost, deploy: Deploy, load: Load, kept: tuple[Version, Stored]
) -> None:
    first, stored = kept
    old, new = first.but("v1", where="n % 2 == 0"), first.but("v2", where="n % 3 == 0")
    async with load.going_on():
        before = deploy.start(old)
        await deploy.until_handled(old, 20)
        after = deploy.start(new)
        await deploy.until_handled(new, 20)
    _, definition = await stored.definitions()
    by_old, by_new = await decided(
        mp, definition, lambda m: m.properties["n"] % 2 == 0, lambda m: m.properties["n"] % 3 == 0
    )
    await deploy.until(lambda: set(by_new) <= set(deploy.record.positions("v2")))
    # What the old one had handled and could not write any more is decided anew.
    assert set(by_old) <= set(deploy.record.positions("v1"))
    assert sorted(deploy.record.positions("v2")) == sorted(by_new)
    check_order(deploy.record)
    lowest = min(definition.positions)
    await after.until_said(
        f"orders: filter changed: it selected n % 2 == 0 and now selects n % 3 == 0, from position {lowest:,} on"
    )
    await before.until_said(
        "orders: waits until a newer program has ended, which runs it with another definition: "
        "filter n % 3 == 0, here n % 2 == 0"
    )


@pytest.mark.shard("deploys")
async def test_a_type_that_is_added_while_old_workers_run_is_not_passed_by_them(
    mp: Milepost, deploy: Deploy, load: Load, stored: Stored
) -> None:
    old, new = V1.but("v1", types=("a",)), V1.but("v2", types=("a", "b"))
    deploy.start(old)
    await load.append(20)
    await deploy.until_handled(old, 20)
    after = deploy.start(new)
    await mixed(load, lambda: "orders: types changed" in after.said)
    _, definition = await stored.definitions()
    _, by_new = await decided(mp, definition, lambda m: m.type == "a", lambda m: m.type in "ab")
    await deploy.until(lambda: set(by_new) <= set(deploy.record.positions("v2")))
    assert {line.type for line in deploy.record.handled("v1")} == {"a"}
    assert load.of_type["b"] & set(by_new)
    assert sorted(deploy.record.positions("v2")) == sorted(by_new)
    check_order(deploy.record)
    assert "orders: types changed: it selected a and now selects a, b, from position" in after.said


async def mixed(load: Load, is_over: Callable[[], bool]) -> None:
    """Both types, until something has happened and for a while after it."""
    left = 20
    async with asyncio.timeout(60):
        while left:
            left -= is_over()
            await load.append(1, "a")
            await load.append(1, "b")
            await asyncio.sleep(0.003)


async def test_a_handler_that_is_removed_passes_nothing_over_that_was_set_aside(
    mp: Milepost, deploy: Deploy, load: Load, stored: Stored
) -> None:
    old, new = V1.but("v1", types=("a", "b"), delay=60), V1.but("v2", types=("a",))
    deploy.start(old)
    failed = await load.append(1, "b", fails=1)
    await load.append(60)
    behind = {position for position in load.positions if (position - failed) % 20 == 0} - {failed}
    await deploy.until_all(load.positions - behind - {failed})
    await deploy.until(lambda: any(line.event == "failed" for line in deploy.record.lines()))
    second = deploy.start(new)
    await second.until_said("orders: types changed: it selected a, b and now selects a, from position")
    await load.append(40)
    await load.append(20, "b")
    fresh = load.of_type["a"] - {position for position in load.positions if (position - failed) % 20 == 0}
    await deploy.until_all(fresh)
    # It comes due: nobody handles it, and a person has to know.
    await mp.manage("orders").retry([failed])
    await second.until_said("no handler takes messages of type 'b' any more")
    await until_parked(stored, failed)
    await mp.manage("orders").skip([failed])
    await deploy.until_all(load.of_type["a"])
    assert not any(line.type == "b" for line in deploy.record.handled())


async def until_parked(stored: Stored, position: int) -> None:
    async with within(40, stored.rows):
        while (await stored.rows())[position].state != "parked":
            await asyncio.sleep(0.05)


@pytest.mark.shard("deploys")
async def test_a_subscription_that_no_program_has_any_more_waits_for_one(
    mp: Milepost, deploy: Deploy, load: Load
) -> None:
    other = V1.but("v2", name="mails")
    first = deploy.start(V1)
    await load.append(20)
    await deploy.until_all(load.positions)
    assert await first.stop() == 0
    deploy.start(other)
    before = set(load.positions)
    await load.append(20)
    await deploy.until(lambda: load.positions <= set(deploy.record.positions("v2")))
    info = await mp.manage("orders").info()
    assert (info.status, info.lag.positions) == ("waiting", 20)
    deploy.start(V1.but("v3"))
    await deploy.until(lambda: len(deploy.record.positions("v3")) == 20)
    assert sorted(deploy.record.positions("v3")) == sorted(load.positions - before)
