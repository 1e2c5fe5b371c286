"""How far a subscription is with one stream: the version handled, the version known, lagging or not."""

import asyncio
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from milepost import (
    InvalidMessage,
    MemoryProgress,
    Message,
    Milepost,
    MilepostError,
    NewMessage,
    Park,
    Retry,
    UnknownSubscription,
    by_correlation,
    by_function,
    by_property,
)
from milepost.engine.operate import caught_up
from milepost.engine.operate.caught_up import StreamProgress
from milepost.names import bucket_of
from milepost.postgres import pool
from milepost.progress.postgres import trace
from patience import within
from support import MakeMilepost, qualified


def new(data: Any = None, type: str = "placed", **properties: Any) -> NewMessage:
    return NewMessage(type, data, properties=properties)


def stands(handled: int, known: int, *, exact: bool = True) -> StreamProgress:
    return StreamProgress(stream="order-1", handled=handled, known=known, lagging=handled < known, exact=exact)


async def progress(mp: Milepost, name: str = "odd") -> StreamProgress:
    return await mp.manage(name).progress("order-1")


async def until_stands(mp: Milepost, wanted: StreamProgress, name: str = "odd") -> None:
    async with within(40, lambda: progress(mp, name)):
        while await progress(mp, name) != wanted:
            await asyncio.sleep(0.02)


def odd(mp: Milepost, **options: Any) -> Milepost:
    """A program that parks what is odd and fails at what is bad."""

    @mp.subscription("odd", **{"retry": Retry(delay=1000), "lanes": 4, **options})
    async def handle(message: Message[Any]) -> None:
        if message.data == "odd":
            raise Park("odd")
        if message.data == "bad":
            raise ValueError("bad")

    return mp


async def test_a_stream_from_its_first_message_to_a_parked_one(mp: Milepost) -> None:
    odd(mp)
    await mp.run_until_idle()
    assert await progress(mp) == stands(0, 0)
    await mp.append("order-1", [new(), new()])
    assert await progress(mp) == stands(0, 2)
    await mp.run_until_idle()
    assert await progress(mp) == stands(2, 2)
    await mp.append("order-2", [new("odd")] * 3)
    await mp.append("order-1", [new(), new("odd"), new()])
    await mp.run_until_idle()
    assert await progress(mp) == stands(3, 5)
    await mp.manage("odd").skip([(await mp.trace("order-1"))[3].message.position])
    await mp.run_until_idle()
    assert await progress(mp) == stands(5, 5)


async def test_what_is_not_for_the_subscription_needs_nobody(mp: Milepost) -> None:
    odd(mp, category="order", where="n > 3")
    await mp.run_until_idle()
    await mp.append("order-1", [new(n=1), new(n=2)])
    assert await progress(mp) == stands(2, 2)
    await mp.append("order-1", [new(n=1), new(n=4), new(n=1)])
    assert await progress(mp) == stands(3, 5)
    await mp.append("payment-1", [new(n=9)] * 2)
    assert not (await mp.manage("odd").progress("payment-1")).lagging
    await mp.run_until_idle()
    assert await progress(mp) == stands(5, 5)


async def test_what_is_older_than_where_it_began_needs_nobody(mp: Milepost) -> None:
    await mp.append("order-1", [new()] * 3)
    [[now]] = await mp.log.database.execute(qualified("select {}.clock()", mp), {})
    odd(mp, start=now + timedelta(hours=1))
    await mp.run_until_idle()
    assert await progress(mp) == stands(3, 3)
    await mp.append("order-1", new())
    assert await progress(mp) == stands(4, 4)


@pytest.mark.shard("variants", fast=["stream"])
@pytest.mark.parametrize("order", ["stream", None, by_correlation, by_property("customer")])
async def test_what_is_handled_ahead_of_another_counts_when_that_is(mp: Milepost, order: Any) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    @mp.subscription("slow", ordered_by=order, lanes=4)
    async def handle(message: Message[Any]) -> None:
        if message.data == "slow":
            begun.set()
            await may_end.wait()

    messages = [new("slow" if n == 2 else None, customer=n) for n in range(6)]
    await mp.append("order-1", messages)
    async with mp.running():
        await begun.wait()
        await until_stands(mp, stands(2, 6), "slow")
        may_end.set()
        await until_stands(mp, stands(6, 6), "slow")


