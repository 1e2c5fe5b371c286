"""Rows of messages that are done stay for as long as `keep_done` says, with handlers and with consumers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.pulling import Clock
from milepost import Context, Message, Milepost, NewMessage, Retry, RetryLater, Skip, Transaction, by_property
from milepost.engine.operate.deliveries import DeliveryInfo
from patience import looked_at, within

AT_ONCE = Retry(attempts=5, delay=0)
Handler = Callable[..., Awaitable[None]]


@pytest.fixture
def clock(mp: Milepost) -> Clock:
    return Clock(mp)


async def fail_once(message: Message[Any], context: Context) -> None:
    if message.data is True and context.attempt == 1:
        raise RetryLater(0)


async def fail_once_in_a_transaction(message: Message[Any], context: Context, tx: Transaction) -> None:
    await fail_once(message, context)


async def fail_once_of_several(messages: list[Message[Any]], context: Context) -> None:
    for message in messages:
        await fail_once(message, context)


def fail_once_in_a_thread(message: Message[Any], context: Context) -> None:
    if message.data is True and context.attempt == 1:
        raise RetryLater(0)


async def orders(mp: Milepost, *fails: bool) -> None:
    for number, each in enumerate(fails):
        await mp.append(f"order-{number % 2}", NewMessage("placed", each, properties={"customer": 1}))


async def rows(mp: Milepost) -> dict[int, DeliveryInfo]:
    return {each.position: each async for each in mp.manage("mails").deliveries()}


async def states(mp: Milepost) -> dict[int, tuple[str, int]]:
    return {position: (row.state, row.total) for position, row in (await rows(mp)).items()}


async def until_none_is_left(mp: Milepost) -> None:
    async def none_is_left() -> bool:
        return await mp.manage("mails").count_deliveries() == 0

    async with within(60, lambda: looked_at(none_is_left)):
        while not await none_is_left():
            await asyncio.sleep(0.02)


@pytest.mark.shard(
    "variants", fast=["all-fail_once", "failures-fail_once_in_a_transaction", "all-fail_once_of_several"]
)
@pytest.mark.parametrize(
    "handler", [fail_once, fail_once_in_a_transaction, fail_once_of_several, fail_once_in_a_thread]
)
@pytest.mark.parametrize("tracking", ["all", "failures"])
async def test_with_handlers(mp: Milepost, clock: Clock, handler: Handler, tracking: str) -> None:
    mp.subscription("mails", tracking=tracking, keep_done=600, retry=AT_ONCE)(handler)
    await orders(mp, False, True, False, True)
    await mp.run_until_idle()
    found = await rows(mp)
    assert all((row.state, row.reason, row.error, row.due) == ("done", "", "", None) for row in found.values())
    attempts = {position: row.total for position, row in found.items()}
    assert (attempts[2], attempts[4]) == (2, 2)
    if tracking == "all":
        assert attempts.keys() == {1, 2, 3, 4}
    elif handler is not fail_once_of_several:
        # Of a batch that fails as a whole all are tried again.
        assert attempts.keys() == {2, 4}
    assert [traced.state for traced in await mp.trace("order-0")] == ["done", "done"]
    info = await mp.manage("mails").info()
    assert (info.parked, info.retrying, info.lag.positions) == (0, 0, 0)
    assert (await mp.manage("mails").retry([2])).refused == {2: "it is done"}

    await clock.advance(500)
    await mp.run_until_idle()
    assert (await rows(mp)).keys() == found.keys()
    await clock.advance(101)
    async with mp.running():
        await until_none_is_left(mp)


async def test_what_a_handler_skips_is_done(mp: Milepost) -> None:
    @mp.subscription("mails", tracking="all", keep_done=600)
    async def skip(message: Message[Any]) -> None:
        raise Skip("a test")

    await orders(mp, False)
    await mp.run_until_idle()
    assert await states(mp) == {1: ("done", 1)}


async def test_with_consumers(mp: Milepost, clock: Clock) -> None:
    await mp.create_subscription("mails", keep_done=600, retry=AT_ONCE)
    await orders(mp, False, True)
    async with mp.consumer("mails") as consumer:
        async for delivery in consumer:
            async with delivery as message:
                if message.data is True and delivery.attempt == 1:
                    raise ValueError("no address")
            if delivery.attempt == 2:
                break
    assert await states(mp) == {2: ("done", 2)}
    await clock.advance(601)
    async with mp.consumer("mails"):
        await until_none_is_left(mp)


async def test_without_it_rows_go_at_once_also_those_that_were_kept(mp: Milepost) -> None:
    await mp.create_subscription("mails", keep_done=600, retry=AT_ONCE)
    await orders(mp, True)
    async with mp.consumer("mails") as consumer:
        await (await anext(consumer)).retry(after=0)
        await (await anext(consumer)).ack()
    assert await states(mp) == {1: ("done", 2)}
    async with mp.consumer("mails") as consumer:
        await mp.manage("mails").update(keep_done=None)
        await until_none_is_left(mp)


async def test_of_what_is_pulled_rows_that_were_kept_go_with_pulls(mp: Milepost) -> None:
    await mp.create_subscription("mails", tracking="all", keep_done=600)
    await orders(mp, False)
    await mp.settle(ack=await mp.pull("mails"))
    assert await states(mp) == {1: ("done", 1)}
    await mp.manage("mails").update(keep_done=None)
    while await rows(mp):
        # Some of them look.
        await mp.pull("mails")


async def test_a_kept_row_holds_nobody_back(mp: Milepost) -> None:
    """Nor is it in the way when its message comes again."""
    handled: list[tuple[int, bool]] = []

    @mp.subscription("mails", tracking="all", keep_done=600, retry=AT_ONCE, ordered_by=by_property("customer"))
    async def handle(message: Message[Any], context: Context) -> None:
        await fail_once(message, context)
        handled.append((message.position, context.replay))

    await orders(mp, True, False, True, False)
    await mp.run_until_idle()
    assert handled == [(1, False), (2, False), (3, False), (4, False)]
    await mp.manage("mails").replay(1, 3)
    await mp.run_until_idle()
    assert handled[4:] == [(2, True), (3, True)]
    assert (await states(mp)).keys() == {1, 2, 3, 4}
    await mp.manage("mails").move("beginning")
    await orders(mp, False)
    await mp.run_until_idle()
    assert [position for position, _ in handled[6:]] == [1, 2, 3, 4, 5]
    assert {state for state, _ in (await states(mp)).values()} == {"done"}


async def test_another_order_and_a_restart_find_it(make_mp: Callable[..., Milepost]) -> None:
    for order in ("stream", by_property("customer"), None):
        async with make_mp() as mp:

            @mp.subscription("mails", tracking="all", keep_done=600, ordered_by=order)
            async def handle(message: Message[Any]) -> None: ...

            await orders(mp, False, False)
            await mp.run_until_idle()
    async with make_mp() as mp:
        assert await states(mp) == dict.fromkeys(range(1, 7), ("done", 1))
