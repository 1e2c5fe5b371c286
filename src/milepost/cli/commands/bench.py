"""`milepost bench`: a quick measurement on one's own database, each rate beside PostgreSQL alone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from statistics import quantiles
from time import monotonic
from typing import Annotated, LiteralString
from uuid import uuid4

import msgspec
import typer
from psycopg import sql

from milepost.app import Milepost
from milepost.cli import signals
from milepost.cli.options import Json, Url, check_seconds, make_milepost
from milepost.cli.output import ProgressBar, new_table, print_json, print_table
from milepost.log.message import NewMessage, Property
from milepost.log.query import NOW
from milepost.postgres.pool import Connection, fetch_rows
from milepost.postgres.schema import migrate
from milepost.postgres.statements import in_schema

TURNS = 4
"""Turns of each side."""

BenchStep = Callable[[], Awaitable[int]]
"""A step of a workload: it works once and returns how many messages that were."""


@dataclass(frozen=True)
class BenchFigure:
    """One line of the result. `unit` is "messages a second" or "seconds"."""

    work: str
    unit: str
    milepost: float
    raw: float | None = None
    ratio: float | None = None


async def compare_rates(
    work: str, ours: Sequence[BenchStep], theirs: Sequence[BenchStep], seconds: float
) -> BenchFigure:
    """Measure both rates in turns, so that other load on the machine falls on both."""
    each = seconds / TURNS / 2
    turns = [(await measure_rate(ours, each), await measure_rate(theirs, each)) for _ in range(TURNS)]
    mean, raw = (sum(rates) / TURNS for rates in zip(*turns, strict=True))
    return BenchFigure(work, "messages a second", mean, raw, mean / raw)


async def measure_rate(steps: Sequence[BenchStep], seconds: float) -> float:
    """Return the messages a second of steps that repeat beside each other."""
    begun = monotonic()

    async def repeat(step: BenchStep) -> int:
        count = 0
        while monotonic() < begun + seconds:
            count += await step()
        return count

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(repeat(step)) for step in steps]
    return sum(task.result() for task in tasks) / (monotonic() - begun)


BATCH_MESSAGES = 100
STREAMS = 1000
MAX_READ_MESSAGES = 50_000
FOLLOWED_MESSAGES_PER_SECOND = 200
"""Messages a second while the latency of a follower is measured."""
WORKLOADS = 5

_PROPERTIES: dict[str, Property] = {"amount": 12050, "region": "EU"}
_DATA = {"order": 4711, "customer": "c-2041", "items": ["tea", "cup"], "note": "leave at the door", **_PROPERTIES}
_MESSAGE = NewMessage("order.placed", _DATA, properties=_PROPERTIES)
_JSON = msgspec.json.encode(_DATA).decode(), msgspec.json.encode(_PROPERTIES).decode(), "{}"

_TABLE: LiteralString = 'create table :"schema".raw (like :"schema".messages including all)'
_INSERT: LiteralString = """
    insert into :"schema".raw
        (stream_id, version, category_hash, bucket, size, id, type, data, properties, metadata)
    values (%s, %s, 7, 7, 200, %s, 'order.placed', %s, %s, %s)
"""
_COPY: LiteralString = """
    copy :"schema".raw (stream_id, version, category_hash, bucket, size, id, type, data, properties, metadata)
    from stdin
"""
_PAGE: LiteralString = """
    select m."position", s.name, m.version, m.id, m.type, m.time, m.size,
           m.data::text, m.properties::text, m.metadata::text
    from :"schema".messages m join :"schema".streams s on s.stream_id = m.stream_id
    where m."position" > %(after)s order by m."position" limit 1000
"""


def bench(
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long to measure, in all.")] = 15.0,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Measures appending, reading and following on your database, beside PostgreSQL alone.

    It works in a schema of its own, milepost_bench_…, which it drops at the end.

    **Example:** `milepost bench --url postgresql://localhost/shop --seconds 60`
    """
    mp = make_milepost(url, f"milepost_bench_{uuid4().hex[:8]}", migrate="off", pool_size=10)
    figures = signals.run_async(_measure(mp, check_seconds("--seconds", seconds)))
    if as_json:
        print_json(figures)
        return
    rows = new_table("work", "milepost", "PostgreSQL alone", "ratio")
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        rows.add_row(
            figure.work, _format_value(figure.milepost, figure.unit), _format_value(figure.raw, figure.unit), ratio
        )
    print_table(rows)


def _format_value(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value * 1000:,.1f} ms" if unit == "seconds" else f"{value:,.0f} /s"


async def _measure(mp: Milepost, seconds: float) -> list[BenchFigure]:
    figures: list[BenchFigure] = []
    with ProgressBar("measuring", WORKLOADS) as progress:
        async with _temporary_schema(mp) as workloads:
            for done, work in enumerate(workloads.all()):
                progress.advance_to(done)
                figures += await work(seconds / WORKLOADS)
    return figures


