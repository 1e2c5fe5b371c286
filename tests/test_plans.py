"""Plans on the path of a message do not depend on statistics: however long the log is, few rows are read for each.

Tables are analyzed while they are empty or nearly so, as autovacuum does in the first minute of a new log. Plans
are made then, and kept by the connections that go on to append and handle thousands of messages.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, LiteralString
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from milepost import Message, NewMessage, Retry, Transaction
from support import MakeMilepost, qualified

Connection = psycopg.AsyncConnection[tuple[Any, ...]]

WARM_UP = 20
"""How many messages there are when plans are made: PostgreSQL plans five times anew, and the driver sends five."""
ROWS_A_MESSAGE = 30
"""The most rows that are read for a message, in all tables on its path and for all subscriptions of a test."""

ANALYZED = ["never", "when_empty", "with_few_rows"]
COUNTS = [600, pytest.param(20_000, marks=pytest.mark.shard("large"))]


@dataclass(frozen=True)
class RowsRead:
    """What was read of a table since it was made."""

    table: str
    scanned: int
    """By reading the whole table."""
    found: int
    """By an index."""


@dataclass
class Analyzer:
    """Whoever gathers statistics, and tells what was read."""

    connection: Connection
    schema: str
    when: str

    async def analyze(self, when: str) -> None:
        """Gather statistics, if this test does so at this moment."""
        if when == self.when:
            await self.connection.execute("analyze")

    async def rows_read(self) -> dict[str, RowsRead]:
        """Return what was read of each table, once Milepost's sessions have ended: then all of it is known."""
        async with asyncio.timeout(60):
            while await self._ask(IS_CONNECTED):
                await asyncio.sleep(0.01)
        cursor = await self.connection.execute(
            "select relname, seq_tup_read, coalesce(idx_tup_fetch, 0) from pg_stat_user_tables "
            "where schemaname = %s",
            [self.schema],
        )
        return {row[0]: RowsRead(*row) for row in await cursor.fetchall()}

    async def _ask(self, question: LiteralString) -> Any:
        cursor = await self.connection.execute(question)
        return (await cursor.fetchone() or [None])[0]


IS_CONNECTED: LiteralString = (
    "select exists (select from pg_stat_activity "
    "where application_name = 'milepost' and datname = current_database())"
)


@pytest.fixture
def database_url(embedded_url: str, second_database: Callable[[str], str]) -> str:
    """A database where nobody else is: servers of other tests stay connected to theirs."""
    return second_database(embedded_url)


@pytest.fixture(params=ANALYZED)
async def analyzer(request: pytest.FixtureRequest, database_url: str, schema: str) -> AsyncIterator[Analyzer]:
    """Gathers statistics when the parameter says."""
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        yield Analyzer(connection, schema, request.param)


def check(before: dict[str, RowsRead], after: dict[str, RowsRead], count: int) -> None:
    """Assert that few rows were read for each of so many messages."""
    read = {
        name: RowsRead(name, now.scanned - before[name].scanned, now.found - before[name].found)
        for name, now in after.items()
    }
    # The others have a row or a few, and are looked at from time to time.
    large = [read[name] for name in ("messages", "streams", "deliveries", "cursors", "counts")]
    assert sum(table.scanned for table in large) <= count, large
    assert sum(table.found for table in large) <= ROWS_A_MESSAGE * count, large


async def in_turn(analyzer: Analyzer, work: Callable[[int], Awaitable[None]], count: int) -> None:
    """Do some of the work while there is little, gather statistics, and do the rest of it."""
    for _ in range(2):
        await work(WARM_UP)
        await analyzer.analyze("with_few_rows")
    await work(count)


