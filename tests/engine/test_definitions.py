"""Programs that change what they select, and how they order, while others run: nothing is passed over."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from milepost import Message, Milepost, MilepostError, NewMessage, Transaction, by_function, by_property
from milepost.engine.handlers import host
from milepost.names import bucket_of
from patience import looked_at, within
from support import MakeMilepost, qualified


class A(msgspec.Struct):
    n: int


class B(msgspec.Struct):
    n: int


DEPLOYS = pytest.mark.shard("deploys")


def program(mp: Milepost, seen: list[Any], *, newer: bool) -> Milepost:
    """Two versions of a program: the newer handles one type more."""
    mp.message("a")(A)
    mp.message("b")(B)
    subscription = mp.subscription("types", category="s", lanes=4)

    @subscription.on
    async def on_a(event: A) -> None:
        seen.append(event)

    if newer:

        @subscription.on
        async def on_b(event: B) -> None:
            seen.append(event)

    return mp


async def until(condition: Any) -> None:
    async with within(40, lambda: looked_at(condition)):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_type_that_only_a_newer_program_handles_is_not_passed_by_an_older_one(
    make_mp: MakeMilepost,
) -> None:
    seen: list[Any] = []
    old, new = program(make_mp(), seen, newer=False), program(make_mp(), seen, newer=True)
    async with old, new, old.running(grace=1), new.running(grace=1):
        for n in range(40):
            await new.append(f"s-{n}", B(n))
            await new.append(f"s-{n}", A(n))
        # What the older one had handled, and could not write any more, comes twice.
        await until(lambda: len({(type(event), event.n) for event in seen}) == 80)


async def test_an_older_program_waits_while_a_newer_one_runs_and_goes_on_after_it(
    make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "REDECLARE_SECONDS", 0.1)
    by_new: list[Any] = []
    by_old: list[Any] = []
    old, new = program(make_mp(), by_old, newer=False), program(make_mp(), by_new, newer=True)
    async with old, new:
        await old.run_until_idle()  # the first definition is its
        async with new.running(grace=1):
            await new.append("s-1", B(1))
            await until(lambda: len(by_new) == 1)
            async with old.running(grace=1):
                for n in range(40):
                    await new.append(f"s-{n}", A(n))
                await until(lambda: len(by_new) == 41)
        assert by_old == []
        async with old.running(grace=1):
            await old.append("s-1", A(99))
            await until(lambda: A(99) in by_old)


def ordering(mp: Milepost, seen: list[int], order: Any, *, exactly_once: bool) -> Milepost:
    subscription = mp.subscription("ordered", category="s", lanes=4, ordered_by=order)
    if exactly_once:

        @subscription
        async def write(message: Message[Any], tx: Transaction) -> None:
            seen.append(message.position)

    else:

        @subscription
        async def handle(message: Message[Any]) -> None:
            seen.append(message.position)

    return mp


async def stand_apart(mp: Milepost, seen: list[int], *, quoted: bool = False) -> None:
    """Everything is handled but what one lane has after position 100: as if its owner had been slow."""
    for n in range(400):
        await mp.append(f"s-{n % 50}", NewMessage("placed", properties={"key": n}))
    await mp.run_until_idle()
    moved = """
        insert into {0}.cursors (subscription, lane, revision, epoch, released, "position", ahead)
        select c.subscription, c.lane, c.revision + 1, c.epoch, true, 100, '{{}}' from {0}.cursors c
        where c.lane = 2 order by c.revision desc limit 1
    """
    await mp.log.database.execute(qualified(moved, mp), {})
    keys = {position: f'"{position - 1}"' if quoted else str(position - 1) for position in seen}
    slow = {position for position, key in keys.items() if position > 100 and bucket_of(key) % 4 == 2}
    assert slow
    seen[:] = [position for position in seen if position not in slow]


@pytest.mark.parametrize("exactly_once", [pytest.param(False, marks=DEPLOYS), True])
async def test_an_order_changes_after_the_old_program_is_gone(make_mp: MakeMilepost, exactly_once: bool) -> None:
    seen: list[int] = []
    async with ordering(make_mp(), seen, by_property("key"), exactly_once=exactly_once) as old:
        await stand_apart(old, seen)
    async with ordering(make_mp(), seen, "stream", exactly_once=exactly_once) as new:
        await new.run_until_idle()
    assert sorted(seen) == list(range(1, 401))


def by_key(message: Message[Any]) -> str:
    return str(message.properties["key"])


async def test_an_unknown_order_function_passes_nothing_over(make_mp: MakeMilepost) -> None:
    seen: list[int] = []
    async with ordering(make_mp(), seen, by_function(by_key), exactly_once=False) as old:
        await stand_apart(old, seen, quoted=True)
    async with ordering(make_mp(), seen, "stream", exactly_once=False) as new:
        await new.run_until_idle()
    assert set(seen) == set(range(1, 401))


async def test_an_unknown_order_function_is_refused_where_handlers_write_exactly_once(
    make_mp: MakeMilepost,
) -> None:
    seen: list[int] = []
    async with ordering(make_mp(), seen, by_function(by_key), exactly_once=True) as old:
        await stand_apart(old, seen, quoted=True)
        with pytest.raises(MilepostError, match="would come twice"):
            await ordering(make_mp(), seen, "stream", exactly_once=True).run_until_idle()
        await old.run_until_idle()
    async with ordering(make_mp(), seen, "stream", exactly_once=True) as new:
        await new.run_until_idle()
    assert sorted(seen) == list(range(1, 401))


def recording(mp: Milepost, seen: list[tuple[int, int]], **options: Any) -> Milepost:
    """Notes the key and the position of each message, after a moment."""

    @mp.subscription("ordered", category="s", **options)
    async def handle(message: Message[Any]) -> None:
        await asyncio.sleep(0.001)
        seen.append((int(message.properties["key"]), message.position))

    return mp


async def append_until(mp: Milepost, enough: Callable[[], bool]) -> int:
    """Appends until it is enough; how many that are."""
    for n in count(1):
        await mp.append(f"s-{n % 20}", NewMessage("placed", properties={"key": n % 7}))
        if enough():
            return n
    raise AssertionError


@pytest.mark.shard("deploys", fast=["before0-after0"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"ordered_by": "stream"}, {"ordered_by": by_property("key")}),
        pytest.param({"ordered_by": by_function(by_key)}, {"ordered_by": by_property("key")}, marks=DEPLOYS),
        ({"ordered_by": by_property("key"), "lanes": 3}, {"ordered_by": by_property("key"), "lanes": 8}),
        pytest.param(
            {"ordered_by": by_property("key"), "lanes": 8},
            {"ordered_by": by_property("key"), "lanes": 1},
            marks=DEPLOYS,
        ),
    ],
)
async def test_a_barrier_while_old_workers_run(
    make_mp: MakeMilepost, before: dict[str, Any], after: dict[str, Any]
) -> None:
    by_old: list[tuple[int, int]] = []
    by_new: list[tuple[int, int]] = []
    old, new = recording(make_mp(), by_old, **before), recording(make_mp(), by_new, **after)
    async with old, new, old.running(grace=5):
        appending = asyncio.create_task(append_until(old, lambda: len(by_new) > 100))
        await until(lambda: len(by_old) > 100)
        async with new.running(grace=5):
            appended = await asyncio.wait_for(appending, 60)
            await until(lambda: len(by_old) + len(by_new) >= appended)
    # Nothing twice, and nothing of what the old one handled is beyond the barrier.
    assert sorted(position for _, position in by_old + by_new) == list(range(1, appended + 1))
    assert max(position for _, position in by_old) < min(position for _, position in by_new)
    for key in range(7):
        positions = [position for of, position in by_new if of == key]
        assert positions == sorted(positions)
