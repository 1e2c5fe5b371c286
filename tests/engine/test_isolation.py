"""Handlers that write rows which others write, too: one lane, or stricter isolation."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from milepost import Message, Milepost, NewMessage, Park, Retry, Transaction
from milepost.engine.handlers.runner import Runner
from support import MakeMilepost, qualified

STRICT = ["repeatable read", "serializable"]
strict = pytest.mark.parametrize("isolation", STRICT)

Handle = Callable[[Message[Any], Transaction], Awaitable[None]]


def declare(mp: Milepost, handle: Handle, batch: int | None = None, **options: Any) -> None:
    options = {"category": "order", **options}
    if batch is None:

        @mp.subscription("orders", **options)
        async def one(message: Message[Any], tx: Transaction) -> None:
            await handle(message, tx)

    else:

        @mp.subscription("orders", batch=batch, **options)
        async def several(messages: list[Message[Any]], tx: Transaction) -> None:
            for message in messages:
                await handle(message, tx)


async def fill(mp: Milepost, count: int, streams: int = 20) -> None:
    for number in range(count):
        await mp.append(f"order-{number % streams}", NewMessage("placed", number))


async def run(mp: Milepost, text: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return list(await mp.log.database.execute(qualified(text, mp), parameters))


@pytest.mark.shard("variants", fast=["None-None", "read committed-3", "repeatable read-None", "serializable-3"])
@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("isolation", [None, "read committed", *STRICT])
async def test_it_is_that_of_the_transaction(mp: Milepost, isolation: str | None, batch: int | None) -> None:
    seen: set[str] = set()

    async def handle(message: Message[Any], tx: Transaction) -> None:
        [(level,)] = await (await tx.execute("select current_setting('transaction_isolation')")).fetchall()
        seen.add(level)

    declare(mp, handle, batch, **({"isolation": isolation} if isolation else {}))
    await fill(mp, 5)
    await mp.run_until_idle()
    assert seen == {isolation or "read committed"}


async def test_what_it_is_for(mp: Milepost) -> None:
    with pytest.raises(ValueError, match="isolation"):
        mp.subscription("orders", isolation="chaos")
    with pytest.raises(TypeError, match="isolation is for subscriptions with handlers"):
        await mp.create_subscription("orders", isolation="serializable")

    @mp.subscription("orders", isolation="serializable")
    async def handle(message: Message[Any]) -> None: ...

    with pytest.raises(ValueError, match="is for handlers that take a Transaction, and none of its does"):
        await mp.run_until_idle()


async def customer(mp: Milepost) -> None:
    await run(mp, "create table {}.customers (total bigint)")
    await run(mp, "insert into {}.customers values (0)")


def adds_up(mp: Milepost) -> Handle:
    """Return a handler that reads a row, and writes what it makes of it."""

    async def handle(message: Message[Any], tx: Transaction) -> None:
        cursor = await tx.execute(qualified("select total from {}.customers", mp))
        [(total,)] = await cursor.fetchall()
        await asyncio.sleep(0)
        await tx.execute(qualified("update {}.customers set total = %s", mp), (total + message.data,))

    return handle


@pytest.mark.shard("variants", fast=["5"])
@pytest.mark.parametrize("batch", [None, 5])
async def test_without_a_word_they_run_one_after_the_other(
    make_mp: MakeMilepost, mp: Milepost, batch: int | None
) -> None:
    """So that no update is lost, though the isolation would allow it; also with several processes."""
    count = 60
    await customer(mp)
    async with make_mp() as other:
        for each in (mp, other):
            declare(each, adds_up(mp), batch)
        async with other.running():
            await fill(mp, count)
            async with mp.running():
                last = await mp.append("order-last", NewMessage("placed", 0))
                await mp.manage("orders").caught_up(last, timeout=60)
    assert await run(mp, "select total from {}.customers") == [(sum(range(count)),)]


async def test_how_many_lanes_there_are(mp: Milepost) -> None:
    class Session:
        pass

    @mp.provide
    def session(tx: Transaction) -> Session:
        return Session()

    @mp.subscription("plain")
    async def plain(message: Message[Any]) -> None: ...

    @mp.subscription("writing")
    async def writing(message: Message[Any], tx: Transaction) -> None: ...

    @mp.subscription("with a session")
    async def with_session(message: Message[Any], session: Session) -> None: ...

    @mp.subscription("as wanted", lanes=3)
    async def as_wanted(message: Message[Any], tx: Transaction) -> None: ...

    @mp.message("first")
    @dataclass
    class First:
        pass

    @mp.message("second")
    @dataclass
    class Second:
        pass

    several = mp.subscription("several")

    @several.on
    async def one(message: Message[First]) -> None: ...

    @several.on
    async def two(message: Message[Second], tx: Transaction) -> None: ...

    await mp.run_until_idle()
    found = {info.name: len(info.lanes) for info in await mp.subscriptions()}
    assert found == {"plain": 16, "writing": 1, "with a session": 1, "as wanted": 3, "several": 1}


@pytest.mark.shard("variants", fast=["None-serializable", "5-repeatable read"])
@strict
@pytest.mark.parametrize("batch", [None, 5])
async def test_what_was_read_is_what_is_written_in_any_number_of_lanes(
    mp: Milepost, isolation: str, batch: int | None
) -> None:
    """Orders of one customer in several lanes. Whoever lost a race runs again, and nothing is counted."""
    count = 40
    await customer(mp)
    declare(mp, adds_up(mp), batch, isolation=isolation, lanes=4, retry=Retry.never)
    await fill(mp, count)
    report = await mp.run_until_idle()
    assert (report["orders"].handled, report["orders"].failed) == (count, 0)
    assert await run(mp, "select total from {}.customers") == [(sum(range(count)),)]


@pytest.mark.shard("faults", fast=["None-repeatable read", "3-serializable"])
@strict
@pytest.mark.parametrize("batch", [None, 3])
async def test_whoever_lost_the_lane_meanwhile_commits_nothing(
    mp: Milepost, isolation: str, batch: int | None
) -> None:
    """The snapshot shows the lane as its own to the end."""
    await run(mp, "create table {}.effects (n bigint)")
    takes = True

    async def handle(message: Message[Any], tx: Transaction) -> None:
        nonlocal takes
        await tx.execute(qualified("insert into {}.effects values (%s)", mp), (message.data,))
        if message.data == 3 and takes:
            takes = False
            await run(mp, "select {0}.take(s.id, array[0]) from {0}.subscriptions s")

    declare(mp, handle, batch, isolation=isolation, lanes=1, retry=Retry.never)
    await fill(mp, 6)
    await mp.run_until_idle()
    assert not takes
    assert await run(mp, "select n from {}.effects order by n") == [(number,) for number in range(6)]


@strict
async def test_an_append_to_a_stream_that_grew_meanwhile_runs_again(mp: Milepost, isolation: str) -> None:
    grows = True

    async def handle(message: Message[Any], tx: Transaction) -> None:
        nonlocal grows
        await tx.execute("select 1")
        if grows:
            grows = False
            await mp.append("receipt-1", NewMessage("other"))
        await tx.append("receipt-1", NewMessage("own"))

    await mp.append("receipt-1", NewMessage("first"))
    declare(mp, handle, isolation=isolation, lanes=1, retry=Retry.never)
    await fill(mp, 2)
    report = await mp.run_until_idle()
    assert (report["orders"].handled, report["orders"].failed) == (2, 0)
    assert [each.type async for each in mp.read("receipt-1")] == ["first", "other", "own", "own"]


@pytest.mark.shard("faults", fast=["serializable"])
@strict
async def test_what_a_person_did_after_the_snapshot_is_noticed(
    make_mp: MakeMilepost, mp: Milepost, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are asked for in the transaction may be older than what a person has just done to them."""
    poked, poke, parks = asyncio.Event(), Runner.poke, True

    def noticed(self: Runner) -> None:
        poke(self)
        poked.set()

    monkeypatch.setattr(Runner, "poke", noticed)
    handled: list[int] = []
    retries: list[asyncio.Task[Any]] = []

    async def handle(message: Message[Any], tx: Transaction) -> None:
        nonlocal parks
        await tx.execute(qualified("select count(*) from {}.deliveries", mp))
        if message.data == 0 and parks:
            parks = False
            raise Park("not yet")
        if message.data == 1 and not retries:
            poked.clear()
            retries.append(asyncio.create_task(mp.manage("orders").retry(all=True)))
            await poked.wait()
        handled.append(message.data)

    declare(mp, handle, isolation=isolation, lanes=1, on_park="continue")
    await fill(mp, 1)
    await mp.run_until_idle(errors="park")
    # The first success after a failure writes what the person's deed writes, too: that would be a conflict.
    await mp.append("order-2", NewMessage("placed", 2))
    await mp.run_until_idle()
    await mp.append("order-1", NewMessage("placed", 1))
    async with mp.running():
        async with asyncio.timeout(60):
            while set(handled) != {0, 1, 2}:
                await asyncio.sleep(0.01)
        await asyncio.gather(*retries)
