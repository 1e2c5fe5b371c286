"""A message whose data does not fit: it alone is parked, of a batch as well."""

from collections.abc import Callable

import msgspec
import pytest

from milepost import Milepost, NewMessage, Retry, Transaction
from milepost.dispatch import State
from support import qualified

COUNT = 10
BAD = 4
OPTIONS = {"category": "order", "lanes": 1, "batch": COUNT, "retry": Retry.never}


class Order(msgspec.Struct):
    number: int


def at_least_once(mp: Milepost, seen: list[int]) -> None:
    @mp.subscription("orders", **OPTIONS)
    async def handle(orders: list[Order]) -> None:
        seen.extend(order.number for order in orders)


def exactly_once(mp: Milepost, seen: list[int]) -> None:
    @mp.subscription("orders", **OPTIONS)
    async def handle(orders: list[Order], tx: Transaction) -> None:
        seen.extend(order.number for order in orders)


@pytest.mark.parametrize("declare", [at_least_once, exactly_once])
async def test_the_others_of_its_batch_are_handled(
    mp: Milepost, declare: Callable[[Milepost, list[int]], None]
) -> None:
    """Once each, though nobody may try again."""
    seen: list[int] = []
    mp.message("placed")(Order)
    declare(mp, seen)
    for number in range(COUNT):
        data = {"number": "none" if number == BAD else number}
        await mp.append(f"order-{number}", NewMessage("placed", data))
    await mp.run_until_idle(errors="park")
    assert sorted(seen) == [number for number in range(COUNT) if number != BAD]
    rows = await mp.log.database.execute(qualified('select "position", state from {}.deliveries', mp), {})
    assert list(rows) == [(BAD + 1, "parked")]


class Panic(BaseException):
    """Libraries written in Rust raise such."""


def on_the_loop(mp: Milepost, seen: list[int]) -> None:
    @mp.subscription("orders", category="order")
    async def handle(order: Order) -> None:
        seen.append(order.number)


def in_a_thread(mp: Milepost, seen: list[int]) -> None:
    @mp.subscription("orders", category="order")
    def handle(order: Order) -> None:
        seen.append(order.number)


@pytest.mark.shard("variants", fast=["on_the_loop", "exactly_once"])
@pytest.mark.parametrize("declare", [on_the_loop, in_a_thread, at_least_once, exactly_once])
async def test_what_is_no_exception_is_about_its_message_as_well(
    mp: Milepost, declare: Callable[[Milepost, list[int]], None]
) -> None:
    seen: list[int] = []
    mp.message("placed", version=2)(Order)

    @mp.upcast("placed", from_version=1)
    def numbered(data: int) -> dict[str, int]:
        if data == BAD:
            raise Panic("out of bounds")
        return {"number": data}

    declare(mp, seen)
    for number in range(COUNT):
        await mp.append(f"order-{number}", NewMessage("placed", number))
    await mp.run_until_idle(errors="park")
    assert sorted(seen) == [number for number in range(COUNT) if number != BAD]
    [row] = [row async for row in mp.manage("orders").deliveries()]
    assert (row.position, row.state, "Panic: out of bounds" in row.error) == (BAD + 1, State.PARKED, True)
