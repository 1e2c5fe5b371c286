"""How long the doctor looks at a long log with many deliveries, without the start of the command."""

import asyncio
from time import perf_counter
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.contest import Scores
from benchmarks.logs import Log, fresh_log
from benchmarks.messages import CATEGORIES, STREAMS
from benchmarks.results import Result
from milepost import Message, Milepost
from milepost.cli.checks import ExaminedDatabase, examine

SUBSCRIPTIONS = 10
SHARE = 10
"""There are so many times as many messages as deliveries."""
GOAL = 1.0
"""Seconds."""

_ROWS = """
insert into {schema}.deliveries
    (subscription, "position", lane, attempts, total, size, revision, since, state, key, reason, error)
select s.id, n * {step} + s.id, n %% s.lanes, 11, 11, 200, 1, now(),
       (array['parked', 'waiting', 'retrying', 'unrouted', 'skipped'])[1 + n %% 5], 'c7-' || n,
       'ValueError: no tax rate', repeat('  File "shop.py", line 7, in invoice' || chr(10), 20)
from {schema}.subscriptions s, generate_series(1, %(each)s) n
"""


def measure(bench: Bench) -> list[Result]:
    """All checks, on one connection."""
    count = bench.sizes.memory_messages
    work = f"doctor: {count:,} messages, {count // SHARE:,} deliveries"
    scores = Scores(unit="s", fewer_is_better=True)
    rounds = bench.sizes.rounds
    filled = fresh_log(bench.url, "doctor", streams=STREAMS, versions=count // STREAMS)
    with bench.steps(work, 1 + rounds) as step, filled as log:
        asyncio.run(_declare(log))
        _fill(log, count // SHARE // SUBSCRIPTIONS)
        step()
        for _ in range(rounds):
            scores.add("milepost", asyncio.run(_look(log)))
            step()
    return [scores.result(work, "milepost", below=GOAL)]


async def _declare(log: Log) -> None:
    """Subscriptions at the head of the log, with filters that match nothing: they are tried on a whole sample."""
    mp = Milepost(log.url, schema=log.schema)
    for number in range(SUBSCRIPTIONS):
        category = f"c{number % CATEGORIES}"

        @mp.subscription(f"s{number}", category=category, where='customer < 0 || region == "US"', start="now")
        async def handle(message: Message[Any]) -> None: ...

    await mp.run_until_idle()


def _fill(log: Log, each: int) -> None:
    with psycopg.connect(log.url, autocommit=True) as connection:
        names = {"schema": sql.Identifier(log.schema), "step": sql.Literal(SHARE)}
        connection.execute(sql.SQL(_ROWS).format(**names), {"each": each})
        connection.execute(sql.SQL("vacuum analyze {}").format(log.name("deliveries")))


async def _look(log: Log) -> float:
    async with await psycopg.AsyncConnection.connect(log.url, autocommit=True) as connection:
        begun = perf_counter()
        findings = await examine(ExaminedDatabase(log.url, connection, log.schema))
        took = perf_counter() - begun
    found = {finding.check for finding in findings if finding.verdict != "ok"}
    if not found >= {"lanes", "parked", "unrouted", "filters"}:
        raise RuntimeError(f"the doctor has overlooked something: {sorted(found)}")
    return took