@pytest.mark.shard("large", fast=["when_empty-600"])
@pytest.mark.parametrize("count", COUNTS)
async def test_appending(make_mp: MakeMilepost, analyzer: Analyzer, count: int) -> None:
    await analyzer.analyze("when_empty")
    before = await analyzer.rows_read()
    async with (
        make_mp(pool_size=1) as mp,
        await psycopg.AsyncConnection.connect(mp.url, application_name="milepost") as own,
    ):
        write = qualified("select {}.append('sql-1', 'a', '1', id => gen_random_uuid())", mp).encode()

        async def append(count: int) -> None:
            for number in range(count // 10):
                await mp.append(f"order-{number}", NewMessage("a"))
                await mp.append("order-0", NewMessage("a", id=uuid4()))
                await mp.append(f"order-{number}", [NewMessage("a", id=uuid4()), NewMessage("a")])
                await mp.append_many({f"order-{number + n}": [NewMessage("a", id=uuid4())] for n in range(4)})
                await mp.append(f"own-{number}", NewMessage("a", id=uuid4()), connection=own)
                await own.execute(write)
                await own.commit()
                await mp.last("order-0")

        await in_turn(analyzer, append, count)
    check(before, await analyzer.rows_read(), count)


@pytest.mark.parametrize("batch", [None, 10])
async def test_statements_of_handlers_are_planned_as_for_anybody(
    make_mp: MakeMilepost, database_url: str, batch: int | None
) -> None:
    url = make_conninfo(database_url, options="-c enable_bitmapscan=off")
    mp = make_mp(url=url)
    found: list[tuple[Any, ...] | None] = []
    asked = (
        "select current_setting('enable_seqscan'), current_setting('enable_bitmapscan'), current_setting('jit')"
    )

    async def look(tx: Transaction) -> None:
        found.append(await (await tx.execute(asked)).fetchone())

    if batch is None:

        @mp.subscription("one")
        async def one(message: Message[Any], tx: Transaction) -> None:
            await look(tx)

    else:

        @mp.subscription("several", batch=batch)
        async def several(messages: list[Message[Any]], tx: Transaction) -> None:
            await look(tx)

    async with mp:
        await mp.append("order-1", NewMessage("a"))
        await mp.run_until_idle()
        async with mp.log.database.connection() as connection:
            own = await (await connection.execute(asked)).fetchone()
    async with await psycopg.AsyncConnection.connect(url) as connection:
        anybody = await (await connection.execute(asked)).fetchone()
    assert found == [anybody]
    assert own == ("off", "off", "off")


@pytest.mark.shard("large", fast=["when_empty-600"])
@pytest.mark.parametrize("count", COUNTS)
async def test_handling(make_mp: MakeMilepost, analyzer: Analyzer, count: int) -> None:
    await analyzer.analyze("when_empty")
    before = await analyzer.rows_read()
    mp = make_mp(pool_size=4)

    @mp.subscription("plain", category="order")
    async def plain(message: Message[Any]) -> None: ...

    @mp.subscription("everything", tracking="all")
    async def everything(message: Message[Any]) -> None: ...

    @mp.subscription("transactions", category="order", lanes=4)
    async def transaction(message: Message[Any], tx: Transaction) -> None:
        if message.position % 10 == 0:
            await tx.append(f"receipt-{message.position}", NewMessage("b"))

    async with mp:

        async def handle(count: int) -> None:
            for number in range(count // 20):
                await mp.append_many({f"order-{number * 20 + n}": [NewMessage("a")] for n in range(20)})
            await mp.run_until_idle()

        await in_turn(analyzer, handle, count)
    check(before, await analyzer.rows_read(), count)


@pytest.mark.shard("large", fast=["when_empty-stream-600", "never-None-600"])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("ordered_by", ["stream", None])
async def test_pulling(
    make_mp: MakeMilepost, analyzer: Analyzer, ordered_by: Literal["stream"] | None, count: int
) -> None:
    """A few are tried again, and a few parked: they stay, and are passed by whoever looks for the others."""
    await analyzer.analyze("when_empty")
    before = await analyzer.rows_read()
    async with make_mp(pool_size=1) as mp:
        await mp.create_subscription("jobs", category="job", tracking="all", ordered_by=ordered_by)

        async def pull(count: int) -> None:
            for number in range(count // 20):
                await mp.append_many({f"job-{number * 10 + n}": [NewMessage("a")] * 2 for n in range(10)})
            while (tasks := await mp.pull("jobs", limit=50)) or tasks.more:
                at = 9 * len(tasks) // 10
                await mp.settle(ack=tasks[:at], retry=tasks[at : at + 1], park=tasks[at + 1 :])

        await in_turn(analyzer, pull, count)
    check(before, await analyzer.rows_read(), count)


@pytest.mark.shard("large", fast=["when_empty-600"])
@pytest.mark.parametrize("count", COUNTS)
async def test_consuming(make_mp: MakeMilepost, analyzer: Analyzer, count: int) -> None:
    """Every tenth is tried again, and every hundredth parked."""
    await analyzer.analyze("when_empty")
    before = await analyzer.rows_read()
    async with make_mp() as mp:
        await mp.create_subscription("shipping", category="order", retry=Retry(attempts=2, delay=0))

        async def consume(count: int) -> None:
            done = 0
            for number in range(count // 20):
                await mp.append_many({f"order-{number * 20 + n}": [NewMessage("a")] for n in range(20)})
            async with mp.consumer("shipping") as consumer:
                async for delivery in consumer:
                    if delivery.position % 10 == 0 and delivery.attempt == 1:
                        await delivery.retry()
                        continue
                    await (delivery.park() if delivery.position % 100 == 0 else delivery.ack())
                    done += 1
                    if done == count // 20 * 20:
                        break

        await in_turn(analyzer, consume, count)
    check(before, await analyzer.rows_read(), count)


@pytest.mark.shard("large", fast=["when_empty-600"])
@pytest.mark.parametrize("count", COUNTS)
async def test_reading(make_mp: MakeMilepost, analyzer: Analyzer, count: int) -> None:
    """Little is read of a long log, for few messages of one category or of some streams."""
    await analyzer.analyze("when_empty")
    before = await analyzer.rows_read()
    async with make_mp(pool_size=1) as mp, await Connection.connect(mp.url, application_name="milepost") as own:
        head = 0

        async def read(count: int) -> None:
            nonlocal head
            for number in range(count // 20):
                appended = await mp.append_many(
                    {
                        f"c{number % 3}-{number % 9}": [NewMessage("a")] * 15,
                        f"rare-{number % 50}": [NewMessage("b")] * 5,
                    }
                )
                head = max(each.position for each in appended.values())
            for number in range(WARM_UP):
                found = [
                    [m async for m in mp.read(category=f"c{number % 3}", after=head - 10, limit=2)],
                    [m async for m in mp.read(category=["rare", "none"], after=head - 20, where="n == 1")],
                    [m async for m in mp.read(category="rare", backwards=True, limit=2)],
                    [m async for m in mp.read([f"rare-{number}", "rare-2"], limit=3)],
                    [m async for m in mp.read([f"rare-{number}", "rare-2"], after=head - 10)],
                    [m async for m in mp.read([f"rare-{number}", "rare-2"], backwards=True, types="c", limit=3)],
                    [m async for m in mp.read(f"rare-{number}", limit=3)],
                    [m async for m in mp.read(f"rare-{number}", after=head - 10)],
                    [m async for m in mp.read(f"rare-{number}", limit=3, connection=own)],
                    [m async for m in mp.read(after=head - 3)],
                ]
                assert max(map(len, found)) <= 20
                assert await mp.last("rare-2") == await mp.last("rare-2", connection=own)
                await own.commit()

        await in_turn(analyzer, read, count)
    check(before, await analyzer.rows_read(), count)
