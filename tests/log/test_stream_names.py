"""Backlogs are read with the numbers of streams: each message gets its stream's name, however many there are."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString
from uuid import UUID

import pytest

from milepost import Milepost, NewMessage, Unavailable
from milepost.log.postgres import reader as module
from milepost.log.postgres.reader import StreamNameCache
from milepost.log.query import Query, Selection
from milepost.postgres.connections import ResultRow
from support import qualified

M = NewMessage("t")


class Counting:
    """An executor that counts its statements, and lets others go first."""

    blocking = False

    def __init__(self, mp: Milepost) -> None:
        self._database = mp.log.database
        self.count = 0

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[ResultRow]:
        self.count += 1
        await asyncio.sleep(0)
        return await self._database.execute(statement, parameters)


async def streams(mp: Milepost, count: int) -> dict[int, str]:
    """So many streams, by their numbers."""
    for number in range(count):
        await mp.append(f"order-{number}", M)
    rows = await mp.log.database.execute(
        f'select stream_id, name from "{mp.settings["schema"].value}".streams', {}
    )
    return dict(rows)


async def current_life(mp: Milepost) -> UUID | None:
    await mp.log.horizon.sample()
    return mp.log.horizon.life


async def test_a_name_is_looked_up_once(mp: Milepost) -> None:
    known = await streams(mp, 5)
    names, executor = StreamNameCache(mp.log.statements), Counting(mp)
    first, *others = known
    life = await current_life(mp)
    assert (await names.of(executor, {first}, life))[first] == known[first]
    assert dict(await names.of(executor, set(known), life)) == known
    assert dict(await names.of(executor, set(others), life)) == known
    assert executor.count == 2


async def test_names_of_an_earlier_life_of_the_server(mp: Milepost) -> None:
    """A crash took a stream back, and its number is another's: what was read before has no name any more."""
    known = await streams(mp, 2)
    names, executor = StreamNameCache(mp.log.statements), Counting(mp)
    before = await current_life(mp)
    await names.of(executor, set(known), before)
    taken_back, kept = known
    await mp.log.database.execute(qualified("delete from {}.server_life", mp), {})
    rename = qualified("update {}.streams set name = 'cart-1' where stream_id = %(number)s", mp)
    await mp.log.database.execute(rename, {"number": taken_back})
    after = await current_life(mp)
    expected = {taken_back: "cart-1", kept: known[kept]}
    assert dict(await names.of(executor, set(known), after)) == expected
    with pytest.raises(Unavailable, match="restarted"):
        await names.of(executor, {taken_back}, before)
    assert dict(await names.of(executor, set(known), after)) == expected


async def test_more_than_it_keeps(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that are under way when it begins anew lose none of theirs."""
    known = await streams(mp, 12)
    monkeypatch.setattr(module, "MAX_KEPT_NAMES", 4)
    names, executor = StreamNameCache(mp.log.statements), Counting(mp)
    wanted = [set(list(known)[start : start + 3]) for start in (0, 3, 6, 9, 1, 4)]

    life = await current_life(mp)

    async def look(numbers: set[int]) -> bool:
        found = await names.of(executor, numbers, life)
        return all(found[number] == known[number] for number in numbers)

    assert all(await asyncio.gather(*(look(numbers) for numbers in wanted * 3)))
    assert len(names._names) <= 4


async def test_one_page_of_more_than_it_keeps(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    known = await streams(mp, 6)
    monkeypatch.setattr(module, "MAX_KEPT_NAMES", 4)
    names = StreamNameCache(mp.log.statements)
    assert dict(await names.of(Counting(mp), set(known), await current_life(mp))) == known


@pytest.mark.parametrize("category", [None, "order", ["order", "cart", "none"]])
async def test_a_backlog_has_the_names_of_its_streams(
    mp: Milepost, monkeypatch: pytest.MonkeyPatch, category: str | list[str] | None
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_NAMES", 4)
    for number in range(20):
        await mp.append(f"{('order', 'cart', 'other')[number % 3]}-{number % 9}", M)
    wanted = Selection.of(category=category)
    expected = Counter([m.stream async for m in mp.read() if wanted.matches(m)])
    async with mp.log.feed.followed():
        await mp.log.horizon.sample()
        await mp.log.feed.wait_until_current()
        history = mp.log.feed.history.after(Query(wanted, page=3), 0)
        found = Counter([message.stream async for segment in history for message in segment.messages])
    assert found == expected