@pytest.mark.shard("variants", fast=["False-None", "True-order2"])
@pytest.mark.parametrize(
    "order", [None, by_correlation, by_property("customer"), by_function(lambda m: m.version)]
)
@pytest.mark.parametrize("many", [False, True])
async def test_rows_of_other_orders(mp: Milepost, order: Any, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the versions of the stream, or, where those are many, by the rows of the subscription."""
    monkeypatch.setattr(trace, "TRACE_SPAN_POSITIONS", 2)
    monkeypatch.setattr(caught_up, "TRACE_SPAN_POSITIONS", 1 if many else 100)
    odd(mp, ordered_by=order, on_park="continue")
    for n in range(5):
        await mp.append("order-2", new("odd", customer=n + 100))
    for n in range(8):
        await mp.append("order-1", new("odd" if n in (4, 6) else None, customer=n))
    await mp.run_until_idle()
    assert await progress(mp) == stands(4, 8)
    await mp.manage("odd").skip([5 + 5])
    assert await progress(mp) == stands(6, 8)
    await mp.manage("odd").skip(all=True)
    assert await progress(mp) == stands(8, 8)


async def test_rows_that_say_the_key_of_an_order_of_before(make_mp: MakeMilepost) -> None:
    async with odd(make_mp(), ordered_by=by_property("customer")) as old:
        await old.append("order-1", [new(customer=1), new("odd", customer=2), new(customer=3)])
        await old.run_until_idle()
    async with odd(make_mp()) as mp:
        await mp.run_until_idle()
        await mp.append("order-1", new())
        await mp.run_until_idle()
        assert (await progress(mp)).handled == 1


async def test_whoever_lacks_the_function_says_that_more_may_have_been_handled(make_mp: MakeMilepost) -> None:
    begun = asyncio.Event()
    async with make_mp() as mp, make_mp() as other:

        @mp.subscription("functional", ordered_by=by_function(lambda m: str(m.data)), lanes=4, window=1)
        async def handle(message: Message[Any]) -> None:
            if message.data == "slow":
                begun.set()
                await asyncio.Event().wait()

        lane = bucket_of('"slow"') % 4
        elsewhere = [n for n in range(100) if bucket_of(f'"{n}"') % 4 != lane][:3]
        there = next(n for n in range(100) if bucket_of(f'"{n}"') % 4 == lane)
        await mp.append("order-2", new("slow"))
        await mp.append("order-1", [*map(new, elsewhere), new(there), *map(new, elsewhere)])
        async with mp.running(grace=0):
            await begun.wait()
            await until_stands(mp, stands(3, 7), "functional")
            found = await progress(other, "functional")
            assert (found.known, found.exact) == (7, False)
            assert found.handled <= 3


MORE_SEEDS = [pytest.param(seed, marks=pytest.mark.shard("simulation")) for seed in range(2, 5)]


@pytest.mark.shard("simulation", fast=["1"])
@pytest.mark.parametrize("seed", [0, 1, *MORE_SEEDS])
async def test_it_agrees_with_the_trace(mp: Milepost, seed: int) -> None:
    random = Random(seed)
    order = random.choice(["stream", None, by_property("n")])
    odd(mp, ordered_by=order, where="n > 1", on_park=random.choice(["block", "continue"]))
    await mp.run_until_idle()
    for _ in range(3):
        for _ in range(15):
            data = random.choice([None] * 8 + ["odd"])
            await mp.append(f"order-{random.randint(1, 3)}", new(data, n=random.randint(0, 5)))
        if random.random() < 0.7:
            await mp.run_until_idle()
    for stream in ("order-1", "order-2", "order-3"):
        open_ = [each.message.version for each in await mp.trace(stream) if not each.settled]
        known = await mp.last(stream)
        found = await mp.manage("odd").progress(stream)
        assert (found.handled, found.known) == (min(open_, default=known + 1) - 1, known)


async def test_progress_in_a_second_database(make_mp: MakeMilepost, second_url: str) -> None:
    for order in ("stream", None):
        async with odd(make_mp(progress=second_url, group=str(order)), ordered_by=order, on_park="continue") as mp:
            await mp.append("order-1", [new(), new("odd"), new()])
            await mp.run_until_idle()
            assert (await progress(mp)).handled == 1
            await mp.manage("odd").skip(all=True)
            assert not (await progress(mp)).lagging


async def test_what_cannot_be_said(mp: Milepost, make_mp: MakeMilepost) -> None:
    with pytest.raises(UnknownSubscription, match="there is none at all"):
        await progress(mp)
    odd(mp)
    await mp.run_until_idle()
    with pytest.raises(UnknownSubscription, match="did you mean 'default/odd'"):
        await mp.manage("od").progress("order-1")
    with pytest.raises(InvalidMessage):
        await mp.manage("odd").progress("")
    async with make_mp(progress=MemoryProgress()) as outside:
        with pytest.raises(MilepostError, match="kept outside of PostgreSQL"):
            await progress(outside)


def test_from_code_that_is_not_async(make_mp: MakeMilepost) -> None:
    mp = odd(make_mp())
    with mp.sync:
        mp.sync.append("order-1", [new(), new("odd")])
        mp.sync.run_until_idle()
        assert mp.sync.manage("odd").progress("order-1") == stands(1, 2)


async def test_a_long_stream_that_was_handled_costs_nothing(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    odd(mp, lanes=1)
    await mp.append("order-1", new())
    fill = """
        insert into {0}.messages
            (stream_id, version, category_hash, bucket, size, id, type, data, properties, metadata)
        select stream_id, n, category_hash, bucket, size, gen_random_uuid(), type, data, properties, metadata
        from {0}.messages, generate_series(2, 5000) n
    """
    await mp.log.database.execute(qualified(fill, mp), {})
    await mp.run_until_idle()
    await mp.append("order-1", [new(), new("odd")])
    rows = 0
    fetch = pool.fetch_rows

    async def counting(connection: Any, statement: Any, parameters: Any, seconds: Any = None) -> Any:
        nonlocal rows
        found = await fetch(connection, statement, parameters, seconds)
        rows += len(found)
        return found

    monkeypatch.setattr(pool, "fetch_rows", counting)
    assert await progress(mp) == stands(5_000, 5_002)
    assert rows <= 10


async def test_the_version_up_to_a_position_is_found_by_halves(mp: Milepost) -> None:
    """Also where retention has removed the first versions."""
    for n in range(30):
        await mp.append(f"order-{n % 3}", new())
    for kept_from in (1, 5):
        removed = "delete from {0}.messages where version < %(version)s"
        await mp.log.database.execute(qualified(removed, mp), {"version": kept_from})
        places = {message.position: message.version async for message in mp.read("order-1")}
        for position in range(32):
            found = await mp.log.last_version("order-1", up_to=position)
            assert found == max((places[at] for at in places if at <= position), default=0)
