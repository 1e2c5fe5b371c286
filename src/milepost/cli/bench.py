"""`milepost bench`: a quick measurement on one's own database, each figure beside PostgreSQL alone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import quantiles
from time import monotonic
from typing import Annotated, LiteralString
from uuid import uuid4

import msgspec
import typer
from psycopg import sql

from milepost.app import Milepost
from milepost.cli import loop
from milepost.cli.figure import Figure, compared
from milepost.cli.options import Json, Url, checked_seconds, milepost
from milepost.cli.output import show, table, write_json
from milepost.cli.progress import ProgressBar
from milepost.log.database import Connection, fetch
from milepost.log.feed import NOW
from milepost.log.message import NewMessage, Property
from milepost.log.schema import migrate
from milepost.log.statements import in_schema

BATCH = 100
STREAMS = 1000
MOST_READ = 50_000
FOLLOWED_RATE = 200
"""Messages a second while the latency of a follower is measured."""
WORKS = 5

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
    mp = milepost(url, f"milepost_bench_{uuid4().hex[:8]}", migrate="off", pool_size=10)
    figures = loop.run(_measured(mp, checked_seconds(seconds)))
    if as_json:
        write_json(figures)
        return
    rows = table("work", "milepost", "PostgreSQL alone", "ratio")
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        rows.add_row(figure.work, _shown(figure.milepost, figure.unit), _shown(figure.raw, figure.unit), ratio)
    show(rows)


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value * 1000:,.1f} ms" if unit == "seconds" else f"{value:,.0f} /s"


async def _measured(mp: Milepost, seconds: float) -> list[Figure]:
    figures: list[Figure] = []
    with ProgressBar("measuring", WORKS) as progress:
        async with _temporary(mp) as works:
            for done, work in enumerate(works.all()):
                progress.advance_to(done)
                figures += await work(seconds / WORKS)
    return figures


@asynccontextmanager
async def _temporary(mp: Milepost) -> AsyncIterator["Works"]:
    """The works in their own schema, which goes at the end, however that comes."""
    name = mp.settings["schema"].value
    async with mp, AsyncExitStack() as stack:
        try:
            connections = [await stack.enter_async_context(await mp.log.database.connect()) for _ in range(8)]
            await migrate(connections[0], name)
            await connections[0].execute(in_schema(_TABLE, name))
            yield Works(mp, connections, name)
        finally:
            async with mp.log.database.connection() as connection:
                await connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))


class Works:
    """What is measured."""

    def __init__(self, mp: Milepost, connections: Sequence[Connection], schema: str) -> None:
        self._mp = mp
        self._connections = connections
        self._insert, self._copy, self._page = (in_schema(text, schema) for text in (_INSERT, _COPY, _PAGE))
        self._drawn = 0

    def all(self) -> list[Callable[[float], Awaitable[list[Figure]]]]:
        """The works in order; reading needs what the others appended."""
        return [
            partial(self._singles, 1),
            partial(self._singles, 8),
            self._batches,
            self._reading,
            self._following,
        ]

    async def _singles(self, writers: int, seconds: float) -> list[Figure]:
        ours = [self._append] * writers
        theirs = [partial(self._insert_one, connection) for connection in self._connections[:writers]]
        return [await compared(f"append, {writers} writer{'s'[: writers > 1]}", ours, theirs, seconds)]

    async def _batches(self, seconds: float) -> list[Figure]:
        return [await compared(f"append, batches of {BATCH}", [self._append_batch], [self._copy_batch], seconds)]

    async def _reading(self, seconds: float) -> list[Figure]:
        return [await compared("read everything", [self._read], [self._read_raw], seconds)]

    async def _following(self, seconds: float) -> list[Figure]:
        """From the return of the append to the follower's hands."""
        arrived: dict[int, float] = {}
        follower = asyncio.create_task(self._follow(arrived))
        appended: dict[int, float] = {}
        begun = monotonic()
        await asyncio.sleep(0.1)
        while (now := monotonic()) < begun + seconds:
            result = await self._mp.append(f"follow-{self._number() % STREAMS}", _MESSAGE)
            appended[result.position] = monotonic()
            await asyncio.sleep(max(0.0, 1 / FOLLOWED_RATE - (monotonic() - now)))
        await asyncio.sleep(0.1)
        follower.cancel()
        await asyncio.wait([follower])
        waits = [max(0.0, arrived[place] - when) for place, when in appended.items() if place in arrived]
        percentiles = quantiles(waits, n=100, method="inclusive")
        work = f"follow at {FOLLOWED_RATE} a second"
        return [
            Figure(f"{work}, {name}", "seconds", percentiles[n]) for n, name in ((49, "median"), (98, "99th %"))
        ]

    async def _follow(self, arrived: dict[int, float]) -> None:
        async for page in self._mp.follow_pages(after=NOW):
            arrived |= dict.fromkeys((message.position for message in page), monotonic())

    def _number(self) -> int:
        self._drawn += 1
        return self._drawn

    async def _append(self) -> int:
        await self._mp.append(f"single-{self._number() % STREAMS}", _MESSAGE)
        return 1

    async def _append_batch(self) -> int:
        await self._mp.append(f"batch-{self._number() % STREAMS}", [_MESSAGE] * BATCH)
        return BATCH

    async def _insert_one(self, connection: Connection) -> int:
        n = self._number()
        await connection.execute(self._insert, (n, n, uuid4(), *_JSON))
        return 1

    async def _copy_batch(self) -> int:
        n = self._number()
        async with self._connections[0].cursor().copy(self._copy) as copy:
            for version in range(BATCH):
                await copy.write_row((n, n + version, 7, 7, 200, uuid4(), "order.placed", *_JSON))
        return BATCH

    async def _read(self) -> int:
        return sum([len(page) async for page in self._mp.read_pages(limit=MOST_READ)])

    async def _read_raw(self) -> int:
        count, after = 0, 0
        while count < MOST_READ and (rows := await fetch(self._connections[0], self._page, {"after": after})):
            count, after = count + len(rows), rows[-1][0]
        return count
