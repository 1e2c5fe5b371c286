"""A schema that forgets its newest commits, as a server does that crashes before they are on disk.

What was committed by a moment is copied; a crash brings that back, empties the unlogged tables and ends all
connections. So a test decides to the commit what is lost, which a real crash leaves to chance.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import LiteralString

import psycopg
from psycopg import sql

from milepost import Milepost, Unavailable
from support import Connection

COPY: LiteralString = """
do $$
declare
    here text := {schema};
    item record;
begin
    execute format('drop schema if exists %I cascade', here || '_disk');
    execute format('create schema %I', here || '_disk');
    for item in select c.relname as name from pg_class c
                where c.relnamespace = to_regnamespace(quote_ident(here)) and c.relkind = 'r'
                  and c.relpersistence = 'p' loop
        execute format('create table %I.%I as table %I.%I', here || '_disk', item.name, here, item.name);
    end loop;
    execute format(
        'create table %I.sequences_then as select sequencename as name, coalesce(last_value, start_value) as '
        'value, last_value is not null as is_called from pg_sequences where schemaname = %L',
        here || '_disk', here);
end $$
"""

GO_BACK: LiteralString = """
do $$
declare
    here text := {schema};
    item record;
begin
    perform pg_terminate_backend(a.pid, 20000) from pg_stat_activity a
    where a.datname = current_database() and a.backend_type = 'client backend' and a.application_name = 'milepost';
    -- Whoever connects now waits, and goes on in the next life. Who was quicker is ended by the next try.
    perform set_config('lock_timeout', '20ms', true);
    for item in select c.relname as name from pg_class c
                where c.relnamespace = to_regnamespace(quote_ident(here)) and c.relkind = 'r'
                order by c.relname loop
        execute format('lock table %I.%I in access exclusive mode', here, item.name);
    end loop;
    perform set_config('session_replication_role', 'replica', true);
    for item in select c.relname as name, c.relpersistence = 'p' as is_kept from pg_class c
                where c.relnamespace = to_regnamespace(quote_ident(here)) and c.relkind = 'r' loop
        execute format('delete from %I.%I', here, item.name);
        if item.is_kept then
            execute format(
                'insert into %I.%I overriding system value table %I.%I',
                here, item.name, here || '_disk', item.name);
        end if;
    end loop;
    for item in execute format('select * from %I.sequences_then', here || '_disk') loop
        perform setval(format('%I.%I', here, item.name)::regclass, item.value, item.is_called);
    end loop;
end $$
"""


class Lossy:
    """The schema of a test, and what of it is on disk."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self._connection = connection
        self._schema = schema

    async def flush(self) -> None:
        """Brings to disk what was committed so far."""
        await self._run(COPY)

    async def crash(self) -> None:
        """Loses what is not on disk, and begins another life."""
        async with asyncio.timeout(60):
            while True:
                with suppress(psycopg.errors.LockNotAvailable):
                    return await self._run(GO_BACK)

    async def _run(self, statement: LiteralString) -> None:
        await self._connection.execute(sql.SQL(statement).format(schema=sql.Literal(self._schema)))


@asynccontextmanager
async def lossy(url: str, schema: str) -> AsyncIterator[Lossy]:
    """Makes the schema of a test forgetful within a block."""
    async with await Connection.connect(url, autocommit=True, application_name="lossy") as connection:
        try:
            yield Lossy(connection, schema)
        finally:
            name = sql.Identifier(f"{schema}_disk")
            await connection.execute(sql.SQL("drop schema if exists {} cascade").format(name))


async def until_available(mp: Milepost) -> None:
    """Waits until the pool has connections again."""
    async with asyncio.timeout(60):
        while True:
            try:
                await mp.log.database.execute("select 1", {})
            except Unavailable:
                await asyncio.sleep(0.01)
            else:
                return
