"""Filters where messages are read and followed."""

import logging
from typing import Any

import pytest

from milepost import FilterError, Milepost, NewMessage
from milepost.filter import compile_filter
from support import following, positions

FILTERS = [
    "amount >= 3",
    'region == "EU"',
    'amount >= 3 && region == "EU"',
    'amount == 2 || region == "US"',
    "exists(vip)",
    "vip",
    "!vip",
    "!exists(region)",
    "amount % 2 == 1",
    "amount + 1 > 4",
    "amount > 1 && (vip || !exists(vip))",
    'region > "E\'%s"',
    "true",
    "false",
    'note == "a \\"quoted\\" \\\\ one"',
]


@pytest.fixture
async def shop(mp: Milepost) -> Milepost:
    properties: list[dict[str, Any]] = [
        {"amount": 1, "region": "EU"},
        {"amount": 2, "region": "US", "vip": True},
        {"amount": 3},
        {"amount": 4, "region": "EU", "vip": False},
        {"amount": 5, "region": "É", "note": 'a "quoted" \\ one'},
        {"region": "EU", "amount": 6, "vip": True},
        {},
    ]
    for number, given in enumerate(properties):
        await mp.append(f"order-{number % 2}", NewMessage("placed", properties=given))
    return mp


@pytest.mark.parametrize("where", FILTERS)
async def test_what_is_read_is_what_matches(shop: Milepost, where: str) -> None:
    matches = compile_filter(where).matches
    wanted = [m.position async for m in shop.read() if matches(m.properties)]
    assert await positions(shop, where=where) == wanted
    assert await positions(shop, where=where, backwards=True, limit=2) == wanted[::-1][:2]
    of_stream = [m.position async for m in shop.read("order-0") if matches(m.properties)]
    assert [m.position async for m in shop.read("order-0", where=where)] == of_stream


async def test_a_limit_counts_matches(shop: Milepost) -> None:
    assert await positions(shop, where="amount % 2 == 0", limit=2) == [2, 4]


async def test_history_and_head_are_filtered_alike(shop: Milepost) -> None:
    async with following(shop, where='amount >= 3 && region == "EU"') as follower:
        await follower.until(2)
        await shop.append("order-9", NewMessage("placed", properties={"amount": 9, "region": "US"}))
        await shop.append("order-9", NewMessage("placed", properties={"amount": 9, "region": "EU"}))
        assert await follower.until(3) == [4, 6, 9]


async def test_an_error_is_no_match(shop: Milepost, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert await positions(shop, where="amount / 0 == 1") == []
    assert await positions(shop, where="region > 5") == []


@pytest.mark.parametrize("where", ["amount >", "", "a & b", "1 == 'a'", "x" * 5000])
async def test_a_wrong_filter_is_refused_before_anything_is_read(shop: Milepost, where: str) -> None:
    with pytest.raises(FilterError):
        await positions(shop, where=where)
    with pytest.raises(FilterError):
        await anext(shop.follow(where=where))


@pytest.mark.parametrize("text", ["\0", "\U0010ffff", "'; drop table messages; --", "%(life)s", "$v0", '\\"'])
async def test_texts_that_nothing_equals(shop: Milepost, text: str) -> None:
    assert await positions(shop, where=f'region == "{text}"') == []
    assert len(await positions(shop, where=f'region != "{text}"')) == 5
