"""Reading everything and one category in a hundred, beside raw pages; what the index over categories costs."""

import asyncio
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.contest import contest
from benchmarks.crew import Crew
from benchmarks.logs import Index, Log, fresh_log
from benchmarks.messages import CATEGORY, STREAMS
from benchmarks.results import Result
from benchmarks.server import without_waiting
from benchmarks.writers import RawCopyWriter, RawWriter, Writer
from milepost import Milepost
from milepost.filter import compile_filter
from milepost.names import category_hash

PAGE = 1_000
REPEATS = 5
"""How often a turn reads a category, which is soon done."""
ALL = "read: everything"
ONE_CATEGORY = "read: one category in a hundred"
ONE_IN_A_THOUSAND = "read: a filter that matches one in a thousand"
WHERE = 'customer == 7 && region == "EU"'
INDEX_COST: dict[str, type[RawWriter]] = {
    "read: cost of the category index to an INSERT": RawWriter,
    "read: cost of the category index to a COPY of 100": RawCopyWriter,
}
LIMIT = "limit"
BRIN = "raw, BRIN"
NO_INDEX = "raw, no index"
TABLES: dict[str, tuple[str, Index]] = {
    LIMIT: ("raw", "btree"),
    BRIN: ("raw_brin", "brin"),
    NO_INDEX: ("raw_none", "none"),
}

_COLUMNS = """m."position", s.name, m.version, m.id, m.type, m.time, m.size,
       m.data::text, m.properties::text, m.metadata::text"""
_PAGE = f"""
select {_COLUMNS}
from {{table}} m join {{streams}} s on s.stream_id = m.stream_id
where m."position" > %s order by m."position" limit {PAGE}
"""
_CATEGORY_PAGE = f"""
select {_COLUMNS}
from {{table}} m join {{streams}} s on s.stream_id = m.stream_id
where m."position" > %s and m.category_hash = {{hash}} order by m."position" limit {PAGE}
"""


