"""How long a message takes from its append, which has returned, to a follower in another process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from statistics import median, quantiles
from time import monotonic
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.contest import Scores, in_turn
from benchmarks.crew import Crew
from benchmarks.logs import Log, fresh_log
from benchmarks.results import Result
from benchmarks.writers import MilepostWriter, RawNotifyingWriter, Writer
from milepost import NOW, Milepost

PER_SECOND = 200
SETTLING = 1.0
"""Seconds for a follower to reach the head and fall asleep before the first append."""
PATIENCE = 10.0
"""Seconds for the last message to arrive."""
MEDIAN = "follow: median at 200 a second"
P99 = "follow: 99th percentile at 200 a second"
MEDIAN_GOAL = 1.0
P99_GOAL = 5.0
POLLING = "milepost, polling"
"""A follower that no notification reaches, as behind a pooler in transaction mode."""

Arrivals = dict[int, float]
"""When each position arrived."""
Follower = Callable[[], AbstractAsyncContextManager[Arrivals]]


def measure(bench: Bench) -> list[Result]:
    """Milepost, woken and polling, beside a raw LISTEN whose every append notifies."""
    with fresh_log(bench.url, "follow") as log:
        log.raw_table("raw")
        followers: dict[str, tuple[str, Follower]] = {
            "milepost": ("milepost", lambda: milepost_follower(log)),
            "limit": ("raw", lambda: raw_follower(log)),
            POLLING: ("milepost", lambda: _polling_follower(log)),
        }
        writers: dict[str, Writer] = {
            "milepost": MilepostWriter(log),
            "raw": RawNotifyingWriter(log, "raw"),
        }
        with Crew(1, writers) as crew:
            turns = {
                subject: partial(taken, crew, writer, follower, bench.sizes.follow_messages)
                for subject, (writer, follower) in followers.items()
            }
            medians, p99s = take_turns(bench, "follow", turns, bench.sizes.follow_rounds)
    return [
        medians.result(MEDIAN, "milepost", of="limit", below=MEDIAN_GOAL),
        medians.result(MEDIAN, POLLING),
        medians.result(MEDIAN, "limit"),
        p99s.result(P99, "milepost", of="limit", below=P99_GOAL),
        p99s.result(P99, POLLING),
        p99s.result(P99, "limit"),
    ]


def take_turns(
    bench: Bench, what: str, turns: Mapping[str, Callable[[], list[float]]], rounds: int
) -> tuple[Scores, Scores]:
    """The medians and the 99th percentiles of contenders that take turns, each of which gives its latencies."""
    medians, p99s = latencies(), latencies()
    with bench.steps(what, rounds * len(turns)) as step:
        for number in range(rounds):
            for subject in in_turn(turns, number):
                of_turn = turns[subject]()
                medians.add(subject, median(of_turn))
                p99s.add(subject, quantiles(of_turn, n=100)[98])
                step()
    return medians, p99s


def latencies() -> Scores:
    """Scores in milliseconds."""
    return Scores(unit="ms", fewer_is_better=True)


def taken(crew: Crew, writer: str, follower: Follower, count: int) -> list[float]:
    """The latencies of one turn."""
    return asyncio.run(latency(crew, writer, follower, count))


async def latency(crew: Crew, writer: str, follower: Follower, count: int) -> list[float]:
    """Milliseconds from each append's return to its arrival; 0 where the follower was faster than the answer."""
    async with follower() as arrivals:
        await asyncio.sleep(SETTLING)
        known = await asyncio.to_thread(crew.paced, writer, count, PER_SECOND)
        async with asyncio.timeout(PATIENCE):
            # No event: to set one at each arrival would take part in the latency.
            while not known.keys() <= arrivals.keys():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    return [max(0.0, arrivals[position] - returned) * 1000 for position, returned in known.items()]


@asynccontextmanager
async def milepost_follower(log: Log) -> AsyncIterator[Arrivals]:
    """`async for message in mp.follow(after=NOW)`."""
    async with Milepost(log.url, schema=log.schema) as mp, _following(mp) as arrivals:
        yield arrivals


@asynccontextmanager
async def _polling_follower(log: Log) -> AsyncIterator[Arrivals]:
    """The same, behind a pooler that lets no notification through: it never finds that it hears anything."""
    async with Milepost(log.url, schema=log.schema) as mp:
        setattr(mp.log.wakeups, "start", lambda: None)  # noqa: B010 - a method is replaced
        async with _following(mp) as arrivals:
            yield arrivals


@asynccontextmanager
async def _following(mp: Milepost) -> AsyncIterator[Arrivals]:
    arrivals: Arrivals = {}

    async def note() -> None:
        async with aclosing(mp.follow(after=NOW)) as messages:
            async for message in messages:
                arrivals[message.position] = monotonic()

    async with _beside(note()):
        yield arrivals


@asynccontextmanager
async def raw_follower(log: Log) -> AsyncIterator[Arrivals]:
    """LISTEN, and a look at the table at each notification. It can skip messages: it knows no horizon."""
    arrivals: Arrivals = {}
    statement = sql.SQL(
        'select m."position", m.type, m.data::text from {} m where m."position" > %s order by m."position"'
    ).format(log.name("raw"))

    async def note(listener: psycopg.AsyncConnection, reader: psycopg.AsyncConnection) -> None:
        position = 0
        async for _notification in listener.notifies():
            for row in await (await reader.execute(statement, [position], prepare=True)).fetchall():
                arrivals[row[0]] = monotonic()
                position = row[0]

    connect = psycopg.AsyncConnection.connect
    async with (
        await connect(log.url, autocommit=True) as listener,
        await connect(log.url, autocommit=True) as reader,
    ):
        await listener.execute(sql.SQL("listen {}").format(sql.Identifier("raw")))
        async with _beside(note(listener, reader)):
            yield arrivals


@asynccontextmanager
async def _beside(noting: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(noting)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
