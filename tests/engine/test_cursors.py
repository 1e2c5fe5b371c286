"""Cursors of several subscriptions: what is due at the same time goes together, and none depends on another."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from engine.faults.crew import until
from milepost import Checkpoint, Message, Milepost, NewMessage
from milepost.dispatch import AttemptTally, Cursor, ExchangeWrite
from milepost.engine import cursor_batcher as module
from milepost.engine.cursor_batcher import CursorBatcher
from milepost.errors import Unavailable
from milepost.progress.memory import MemoryProgress
from milepost.progress.postgres.progress import PostgresProgress
from milepost.progress.protocol import ExchangeResult, LaneGrant
from progress.lanes import definition

Lanes = list[tuple[LaneGrant, ExchangeWrite]]


class Slow(MemoryProgress):
    """Writes as often as it may, and notes how many lanes each time."""

    def __init__(self) -> None:
        super().__init__()
        self._permits = asyncio.Semaphore(0)
        self.begun: list[int] = []
        self.fails: Exception | None = None

    def may_write(self, times: int = 100) -> None:
        """So many times more."""
        for _ in range(times):
            self._permits.release()

    async def write(self, cursors: Sequence[tuple[LaneGrant, ExchangeWrite]]) -> list[ExchangeResult | None]:
        self.begun.append(len(cursors))
        await self._permits.acquire()
        if self.fails is not None:
            raise self.fails
        return await super().write(cursors)


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
async def lanes(slow: Slow) -> list[Lanes]:
    """For each of five subscriptions, the first write of its two lanes."""
    opened = await slow.declare([definition(name, lanes=2) for name in "abcde"])
    return [
        [(held, ExchangeWrite(Cursor(one.id), (), AttemptTally(1))) for held in await slow.take(one.id, [0, 1])]
        for one in opened
    ]


async def begin(cursors: CursorBatcher, *lanes: Lanes) -> list["asyncio.Task[list[ExchangeResult | None]]"]:
    """Writes, each by a task of its own, one after the other, as far as they come before any has ended."""
    tasks = []
    for each in lanes:
        tasks.append(asyncio.create_task(cursors.write(each)))
        await settle()
    return tasks


async def settle() -> None:
    """Lets everything go on that waits for nothing."""
    for _ in range(10):
        await asyncio.sleep(0)


def is_of(written: list[ExchangeResult | None], lanes: Lanes) -> bool:
    """Whether these are the answers to a write of these lanes."""
    return [(one.held.subscription, one.held.lane) for one in written if one] == [
        (held.subscription, held.lane) for held, _ in lanes
    ]


async def test_what_comes_while_one_is_under_way_goes_with_the_next(slow: Slow, lanes: list[Lanes]) -> None:
    tasks = await begin(CursorBatcher(slow), *lanes)
    assert slow.begun == [2]
    slow.may_write()
    written = await asyncio.gather(*tasks)
    assert slow.begun == [2, 8]
    assert all(is_of(one, of) for one, of in zip(written, lanes, strict=True))


async def test_what_comes_at_the_same_moment_goes_together(slow: Slow, lanes: list[Lanes]) -> None:
    cursors = CursorBatcher(slow)
    slow.may_write()
    written = await asyncio.gather(*(cursors.write(each) for each in lanes))
    assert slow.begun == [10]
    assert all(is_of(one, of) for one, of in zip(written, lanes, strict=True))


async def test_not_too_many_at_once(slow: Slow, lanes: list[Lanes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CURSOR_BATCH_LANES", 5)
    tasks = await begin(CursorBatcher(slow), *lanes)
    slow.may_write()
    await asyncio.gather(*tasks)
    assert slow.begun == [2, 4, 4]


async def test_more_than_go_together(slow: Slow, lanes: list[Lanes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CURSOR_BATCH_LANES", 1)
    slow.may_write()
    assert is_of(await CursorBatcher(slow).write(lanes[0]), lanes[0])


async def test_an_error_is_that_of_all_that_went_together(slow: Slow, lanes: list[Lanes]) -> None:
    cursors = CursorBatcher(slow)
    tasks = await begin(cursors, *lanes[:3])
    slow.fails = Unavailable("gone")
    slow.may_write()
    for task in tasks:
        with pytest.raises(Unavailable, match="gone"):
            await task
    assert slow.begun == [2, 4]
    slow.fails = None
    assert is_of(await cursors.write(lanes[3]), lanes[3])


async def test_one_that_is_to_end_before_its_turn_is_not_written(slow: Slow, lanes: list[Lanes]) -> None:
    first, second, third = await begin(CursorBatcher(slow), *lanes[:3])
    second.cancel()
    await asyncio.wait([second])
    slow.may_write()
    assert is_of(await first, lanes[0])
    assert is_of(await third, lanes[2])
    assert slow.begun == [2, 2]
    assert second.cancelled()


async def test_one_that_is_to_end_while_it_writes_for_others(slow: Slow, lanes: list[Lanes]) -> None:
    cursors = CursorBatcher(slow)
    first, second, third = await begin(cursors, *lanes[:3])
    slow.may_write(1)
    await first
    await settle()
    assert slow.begun == [2, 4]
    second.cancel()
    await asyncio.wait([second])
    [fourth] = await begin(cursors, lanes[3])
    slow.may_write()
    assert is_of(await third, lanes[2])
    assert is_of(await fourth, lanes[3])


async def test_subscriptions_of_a_program_write_together(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    """They need not begin at the same time: what comes while the first of them writes goes together."""
    count, rounds = 10, 5
    asked: set[int] = set()
    written: list[set[int]] = []
    ask, write = CursorBatcher.write, PostgresProgress.write

    async def asking(self: CursorBatcher, cursors: Lanes) -> list[ExchangeResult | None]:
        asked.update(held.subscription for held, _ in cursors)
        return await ask(self, cursors)

    async def noticed(self: PostgresProgress, cursors: Lanes) -> list[ExchangeResult | None]:
        # It takes as long as it takes the others to come.
        await until(lambda: len(asked) == count)
        written.append({held.subscription for held, _ in cursors})
        return await write(self, cursors)

    monkeypatch.setattr(CursorBatcher, "write", asking)
    monkeypatch.setattr(PostgresProgress, "write", noticed)
    handled: list[int] = []
    for number in range(count):

        @mp.subscription(f"each-{number}", lanes=1, checkpoint=Checkpoint(seconds=0.01))
        async def handle(message: Message[Any]) -> None:
            handled.append(message.position)

    async with mp.running():
        for number in range(1, rounds + 1):
            asked.clear()
            await mp.append(f"order-{number}", NewMessage("placed"))
            await until(lambda number=number: sum(map(len, written)) >= number * count)  # type: ignore[misc]
    assert len(handled) == rounds * count
    assert sum(map(len, written)) >= 4 * len(written)
