"""Reading and following, by the library and over the network."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from contract.both import Both, order, orders
from milepost import NOW, FilterError, InvalidMessage, NewMessage, TooLarge


async def numbers(both: Both, *args: Any, **query: Any) -> list[int]:
    return [message.data["n"] async for message in both.read(*args, **query)]


QUERIES: list[tuple[dict[str, Any], Any]] = [
    ({}, range(9)),
    ({"stream": "order-1"}, [1, 4, 7]),
    ({"stream": ["order-1", "order-2"]}, [1, 2, 4, 5, 7, 8]),
    ({"category": "order"}, range(9)),
    ({"category": ["order", "other"], "limit": 2}, [0, 1]),
    ({"category": "orde"}, []),
    ({"stream": "order-1", "category": "order"}, [1, 4, 7]),
    ({"stream": "order-1", "category": "stock"}, []),
    ({"types": "order.*"}, range(9)),
    ({"types": ["order.cancelled", "payment.>"]}, []),
    ({"where": "n >= 3 && n != 5"}, [3, 4, 6, 7, 8]),
    ({"stream": "order-1", "where": "n > 1"}, [4, 7]),
    ({"after": 4}, [4, 5, 6, 7, 8]),
    ({"before": 4}, [0, 1, 2]),
    ({"stream": "order-1", "after": 3}, [4, 7]),
    ({"stream": "order-1", "after_version": 1}, [4, 7]),
    ({"stream": "order-1", "before_version": 3}, [1, 4]),
    ({"backwards": True}, range(8, -1, -1)),
    ({"stream": "order-1", "backwards": True, "limit": 2}, [7, 4]),
    ({"backwards": True, "where": "n < 3", "before": 3}, [1, 0]),
    ({"limit": 0}, []),
    ({"stream": "nothing-1"}, []),
]


async def test_each_option(both: Both) -> None:
    await orders(both, 9)
    for query, expected in QUERIES:
        assert await numbers(both, **query) == list(expected), query


async def test_since_a_time(both: Both) -> None:
    await orders(both, 3)
    hour = timedelta(hours=1)
    assert await numbers(both, since=datetime.now(UTC) - hour) == [0, 1, 2]
    assert await numbers(both, "order-1", since=datetime.now(UTC) + hour) == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"limit": -1}, "limit"),
    ({"after": 2**63}, "after"),
    ({"after_version": 1}, "stream"),
    ({"stream": "a-1", "before": 1}, "before"),
    ({"stream": "-1"}, "stream"),
    ({"category": []}, "category"),
    ({"types": "a*"}, "types"),
    ({"since": datetime(2026, 1, 1)}, "since"),  # noqa: DTZ001
]


async def test_what_cannot_be_read(both: Both) -> None:
    for query, field in REFUSED:
        with pytest.raises(InvalidMessage) as raised:
            await numbers(both, **query)
        assert raised.value.field == field, query


async def test_a_filter_that_is_wrong(both: Both) -> None:
    for ask in (both.read(where="a == (b"), both.follow(where="a == (b")):
        with pytest.raises(FilterError) as raised:
            _ = [message async for message in ask]
        assert (raised.value.kind, raised.value.offset) == ("syntax", 7)


async def test_many_pages(both: Both) -> None:
    for start in range(0, 2500, 500):
        await both.append("order-1", [order(n) for n in range(start, start + 500)])
    assert await numbers(both, "order-1") == list(range(2500))
    assert await numbers(both) == list(range(2500))
    assert await numbers(both, backwards=True) == list(range(2499, -1, -1))
    assert await numbers(both, "order-1", backwards=True, limit=2100) == list(range(2499, 399, -1))
    assert await numbers(both, limit=1001, where="n >= 5") == list(range(5, 1006))


async def test_many_names(both: Both) -> None:
    await orders(both, 3)
    assert await numbers(both, stream=[f"order-{n}" for n in range(400)]) == [0, 1, 2]
    with pytest.raises(TooLarge):
        await numbers(both, stream=[f"order-{n}" for n in range(1001)])


async def test_head_and_last(both: Both) -> None:
    assert (await both.head(), await both.last("order-1")) == (0, 0)
    await orders(both, 4)
    assert (await both.head(), await both.last("order-0")) == (4, 2)


async def test_following(both: Both) -> None:
    await orders(both, 3)
    seen: list[int] = []
    async with asyncio.timeout(60):
        async for message in both.follow(category="order", where="n != 1"):
            seen.append(message.data["n"])
            if message.data["n"] == 2:
                await both.append("order-1", order(7))
                await both.append("other-1", order(8))
                await both.append("order-1", order(9))
            if message.data["n"] == 9:
                break
    assert seen == [0, 2, 7, 9]


async def test_following_from_a_position_and_from_now(both: Both) -> None:
    await orders(both, 3)
    async with asyncio.timeout(60):
        async for message in both.follow(after=2):
            assert message.data["n"] == 2
            break
        pages = both.follow(after=NOW)
        first = asyncio.create_task(anext(pages))
        while not first.done():
            await both.append("order-9", NewMessage("new", {"n": 99}))
            await asyncio.sleep(0.05)
        assert (await first).data["n"] == 99
        await pages.aclose()
