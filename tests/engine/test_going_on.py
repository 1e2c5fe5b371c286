"""A worker goes on by itself after something went wrong, and stops in good order while something is slow."""

import asyncio
from collections.abc import AsyncGenerator
from time import monotonic
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from milepost import Message, Milepost, NewMessage, Retry, Transaction
from milepost.engine.handlers.worker import Worker
from milepost.engine.lanes import balancer, checkpoint_writer
from milepost.log.postgres.feed import LogHistory
from milepost.log.query import Query, Segment
from milepost.names import bucket_of
from patience import within
from support import Connection, MakeMilepost, qualified

PATIENCE = 60.0
TRIES = 20
"""More than there are reasons to wake a reader of a worker that has just begun."""


def impatient(url: str) -> str:
    """An address whose sessions do not wait for locks."""
    return make_conninfo(url, options="-c lock_timeout=200")


class Seen:
    """What a handler has had."""

    def __init__(self) -> None:
        self.messages: list[Message[Any]] = []
        self._grown = asyncio.Event()

    def add(self, message: Message[Any]) -> None:
        self.messages.append(message)
        self._grown.set()

    async def until(self, count: int) -> None:
        """Until so many different ones have come."""
        async with within(PATIENCE, lambda: f"{self.messages}, wanted {count}"):
            while len({message.position for message in self.messages}) < count:
                self._grown.clear()
                await self._grown.wait()


async def told(caplog: pytest.LogCaptureFixture, words: str) -> None:
    """Until somebody has said this."""
    async with within(PATIENCE, lambda: f"{caplog.messages}, wanted {words!r}"):
        while not any(words in record.getMessage() for record in caplog.records):
            await asyncio.sleep(0.01)


async def lock(connection: Connection, mp: Milepost, table: str) -> None:
    """Nobody else gets at a table until the transaction ends."""
    names = sql.Identifier(mp.settings["schema"].value, table)
    await connection.execute(sql.SQL("lock table {} in access exclusive mode").format(names))


async def test_a_stop_that_has_to_wait_takes_nothing_new(
    mp: Milepost, make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancer, "BALANCE_SECONDS", 0.05)
    program, seen, slow, over = make_mp(), Seen(), asyncio.Event(), asyncio.Event()

    @program.subscription("slow", lanes=4, timeout=PATIENCE)
    async def handle(message: Message[Any]) -> None:
        seen.add(message)
        if message.type == "slow":
            slow.set()
            await over.wait()

    workers: list[Worker] = []

    async def run() -> None:
        async with program, program.program().running(grace=PATIENCE) as worker:
            workers.append(worker)
            await mp.append("order-0", NewMessage("slow"))
            await slow.wait()

    running = asyncio.create_task(run())
    await slow.wait()
    released = qualified("select count(distinct lane) from {}.cursors where released and revision > 1", mp)
    async with asyncio.timeout(PATIENCE):
        while (await mp.log.database.execute(released, {}))[0][0] < 3:
            await asyncio.sleep(0.01)
    for number in range(8):
        await mp.append(f"order-{number}", NewMessage("late"))
    # It would look whether lanes are free now, and have time to take them.
    for _ in range(5):
        workers[0]._balancer.balance_soon()
        await program.subscriptions()
    over.set()
    await running
    assert [message.type for message in seen.messages] == ["slow"]
    newest = qualified("select distinct on (lane) released from {}.cursors order by lane, revision desc", mp)
    assert list(await mp.log.database.execute(newest, {})) == [(True,)] * 4


