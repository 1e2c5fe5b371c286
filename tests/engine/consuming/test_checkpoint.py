"""What the cursor may pass, with what it is written, and how little of it is kept."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from engine.consuming.taking import ack, orders, take, until
from engine.pulling import Jobs
from milepost import Checkpoint, Milepost, MilepostError, Retry
from support import MakeMilepost, qualified


async def execute(mp: Milepost, text: str) -> Any:
    return await mp.log.database.execute(qualified(text, mp), {})


async def cursor(mp: Milepost) -> int:
    return (await mp.manage("shipping").info()).lanes[0].position


async def test_a_parked_message_is_written_with_the_cursor_that_passes_it(mp: Milepost) -> None:
    """In one transaction: no crash can come in between."""
    await mp.create_subscription("shipping", retry=Retry.never)
    await orders(mp, 5)
    async with mp.consumer("shipping") as consumer:
        deliveries = await take(consumer, 5)
        await ack(deliveries[:2])
        await deliveries[2].park("odd")
        await ack(deliveries[3:])
        await until(lambda: _is_at(mp, 5))
    [[row]] = await execute(mp, 'select xmin::text from {}.deliveries where "position" = 3')
    [[passed]] = await execute(
        mp, 'select xmin::text from {}.cursors where "position" >= 3 order by revision limit 1'
    )
    assert row == passed


async def _is_at(mp: Milepost, position: int) -> bool:
    return await cursor(mp) == position


async def test_the_cursor_passes_nothing_that_is_not_settled(mp: Milepost, make_mp: MakeMilepost) -> None:
    """Neither what a consumer has, nor what waits for a full one, though all after it is done or filtered out."""
    await mp.create_subscription("shipping", where="n < 3 || n >= 40")
    await orders(mp, 50)
    async with mp.consumer("shipping", where="n < 3", capacity=1) as full, mp.consumer("shipping") as other:
        [held] = await take(full, 1)
        # The second and the third wait for the full one; the others are done.
        assert await ack(await take(other, 10)) == list(range(41, 51))
        await until(lambda: _is_known(mp))
        assert await cursor(mp) == 0
        await held.ack()
        [second] = await take(full, 1)
        await until(lambda: _is_at(mp, 1))
        await second.ack()
        await ack(await take(full, 1))
        await until(lambda: _is_at(mp, 50))
    assert await execute(mp, "select * from {}.deliveries") == []


async def _is_known(mp: Milepost) -> bool:
    """Whether what is done ahead of the cursor is stored."""
    [[ahead]] = await execute(mp, "select ahead from {}.cursors order by revision desc limit 1")
    return 50 in ahead


@pytest.mark.shard("large")
async def test_what_is_kept_of_it_does_not_grow(mp: Milepost) -> None:
    await mp.create_subscription("shipping", checkpoint=Checkpoint(seconds=0, messages=1))
    await orders(mp, 300)
    async with mp.consumer("shipping", capacity=1) as consumer:
        for _ in range(300):
            [position] = await ack(await take(consumer, 1))
            await until(lambda: _is_at(mp, position))  # noqa: B023
    [[revisions, newest]] = await execute(mp, "select count(*), max(revision) from {}.cursors")
    assert newest >= 300
    assert revisions < 200


async def test_settlements_that_arrive_during_the_end_are_stored(mp: Milepost, make_mp: MakeMilepost) -> None:
    await mp.create_subscription("shipping", checkpoint=Checkpoint(seconds=3600, messages=10_000))
    await orders(mp, 20)
    async with make_mp() as other:
        consumer = await other.consumer("shipping").__aenter__()
        deliveries = await take(consumer, 20)
        await ack(deliveries[:10])
        closing = asyncio.create_task(other.__aexit__(None, None, None))
        await ack(deliveries[10:19])
        await closing
        await consumer.__aexit__(None, None, None)
        await other.__aenter__()
    async with mp.consumer("shipping") as consumer:
        assert [(each.position, each.attempt) for each in await take(consumer, 1)] == [(20, 1)]


async def test_also_of_what_was_pulled_or_they_say_that_they_are_not(mp: Milepost, make_mp: MakeMilepost) -> None:
    jobs = await Jobs.create(mp)
    await jobs.append(50)
    for _ in range(5):
        async with make_mp() as other:
            tasks = await other.pull("emails", limit=10)
            settling = asyncio.create_task(other.settle(ack=tasks))
            await asyncio.sleep(0)
        told: set[int] = set()
        with suppress(MilepostError):
            told = {task.position for task in (await settling).moved}  # type: ignore[union-attr]
        assert told.isdisjoint(await jobs.states())
        assert len(told) in (0, 10)
