"""Backlogs of all sizes go on side by side: the largest first, and nobody waits for its end."""

import asyncio
from typing import Any

import pytest

from milepost import Message, Milepost, NewMessage
from milepost.engine.lanes import balancer
from milepost.log.query import PAGE_MESSAGES
from milepost.names import bucket_of

BACKLOG = 600
M = NewMessage("placed")


def streams_of_both_lanes() -> tuple[str, str]:
    """Two streams that are in different lanes of two."""
    lanes = {bucket_of(f"order-{number}") % 2: f"order-{number}" for number in range(20)}
    return lanes[0], lanes[1]


async def test_a_subscription_with_a_backlog_holds_up_no_other(mp: Milepost) -> None:
    handled, go_on, arrived = 0, asyncio.Event(), asyncio.Event()

    @mp.subscription("backlog", category="old", concurrency=4)
    async def slowly(message: Message[Any]) -> None:
        nonlocal handled
        handled += 1
        if handled > BACKLOG // 2:
            await go_on.wait()

    @mp.subscription("live", category="new")
    async def at_once(message: Message[Any]) -> None:
        arrived.set()

    for number in range(20):
        await mp.append(f"old-{number}", [M] * (BACKLOG // 20))
    async with mp.running(), asyncio.timeout(60):
        while handled <= BACKLOG // 2:
            await asyncio.sleep(0.001)
        await mp.append("new-1", M)
        await arrived.wait()
        assert handled < BACKLOG
        go_on.set()
        while handled < BACKLOG:
            await asyncio.sleep(0.001)


async def test_a_lane_with_a_backlog_holds_up_no_other(mp: Milepost) -> None:
    """One whose window is full is left behind, and what the others want is read meanwhile."""
    behind, ahead = streams_of_both_lanes()
    handled: list[str] = []
    go_on, arrived = asyncio.Event(), asyncio.Event()

    @mp.subscription("lanes", category="order", lanes=2, window=10)
    async def handle(message: Message[Any]) -> None:
        if message.stream == behind:
            await go_on.wait()
            # However slow the other lane is: the last page of the backlog waits for it.
            if handled.count(behind) >= BACKLOG - 20:
                await arrived.wait()
            await asyncio.sleep(0)
        handled.append(message.stream)

    for _ in range(BACKLOG // 10):
        await mp.append(behind, [M] * 10)
        await mp.append(ahead, M)
    async with mp.running(), asyncio.timeout(60):
        while len(handled) < BACKLOG // 10:
            await asyncio.sleep(0.001)
        assert set(handled) == {ahead}
        go_on.set()
        while behind not in handled:
            await asyncio.sleep(0)
        await mp.append(ahead, M)
        while handled.count(ahead) == BACKLOG // 10:
            await asyncio.sleep(0)
        assert handled.count(behind) < BACKLOG
        arrived.set()
        while handled.count(behind) < BACKLOG:
            await asyncio.sleep(0.001)


async def test_a_key_that_takes_its_time_holds_up_no_other_while_there_is_room(mp: Milepost) -> None:
    """Also when more than half of the window waits behind it."""
    handled: list[str] = []
    go_on = asyncio.Event()

    @mp.subscription("keys", category="order", lanes=1, window=10, timeout=300)
    async def handle(message: Message[Any]) -> None:
        if message.stream == "order-slow":
            await go_on.wait()
        handled.append(message.stream)

    await mp.append("order-slow", [M] * 7)
    for number in range(40):
        await mp.append(f"order-{number}", M)
    async with mp.running(), asyncio.timeout(60):
        while len(handled) < 40:
            await asyncio.sleep(0.001)
        assert "order-slow" not in handled
        go_on.set()
        while len(handled) < 47:
            await asyncio.sleep(0.001)


async def test_nor_when_what_waits_behind_it_comes_in_one_page(
    mp: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is settled then, and nothing new comes: it goes on because nothing is left to hand out."""
    # Each look at how lanes are shared makes it read too.
    monkeypatch.setattr(balancer, "BALANCE_SECONDS", 300.0)
    handled: list[str] = []
    go_on = asyncio.Event()

    @mp.subscription("keys", category="order", lanes=1, window=PAGE_MESSAGES + 500, timeout=300, lease=900)
    async def handle(message: Message[Any]) -> None:
        if message.stream == "order-slow":
            await go_on.wait()
        handled.append(message.stream)

    await mp.append("order-slow", [M] * PAGE_MESSAGES)
    await mp.append("order-1", M)
    async with mp.running(grace=0), asyncio.timeout(60):
        while not handled:
            await asyncio.sleep(0.001)
        assert handled == ["order-1"]
        go_on.set()