async def test_a_lane_that_could_not_be_given_is_given_later(
    mp: Milepost,
    make_mp: MakeMilepost,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(balancer, "BALANCE_SECONDS", 0.05)
    first, second, seen = make_mp(url=impatient(database_url)), make_mp(url=impatient(database_url)), Seen()
    for program in (first, second):

        @program.subscription("lines", lanes=2)
        async def handle(message: Message[Any]) -> None:
            seen.add(message)

    await mp.append("order-0", NewMessage("placed"))
    async with first, second, first.running():
        await seen.until(1)
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            await lock(connection, mp, "cursors")
            async with second.running():
                await told(caplog, "was not released")
                await connection.rollback()
                for number in range(20):
                    await mp.append(f"order-{number}", NewMessage("placed"))
                await seen.until(21)


async def test_a_page_that_could_not_be_read_is_read_again(
    mp: Milepost, make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else happens that would wake the reader: nothing has been handled, and nothing is new."""
    after, tries = LogHistory.after, 0

    async def unavailable(self: LogHistory, query: Query, position: int) -> AsyncGenerator[Segment, None]:
        nonlocal tries
        tries += 1
        if tries > TRIES:
            async for segment in after(self, query, position):
                yield segment
        await asyncio.sleep(0.01)

    monkeypatch.setattr(LogHistory, "after", unavailable)
    program, seen = make_mp(), Seen()

    @program.subscription("lines", lanes=1)
    async def handle(message: Message[Any]) -> None:
        seen.add(message)

    await mp.append_many({f"order-{number}": NewMessage("placed") for number in range(20)})
    async with program.running():
        await seen.until(20)


async def test_when_a_breaker_closes_all_lanes_go_on(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that were asked while it was open, and have nothing that would wake them, not even a write."""
    monkeypatch.setattr(checkpoint_writer, "IDLE_WRITE_SECONDS", 3600)
    monkeypatch.setattr(checkpoint_writer, "JOINT_WRITE_SECONDS", 3600)
    seen, failures = Seen(), 2

    @mp.subscription(
        "lines", lanes=4, concurrency=1, stall_after=2, retry=Retry(attempts=50, delay=0.2, jitter=0.5, factor=1)
    )
    async def handle(message: Message[Any]) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError("down")
        seen.add(message)

    streams = [f"order-{number}" for number in range(200)]
    for lane in range(4):
        for stream in [stream for stream in streams if bucket_of(stream) % 4 == lane][:2]:
            await mp.append(stream, NewMessage("placed"))
    async with mp.running():
        await seen.until(8)


async def test_a_row_that_is_due_while_its_lane_is_busy_is_waited_for(
    mp: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause, pauses = checkpoint_writer.CheckpointWriter._pause, list[tuple[float, float]]()

    async def noted(self: checkpoint_writer.CheckpointWriter) -> None:
        begun = monotonic()
        await pause(self)
        pauses.append((begun, monotonic()))

    monkeypatch.setattr(checkpoint_writer.CheckpointWriter, "_pause", noted)
    monkeypatch.setattr(checkpoint_writer, "IDLE_WRITE_SECONDS", 0.5)
    failed, slow, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @mp.subscription("lines", lanes=1, retry=Retry(attempts=5, delay=0.2, jitter=0))
    async def handle(message: Message[Any], tx: Transaction) -> None:
        if message.type == "fails":
            failed.set()
            raise RuntimeError("once")
        slow.set()
        await over.wait()

    async with mp.running():
        await mp.append("order-1", NewMessage("fails"))
        await failed.wait()
        await mp.append("order-2", NewMessage("slow"))
        await slow.wait()
        due = monotonic() + 0.2
        # It rests, and for long: looking again and again it never would.
        async with within(PATIENCE, lambda: pauses[-20:]):
            while not any(begun > due and ended - begun > 0.4 for begun, ended in pauses):
                await asyncio.sleep(0.01)
        over.set()


async def test_slow_transactions_leave_connections_to_others(make_mp: MakeMilepost) -> None:
    program = make_mp(pool_size=3, concurrency=5)
    seen, running, over = Seen(), asyncio.Semaphore(0), asyncio.Event()

    @program.subscription("slow", category="slow", lanes=16, concurrency=4)
    async def slow(message: Message[Any], tx: Transaction) -> None:
        running.release()
        await over.wait()
        await program.append("others-1", NewMessage("placed"))

    @program.subscription("others", category="others")
    async def others(message: Message[Any]) -> None:
        seen.add(message)

    async with program, program.running():
        for number in range(40):
            await program.append(f"slow-{number}", NewMessage("placed"))
        for _ in range(4):
            await asyncio.wait_for(running.acquire(), PATIENCE)
        for number in range(20):
            await program.append(f"others-{number}", NewMessage("placed"))
        await seen.until(20)
        over.set()
        await seen.until(60)