@asynccontextmanager
async def _temporary_schema(mp: Milepost) -> AsyncIterator["Workloads"]:
    """Open the workloads in a schema of their own, which is dropped at the end, also after an error."""
    name = mp.settings["schema"].value
    async with mp, AsyncExitStack() as stack:
        try:
            connections = [await stack.enter_async_context(await mp.log.database.connect()) for _ in range(8)]
            await migrate(connections[0], name)
            await connections[0].execute(in_schema(_TABLE, name))
            yield Workloads(mp, connections, name)
        finally:
            async with mp.log.database.connection() as connection:
                await connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))


class Workloads:
    """The workloads that are measured, and their state."""

    def __init__(self, mp: Milepost, connections: Sequence[Connection], schema: str) -> None:
        self._mp = mp
        self._connections = connections
        self._insert, self._copy, self._page = (in_schema(text, schema) for text in (_INSERT, _COPY, _PAGE))
        self._last_number = 0

    def all(self) -> list[Callable[[float], Awaitable[list[BenchFigure]]]]:
        """Return the workloads in order: reading needs what the others appended."""
        return [
            partial(self._measure_single_appends, 1),
            partial(self._measure_single_appends, 8),
            self._measure_batches,
            self._measure_reading,
            self._measure_following,
        ]

    async def _measure_single_appends(self, writers: int, seconds: float) -> list[BenchFigure]:
        ours = [self._append] * writers
        theirs = [partial(self._insert_one, connection) for connection in self._connections[:writers]]
        return [await compare_rates(f"append, {writers} writer{'s'[: writers > 1]}", ours, theirs, seconds)]

    async def _measure_batches(self, seconds: float) -> list[BenchFigure]:
        return [
            await compare_rates(
                f"append, batches of {BATCH_MESSAGES}", [self._append_batch], [self._copy_batch], seconds
            )
        ]

    async def _measure_reading(self, seconds: float) -> list[BenchFigure]:
        return [await compare_rates("read everything", [self._read], [self._read_raw], seconds)]

    async def _measure_following(self, seconds: float) -> list[BenchFigure]:
        """Measure the time from the return of an append to its arrival at a follower."""
        arrived: dict[int, float] = {}
        follower = asyncio.create_task(self._follow(arrived))
        appended: dict[int, float] = {}
        begun = monotonic()
        await asyncio.sleep(0.1)
        while (now := monotonic()) < begun + seconds:
            result = await self._mp.append(f"follow-{self._next_number() % STREAMS}", _MESSAGE)
            appended[result.position] = monotonic()
            await asyncio.sleep(max(0.0, 1 / FOLLOWED_MESSAGES_PER_SECOND - (monotonic() - now)))
        await asyncio.sleep(0.1)
        follower.cancel()
        await asyncio.wait([follower])
        waits = [max(0.0, arrived[place] - when) for place, when in appended.items() if place in arrived]
        percentiles = quantiles(waits, n=100, method="inclusive")
        work = f"follow at {FOLLOWED_MESSAGES_PER_SECOND} a second"
        return [
            BenchFigure(f"{work}, {name}", "seconds", percentiles[n])
            for n, name in ((49, "median"), (98, "99th %"))
        ]

    async def _follow(self, arrived: dict[int, float]) -> None:
        async for page in self._mp.follow_pages(after=NOW):
            arrived |= dict.fromkeys((message.position for message in page), monotonic())

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    async def _append(self) -> int:
        await self._mp.append(f"single-{self._next_number() % STREAMS}", _MESSAGE)
        return 1

    async def _append_batch(self) -> int:
        await self._mp.append(f"batch-{self._next_number() % STREAMS}", [_MESSAGE] * BATCH_MESSAGES)
        return BATCH_MESSAGES

    async def _insert_one(self, connection: Connection) -> int:
        n = self._next_number()
        await connection.execute(self._insert, (n, n, uuid4(), *_JSON))
        return 1

    async def _copy_batch(self) -> int:
        n = self._next_number()
        async with self._connections[0].cursor().copy(self._copy) as copy:
            for version in range(BATCH_MESSAGES):
                await copy.write_row((n, n + version, 7, 7, 200, uuid4(), "order.placed", *_JSON))
        return BATCH_MESSAGES

    async def _read(self) -> int:
        return sum([len(page) async for page in self._mp.read_pages(limit=MAX_READ_MESSAGES)])

    async def _read_raw(self) -> int:
        count, after = 0, 0
        while count < MAX_READ_MESSAGES and (
            rows := await fetch_rows(self._connections[0], self._page, {"after": after})
        ):
            count, after = count + len(rows), rows[-1][0]
        return count
