"""Cancellations that a handler brings about are its own affair: its place goes on with other messages."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from milepost import Message, Milepost, NewMessage, Retry, Transaction
from milepost.engine.handlers import slots
from support import MakeMilepost

COUNT = 4
OPTIONS = {"category": "order", "lanes": 1, "retry": Retry.never, "timeout": 30}


async def fail() -> None:
    raise ValueError("a task of the handler")


async def fail_in_a_group() -> None:
    """Before Python 3.13 that leaves a cancellation behind, which the task still counts."""
    async with asyncio.TaskGroup() as group:
        group.create_task(fail())


async def hide_a_failure_in_a_group() -> None:
    try:
        await fail_in_a_group()
    except* ValueError:
        pass


async def cancel_itself() -> None:
    this = asyncio.current_task()
    assert this is not None
    this.cancel()
    await asyncio.sleep(0)


async def cancel_itself_and_return() -> None:
    """The cancellation arrives at what the task waits for next."""
    this = asyncio.current_task()
    assert this is not None
    this.cancel()


Act = Callable[[], Any]
# What each comes to: whether the message is handled.
ACTS: dict[Act, bool] = {
    fail_in_a_group: False,
    hide_a_failure_in_a_group: True,
    cancel_itself: False,
    cancel_itself_and_return: True,
}


def one_by_one(mp: Milepost, act: Act, **options: Any) -> None:
    @mp.subscription("orders", **OPTIONS | options)
    async def handle(message: Message[Any]) -> None:
        await act()


def in_batches(mp: Milepost, act: Act, **options: Any) -> None:
    @mp.subscription("orders", batch=1, **OPTIONS | options)
    async def handle(messages: list[Message[Any]]) -> None:
        await act()


def exactly_once(mp: Milepost, act: Act, **options: Any) -> None:
    @mp.subscription("orders", **OPTIONS | options)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await act()


def exactly_once_in_batches(mp: Milepost, act: Act, **options: Any) -> None:
    @mp.subscription("orders", batch=1, **OPTIONS | options)
    async def handle(messages: list[Message[Any]], tx: Transaction) -> None:
        await act()


SHAPES = [one_by_one, in_batches, exactly_once, exactly_once_in_batches]
Declare = Callable[..., None]


async def fill(mp: Milepost) -> None:
    for number in range(COUNT):
        await mp.append(f"order-{number}", NewMessage("placed", number))


@pytest.mark.shard(
    "variants",
    fast=[
        "one_by_one-fail_in_a_group",
        "in_batches-cancel_itself",
        "exactly_once-hide_a_failure_in_a_group",
        "exactly_once_in_batches-cancel_itself_and_return",
    ],
)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("declare", SHAPES)
async def test_all_messages_are_called_whatever_one_leaves_behind(
    make_mp: MakeMilepost, declare: Declare, act: Act
) -> None:
    async with make_mp(concurrency=1) as mp:
        declare(mp, act)
        await fill(mp)
        report = await mp.run_until_idle(errors="park")
        counts = (COUNT, 0) if ACTS[act] else (0, COUNT)
        assert (report["orders"].handled, report["orders"].parked) == counts


@pytest.mark.parametrize("declare", SHAPES)
async def test_a_call_whose_time_is_up_after_a_cancellation_of_its_own(
    make_mp: MakeMilepost, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is up once the group has failed: a cancellation that arrives meanwhile may get lost in the group."""
    ahead_seconds = 0.0
    monkeypatch.setattr(slots, "monotonic", lambda: monotonic() + ahead_seconds)

    async def act() -> None:
        nonlocal ahead_seconds
        await hide_a_failure_in_a_group()
        ahead_seconds = 3600
        try:
            await asyncio.Event().wait()
        finally:
            ahead_seconds = 0

    async with make_mp(concurrency=1) as mp:
        declare(mp, act)
        await fill(mp)
        report = await mp.run_until_idle(errors="park")
        assert report["orders"].parked == COUNT
        reasons = {row.reason async for row in mp.manage("orders").deliveries()}
        assert reasons == {"TimedOut: timed out after 30 s"}


@pytest.mark.parametrize("declare", SHAPES)
async def test_the_program_ends_beside_a_call_that_has_cancelled_something(mp: Milepost, declare: Declare) -> None:
    """What runs when it ends is given back, and is no failure."""
    runs = asyncio.Event()

    async def act() -> None:
        await hide_a_failure_in_a_group()
        runs.set()
        await asyncio.Event().wait()

    declare(mp, act)
    async with mp.running(grace=0):
        await fill(mp)
        await runs.wait()
    assert [row async for row in mp.manage("orders").deliveries()] == []


@pytest.mark.parametrize("act", [fail_in_a_group, hide_a_failure_in_a_group], ids=lambda act: act.__name__)
@pytest.mark.parametrize("declare", SHAPES)
async def test_a_handler_is_tried_that_leaves_one_behind(mp: Milepost, declare: Declare, act: Act) -> None:
    declare(mp, act)
    await fill(mp)
    [subscription] = mp.declared()
    trial = mp.dry_run(subscription)
    outcome = await trial.run(await trial.choose([1]), timed=True)
    assert outcome.returned is ACTS[act]
    this = asyncio.current_task()
    assert this is not None
    assert this.cancelling() == 0
