"""A message of a batch whose data does not fit: it alone is parked."""

from collections.abc import Callable

import msgspec
import pytest

from milepost import Milepost, NewMessage, Retry, Transaction
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
