"""What the contract is between."""

from typing import Any, TypeAlias

from milepost import Milepost, NewMessage
from milepost.client.client import Client

Both: TypeAlias = Milepost | Client


def order(n: int, **properties: Any) -> NewMessage:
    """A message with a number."""
    return NewMessage("order.placed", {"n": n}, properties={"n": n, **properties})


async def orders(both: Both, count: int, *, streams: int = 3) -> None:
    """So many, in streams in turn."""
    for n in range(count):
        await both.append(f"order-{n % streams}", order(n))
