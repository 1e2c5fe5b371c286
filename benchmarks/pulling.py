"""Pulling and settling in batches, and what a claim costs when much is waiting."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from time import perf_counter
from uuid import uuid4

import psycopg
from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.comparing import CONTENDERS, Trials, make_environment
from benchmarks.contest import Turn, contest
from benchmarks.draining import drain_log
from benchmarks.logs import Log, fresh_log
from benchmarks.results import Result
from milepost import Milepost, Retry

WORK = "pull and settle, batches of 100"
CLAIM = "pull: a claim of 100 with {:,} waiting"
BATCH = 100
CLAIMS = 50
"""How many claims a time is taken from."""
FEW = 1_000
STREAMS = 200
"""Of the log that many rows wait in: one of each is at the head."""
_ROWS = """
insert into {schema}.deliveries
    (subscription, "position", lane, attempts, total, size, revision, since, state, key, head)
select (select id from {schema}.subscriptions), m."position", 0, 0, 0, m.size, 1, {schema}.clock(), 'waiting',
       s.name, m.version = 1
from {schema}.messages m join {schema}.streams s using (stream_id)
order by m."position"
limit %(rows)s
"""
_CURSOR = """
insert into {schema}.cursors (subscription, lane, revision, epoch, released, "position")
select c.subscription, c.lane, c.revision + 1, c.epoch, c.released,
       (select max("position") from {schema}.deliveries)
from {schema}.cursors c
order by c.revision desc
limit 1
"""


def measure(bench: Bench) -> list[Result]:
    """One and four who pull, beside a queue on the same PostgreSQL; then single claims."""
    with bench.steps("pull: an environment for the others", 1):
        make_environment()
    trials = Trials(bench.url)
    count = bench.sizes.drain_messages
    with drain_log(bench, bench.url, "pull") as log:
        turns: dict[str, Turn] = {
            "milepost": partial(_rate, log, count, 1),
            "milepost, 4 pullers": partial(_rate, log, count, 4),
            "pgqueuer": partial(
                trials.drain, "pgqueuer", int(CONTENDERS["pgqueuer"].messages * bench.sizes.peer_share)
            ),
        }
        scores = contest(bench, WORK, turns, bench.sizes.peer_rounds)
    return [
        scores.result(WORK, "milepost", of="pgqueuer", at_least=2.0),
        scores.result(WORK, "milepost, 4 pullers", of="pgqueuer", at_least=2.0),
        scores.result(WORK, "pgqueuer", versions=trials.versions_of("pgqueuer")),
        *_claims(bench),
    ]


def _rate(log: Log, messages: int, pullers: int) -> float:
    gc.collect()
    return asyncio.run(_pulled(log, messages, pullers))


async def _pulled(log: Log, messages: int, pullers: int) -> float:
    """Messages a second, until nothing is left."""
    async with Milepost(log.url, schema=log.schema, group=uuid4().hex) as mp:
        await mp.create_subscription("jobs", tracking="all", ordered_by=None)
        start = perf_counter()
        settled = sum(await asyncio.gather(*(_pull(mp) for _ in range(pullers))))
        seconds = perf_counter() - start
    if settled != messages:
        raise RuntimeError(f"{settled:,} messages were settled instead of {messages:,}")
    return messages / seconds


async def _pull(mp: Milepost) -> int:
    settled = 0
    while True:
        tasks = await mp.pull("jobs", limit=BATCH)
        if not tasks and not tasks.more:
            return settled
        settled += len((await mp.settle(ack=tasks)).moved)


def _claims(bench: Bench) -> list[Result]:
    """A claim with few rows waiting and with many, in turns: it should not matter."""
    many = 2 * bench.sizes.drain_messages
    with _waiting(bench, "pull_few", FEW) as few_log, _waiting(bench, "pull_many", many) as many_log:
        few, much = CLAIM.format(FEW), CLAIM.format(many)
        turns: dict[str, Turn] = {few: partial(_claim, few_log), much: partial(_claim, many_log)}
        scores = contest(bench, "pull: claims", turns, bench.sizes.peer_rounds, unit="ms", fewer_is_better=True)
    return [
        scores.result(much, "milepost, in order", of=few, contender=much, at_least=0.5),
        scores.result(few, "milepost, in order", contender=few),
    ]


@contextmanager
def _waiting(bench: Bench, name: str, rows: int) -> Iterator[Log]:
    """A log of which so many messages have rows that wait, each behind another of its stream."""
    with fresh_log(bench.url, name, streams=STREAMS, versions=rows // STREAMS + 2) as log:
        asyncio.run(_fill(log, rows))
        yield log


async def _fill(log: Log, rows: int) -> None:
    """In SQL: by pulling, each of them would have to be claimed first."""
    async with Milepost(log.url, schema=log.schema) as mp:
        # What is claimed goes back again and again: it is neither to stall nor to be parked.
        often = Retry(attempts=10**6)
        await mp.create_subscription("jobs", tracking="all", ordered_by="stream", retry=often, stall_after=10**6)
    statements = (_ROWS, _CURSOR, "analyze {schema}.deliveries")
    with psycopg.connect(log.url, autocommit=True) as connection:
        for statement in statements:
            named = sql.SQL(statement).format(schema=sql.Identifier(log.schema))
            connection.execute(named, {"rows": rows + STREAMS} if "%" in statement else None)


def _claim(log: Log) -> float:
    """Milliseconds a claim."""
    return 1000 * asyncio.run(_claimed(log))


async def _claimed(log: Log) -> float:
    async with Milepost(log.url, schema=log.schema) as mp:
        times = []
        for _ in range(CLAIMS):
            start = perf_counter()
            tasks = await mp.pull("jobs", limit=BATCH)
            times.append(perf_counter() - start)
            if len(tasks) != BATCH:
                raise RuntimeError(f"{len(tasks)} were claimed instead of {BATCH}")
            await mp.settle(retry=tasks, after=0)
        return median(times)
