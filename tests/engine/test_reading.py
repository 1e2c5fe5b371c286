"""Whose turn it is when lanes of a subscription stand apart."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, cast
from uuid import uuid4

import pytest

from milepost.concurrency import cancel_and_wait
from milepost.dispatch import Cursor, Lane, LaneState, Settings
from milepost.engine.declare.order import NO_ORDER
from milepost.engine.lanes.held_lane import HeldLane
from milepost.engine.lanes.reader import LaneReader
from milepost.log.message import Message
from milepost.log.query import Segment
from milepost.progress.protocol import LaneGrant

HEAD = 100_000
PAGE = 100
LIFE = uuid4()


class Log:
    """A log of messages that no lane wants, which says where it was read: feed and pages in one."""

    life = LIFE

    def __init__(self) -> None:
        self.head = HEAD
        self.of_page = LIFE
        self.reads: list[int] = []

    @contextmanager
    def waking(self, event: asyncio.Event) -> Iterator[None]:
        yield

    async def after(self, position: int, lanes: Collection[int]) -> Segment:
        self.reads.append(position)
        await asyncio.sleep(0)
        return Segment(position, min(position + PAGE, self.head), [], self.of_page)

    async def close(self) -> None:
        pass


def lane_at(number: int, position: int) -> HeldLane:
    state: LaneState[Any] = LaneState(cursor=Cursor(position), now=0.0)
    lane: Lane[Message[Any]] = Lane(Settings(ordered=False), state, random=lambda: 0.5)
    held = LaneGrant(subscription=1, lane=number, epoch=1, revision=1, state=state, log_life=LIFE)
    return HeldLane(held, lane, NO_ORDER, must_load_rows=False)


def reading_of(log: Log) -> LaneReader:
    def nothing(_: object) -> None:
        pass

    return LaneReader(
        cast(Any, log),
        cast(Any, log),
        lambda messages: ([0 for _ in messages], None),
        nothing,
        nothing,
        window=1000,
    )


@pytest.mark.parametrize("first", [0, 1])
async def test_one_at_the_head_does_not_wait_for_one_with_a_backlog(first: int) -> None:
    log = Log()
    reading = reading_of(log)
    behind, ahead = lane_at(first, 0), lane_at(1 - first, HEAD)
    reading.reads_for(dict(sorted({behind.number: behind, ahead.number: ahead}.items())))
    task = asyncio.create_task(reading.run())
    while behind.lane.reach < 10 * PAGE:
        await asyncio.sleep(0)
    log.head += 1
    while ahead.lane.reach == HEAD:
        await asyncio.sleep(0)
    assert behind.lane.reach < 15 * PAGE
    while behind.lane.reach < HEAD:
        await asyncio.sleep(0)
    await cancel_and_wait(task)


async def test_one_with_a_backlog_does_not_wait_for_one_at_the_head() -> None:
    """However fast that one's messages come."""
    log = Log()
    reading = reading_of(log)
    behind, ahead = lane_at(0, 0), lane_at(1, HEAD)
    reading.reads_for({0: behind, 1: ahead})
    task = asyncio.create_task(reading.run())
    while behind.lane.reach < 10 * PAGE:
        log.head += 1
        await asyncio.sleep(0)
    assert log.reads.count(0) == 1
    assert len(log.reads) < 40
    await cancel_and_wait(task)


async def test_a_page_of_another_life_is_for_nobody() -> None:
    """Other messages are at its positions now."""
    log = Log()
    reading = reading_of(log)
    lane = lane_at(0, 0)
    reading.reads_for({0: lane})
    log.of_page = uuid4()
    task = asyncio.create_task(reading.run())
    while len(log.reads) < 3:
        await asyncio.sleep(0)
    assert lane.lane.reach == 0
    log.of_page = LIFE
    while lane.lane.reach < 3 * PAGE:
        await asyncio.sleep(0)
    await cancel_and_wait(task)