def measure(bench: Bench) -> list[Result]:
    """Everything and a category on one log, the same rows for all."""
    versions = max(1, bench.sizes.read_messages // STREAMS)
    with fresh_log(bench.url, "read", versions=versions) as log:
        with bench.steps("read: the same rows in raw tables", len(TABLES)) as step:
            for table, index in TABLES.values():
                log.raw_table(table, index, filled=True)
                step()
        reads = _reads(bench, log)
        costs = [result for work in INDEX_COST for result in _index_cost(bench, log, work)]
        return reads + costs


def _reads(bench: Bench, log: Log) -> list[Result]:
    with asyncio.Runner() as runner, RawReader(log) as raw:
        mp = runner.run(Milepost(log.url, schema=log.schema).__aenter__())
        raw_async = runner.run(RawAsyncReader(log).open())
        everything = contest(
            bench,
            ALL,
            {
                "milepost": lambda: runner.run(milepost_rate(mp)),
                "raw async": lambda: runner.run(raw_async.rate("messages")),
                "limit": lambda: raw.rate("messages"),
            },
            bench.sizes.rounds,
        )
        category = contest(
            bench,
            ONE_CATEGORY,
            {
                "milepost": lambda: runner.run(milepost_rate(mp, category=CATEGORY)),
                **{subject: partial(raw.rate, table, CATEGORY) for subject, (table, _) in TABLES.items()},
            },
            bench.sizes.rounds,
        )
        filtered = contest(
            bench,
            ONE_IN_A_THOUSAND,
            {
                "milepost": lambda: runner.run(filtered_rate(mp)),
                "milepost, no push-down": lambda: runner.run(filtered_here_rate(mp)),
            },
            bench.sizes.rounds,
        )
        runner.run(mp.__aexit__(None, None, None))
        runner.run(raw_async.close())
    return [
        everything.result(ALL, "milepost", of="raw async"),
        everything.result(ALL, "raw async", of="limit"),
        everything.result(ALL, "limit"),
        category.result(ONE_CATEGORY, "milepost", of=LIMIT),
        category.result(ONE_CATEGORY, LIMIT),
        category.result(ONE_CATEGORY, BRIN, of=LIMIT),
        category.result(ONE_CATEGORY, NO_INDEX, of=LIMIT),
        filtered.result(ONE_IN_A_THOUSAND, "milepost", of="milepost, no push-down"),
        filtered.result(ONE_IN_A_THOUSAND, "milepost, no push-down"),
    ]


def _index_cost(bench: Bench, log: Log, work: str) -> list[Result]:
    make = INDEX_COST[work]
    quiet = replace(log, url=without_waiting(log.url))
    writers: dict[str, Writer] = {subject: make(quiet, table) for subject, (table, _) in TABLES.items()}
    with Crew(1, writers) as crew:
        turns = {subject: partial(crew.rate, subject, bench.sizes.seconds) for subject in writers}
        scores = contest(bench, work, turns, bench.sizes.rounds)
    return [
        scores.result(work, "raw, B-tree", contender=LIMIT, of=NO_INDEX),
        scores.result(work, BRIN, of=NO_INDEX),
        scores.result(work, NO_INDEX),
    ]


async def milepost_rate(
    mp: Milepost, *, category: str | None = None, after: int = 0, limit: int | None = None
) -> float:
    """Messages a second that `mp.read` hands out."""
    start, count = perf_counter(), 0
    for _ in range(REPEATS if category else 1):
        async for _message in mp.read(category=category, after=after, limit=limit):
            count += 1
    return count / (perf_counter() - start)


async def filtered_rate(mp: Milepost) -> float:
    """Messages of the log a second that a filtered read looks through."""
    start, head = perf_counter(), await mp.head()
    found = [message.position async for message in mp.read(where=WHERE)]
    return head / (perf_counter() - start) if found else 0.0


async def filtered_here_rate(mp: Milepost) -> float:
    """The same where everything is read and looked at in this process."""
    start, head = perf_counter(), await mp.head()
    matches = compile_filter(WHERE).matches
    found = [message.position async for message in mp.read() if matches(message.properties)]
    return head / (perf_counter() - start) if found else 0.0


class RawReader:
    """Pages of a table with the columns that a message is made of, in PostgreSQL's binary format."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._connection = psycopg.connect(log.url, autocommit=True)
        self._cursor = self._connection.cursor(binary=True)

    def __enter__(self) -> "RawReader":
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def rate(self, table: str, category: str | None = None, *, after: int = 0) -> float:
        """Rows a second, of everything or of a category."""
        statement = _statement(self._log, table, category)
        start, count = perf_counter(), 0
        for _ in range(REPEATS if category else 1):
            position = after
            while rows := self._page(statement, position):
                count += len(rows)
                position = rows[-1][0]
        return count / (perf_counter() - start)

    def head(self) -> int:
        """The highest position."""
        statement = sql.SQL('select coalesce(max(m."position"), 0) from {} m').format(self._log.name("messages"))
        row = self._connection.execute(statement).fetchone()
        return 0 if row is None else int(row[0])

    def _page(self, statement: sql.Composed, position: int) -> list[tuple[Any, ...]]:
        self._cursor.execute(statement, [position], prepare=True)
        return self._cursor.fetchall()


class RawAsyncReader:
    """The same through an async connection."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def open(self) -> "RawAsyncReader":
        """Connects."""
        self._connection = await psycopg.AsyncConnection.connect(self._log.url, autocommit=True)
        return self

    async def close(self) -> None:
        """Ends the connection."""
        await self._connection.close()

    async def rate(self, table: str, *, after: int = 0) -> float:
        """Rows a second of everything."""
        statement = _statement(self._log, table, None)
        cursor = self._connection.cursor(binary=True)
        start, count, position = perf_counter(), 0, after
        while True:
            await cursor.execute(statement, [position], prepare=True)
            rows = await cursor.fetchall()
            if not rows:
                return count / (perf_counter() - start)
            count += len(rows)
            position = rows[-1][0]


def _statement(log: Log, table: str, category: str | None) -> sql.Composed:
    names = {"table": log.name(table), "streams": log.name("streams")}
    if category is None:
        return sql.SQL(_PAGE).format(**names)
    return sql.SQL(_CATEGORY_PAGE).format(**names, hash=sql.Literal(category_hash(category)))
