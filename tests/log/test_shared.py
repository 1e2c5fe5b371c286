"""Pages behind the head: those who are at the same place read them once."""

import asyncio
from contextlib import aclosing

import pytest

from milepost import Milepost, NewMessage
from milepost.log.postgres.reader import Reader, SharedPages
from milepost.log.query import MESSAGE_OVERHEAD_BYTES, Page, Query, Selection

PAGES = 4
SIZE = 50


@pytest.fixture
async def reads(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Between which positions a page was read, each time; the log has a few pages."""
    await mp.append("order-1", [NewMessage("placed") for _ in range(PAGES * SIZE)])
    await mp.log.horizon.look()
    found: list[tuple[int, int]] = []
    log_page = Reader.log_page

    async def noticed(self: Reader, *args: object, low: int, high: int, **options: object) -> object:
        found.append((low, high))
        return await log_page(self, *args, low=low, high=high, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Reader, "log_page", noticed)
    return found


async def positions(mp: Milepost, query: Query) -> list[int]:
    found: list[int] = []
    async with aclosing(mp.log.feed.history.after(query, 0)) as history:
        async for segment in history:
            found += [message.position for message in segment.messages]
            await asyncio.sleep(0)
    return found


EVERYTHING = Query(page=SIZE)
ORDERS = Query(Selection.of(category="order"), page=SIZE)


async def test_ten_read_each_page_once(mp: Milepost, reads: list[tuple[int, int]]) -> None:
    found = await asyncio.gather(*(positions(mp, Query(page=SIZE)) for _ in range(10)))
    assert all(each == found[0] for each in found)
    assert len(found[0]) == PAGES * SIZE
    assert len(set(reads)) == len(reads) == PAGES


async def test_other_queries_read_by_themselves(mp: Milepost, reads: list[tuple[int, int]]) -> None:
    one, other = await asyncio.gather(positions(mp, EVERYTHING), positions(mp, ORDERS))
    assert one == other
    assert len(reads) == 2 * PAGES


async def test_one_who_leaves_takes_nothing_along(mp: Milepost, reads: list[tuple[int, int]]) -> None:
    first = asyncio.create_task(positions(mp, EVERYTHING))
    second = asyncio.create_task(positions(mp, EVERYTHING))
    while not reads:
        await asyncio.sleep(0)
    first.cancel()
    assert len(await second) == PAGES * SIZE


async def test_a_single_reader_keeps_nothing(mp: Milepost, reads: list[tuple[int, int]]) -> None:
    await positions(mp, EVERYTHING)
    await positions(mp, EVERYTHING)
    assert len(reads) == 2 * PAGES


async def test_small_pages_that_are_kept_are_few(mp: Milepost, reads: list[tuple[int, int]]) -> None:
    """Who reads small pages does so because there are many who read."""
    small = Query(page=SIZE, page_bytes=SIZE * MESSAGE_OVERHEAD_BYTES)
    shared = SharedPages(small)
    page = [message async for message in mp.read(limit=SIZE)]

    async def fetch() -> Page:
        reads.append((0, SIZE))
        return page

    with shared.read(), shared.read():
        reads.clear()
        for low in (*range(10), 9, 0):
            await shared.page(low, SIZE, SIZE, fetch)
    assert len(reads) == 11


async def test_a_page_that_reaches_too_far_is_not_taken(mp: Milepost, reads: list[tuple[int, int]]) -> None:
    shared = SharedPages(EVERYTHING)
    page = [message async for message in mp.read(limit=SIZE)]

    async def fetch() -> Page:
        return page[: SIZE // 2]

    async def whole() -> Page:
        return page

    with shared.read(), shared.read():
        assert await shared.page(0, SIZE, SIZE, whole) == page
        assert await shared.page(0, SIZE, SIZE, fetch) == page
        assert len(await shared.page(0, SIZE // 2, SIZE, fetch)) == SIZE // 2
