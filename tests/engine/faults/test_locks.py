"""Maintenance of Milepost's own tables while messages flow."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from psycopg import sql

from milepost import Context, Message, Milepost, NewMessage, Retry
from patience import within
from support import Connection, MakeMilepost, rows_by_state

FAULTS = pytest.mark.shard("faults")
LEASE = 1.0


class Handled:
    """Messages that a program handled; each other fails at first, so that rows are written."""

    def __init__(self, mp: Milepost) -> None:
        self._mp = mp
        self._appended = 0
        self._seen: set[int] = set()
        self._grown = asyncio.Event()

    def declare(self, program: Milepost) -> None:
        @program.subscription("lines", category="order", lanes=4, lease=LEASE, retry=Retry(delay=0.01, jitter=0))
        async def handle(message: Message[Any], context: Context) -> None:
            if message.data % 2 and context.attempt == 1:
                raise ValueError("once")
            self._seen.add(message.data)
            self._grown.set()

    async def append(self, count: int = 4) -> None:
        """Appends messages for several lanes."""
        for _ in range(count):
            self._appended += 1
            await self._mp.append(f"order-{self._appended % 7}", NewMessage("placed", self._appended))

    async def all(self) -> None:
        """Waits until everything is handled that was appended."""
        async with within(30, self._missing):
            while len(self._seen) < self._appended:
                self._grown.clear()
                await self._grown.wait()

    async def _missing(self) -> str:
        missing = sorted(set(range(1, self._appended + 1)) - self._seen)
        return f"all but {missing}; rows {await rows_by_state(self._mp)}"


@pytest.fixture
async def admin(database_url: str) -> AsyncIterator[Connection]:
    """A connection for statements that may not run in a transaction."""
    async with await Connection.connect(database_url, autocommit=True) as connection:
        yield connection


async def tables(admin: Connection, schema: str) -> list[sql.Identifier]:
    """The tables of a schema."""
    cursor = await admin.execute("select tablename from pg_tables where schemaname = %s order by 1", (schema,))
    return [sql.Identifier(schema, name) for (name,) in await cursor.fetchall()]


async def waiters(admin: Connection, table: sql.Identifier) -> int:
    """How many wait for a lock on a table."""
    statement = "select count(*) from pg_locks where not granted and relation = %s::regclass"
    row = await (await admin.execute(statement, (table.as_string(None),))).fetchone()
    return int(row[0]) if row else 0


@asynccontextmanager
async def locked(url: str, table: sql.Identifier, mode: str) -> AsyncIterator[Connection]:
    """Holds a lock on a table for as long as the block lasts."""
    async with await Connection.connect(url) as connection:
        await connection.execute(sql.SQL("lock table {} in {} mode").format(table, sql.SQL(mode)))
        yield connection


async def test_delivery_goes_on_while_maintenance_holds_its_locks(
    mp: Milepost, make_mp: MakeMilepost, admin: Connection, database_url: str, schema: str
) -> None:
    """VACUUM, ANALYZE and CREATE INDEX CONCURRENTLY hold this lock for as long as they take."""
    handled = Handled(mp)
    program, other = make_mp(), make_mp()
    handled.declare(program)
    handled.declare(other)
    async with program.running():
        await handled.append()
        await handled.all()
        async with await Connection.connect(database_url) as maintenance:
            for table in await tables(admin, schema):
                statement = sql.SQL("lock table {} in share update exclusive mode").format(table)
                await maintenance.execute(statement)
            await handled.append()
            await handled.all()
            async with other.running():
                await handled.append()
                await handled.all()


@pytest.mark.shard("faults")
async def test_maintenance_and_delivery_run_side_by_side(
    mp: Milepost, make_mp: MakeMilepost, admin: Connection, schema: str
) -> None:
    handled = Handled(mp)
    program = make_mp()
    handled.declare(program)
    async with program.running():
        for table in await tables(admin, schema):
            for text in ("vacuum analyze {}", "create index concurrently faults on {} ((1))", "vacuum full {}"):
                work = asyncio.create_task(admin.execute(sql.SQL(text).format(table)))
                await handled.append()
                await handled.all()
                await work
            await admin.execute(sql.SQL("drop index concurrently {}").format(sql.Identifier(schema, "faults")))


@pytest.mark.shard("faults")
async def test_delivery_goes_on_by_itself_after_a_table_was_locked(
    mp: Milepost, make_mp: MakeMilepost, admin: Connection, database_url: str, schema: str
) -> None:
    handled = Handled(mp)
    program = make_mp()
    handled.declare(program)
    async with program.running():
        for table in await tables(admin, schema):
            async with locked(database_url, table, "access exclusive"):
                appending = asyncio.create_task(handled.append())
                # Not every table is asked for by every message.
                for _ in range(20):
                    if await waiters(admin, table):
                        break
                    await asyncio.sleep(0.01)
            await appending
            await handled.all()


@pytest.mark.parametrize("name", ["lanes", *(pytest.param(name, marks=FAULTS) for name in ("workers", "cursors"))])
async def test_delivery_goes_on_after_a_table_was_locked_beyond_the_lease(
    mp: Milepost, make_mp: MakeMilepost, database_url: str, schema: str, name: str
) -> None:
    handled = Handled(mp)
    program = make_mp()
    handled.declare(program)
    expired = sql.SQL("select bool_and(clock_timestamp() - %s::timestamptz > %s * interval '1 s')")
    async with program.running():
        await handled.append()
        await handled.all()
        async with locked(database_url, sql.Identifier(schema, name), "access exclusive") as holder:
            begun = await (await holder.execute("select clock_timestamp()")).fetchone()
            assert begun is not None
            await handled.append()
            while (await (await holder.execute(expired, (begun[0], 1.5 * LEASE))).fetchone()) == (False,):
                await asyncio.sleep(0.05)
        await handled.append()
        await handled.all()
