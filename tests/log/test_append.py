"""Appending: versions, ids, transactions, limits."""

from milepost import Milepost, NewMessage


async def test_first_append(mp: Milepost) -> None:
    result = await mp.append("order-1", NewMessage("placed", {"amount": 3}))
    assert (result.version, result.position, result.duplicate) == (1, 1, False)
