"""Logs and raw tables to measure on: made, filled in SQL, dropped."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import msgspec
import psycopg
from psycopg import sql

from benchmarks.messages import CATEGORIES, STREAMS, TYPE, data, properties
from milepost import Milepost

Index = Literal["btree", "brin", "none"]
"""How a raw table is indexed over categories; all its other indexes are the log's."""

_FILL_STREAMS = """
insert into {schema}.streams ({columns})
select {values}
from (
    select 'c' || n %% {categories} || '-' || n as name, 'c' || n %% {categories} as category
    from generate_series(0, %(streams)s - 1) n
) named
"""
_STREAM_VALUES = {
    "name": "named.name",
    "category": "named.category",
    "bucket": "{schema}.bucket(named.name)",
    "category_hash": "{schema}.category_hash(named.category)",
}
_FILL_MESSAGES = """
insert into {schema}.messages
    (stream_id, version, category_hash, bucket, size, id, type, data, properties, metadata)
select s.stream_id, v, {schema}.category_hash(s.category), s.bucket, 200, gen_random_uuid(),
       %(type)s, %(data)s::jsonb, %(properties)s::jsonb || jsonb_build_object('customer', s.stream_id %% 1000),
       '{{}}'
from generate_series(%(above)s + 1, %(above)s + %(versions)s) v, {schema}.streams s
order by v, s.stream_id
"""
_TABLES = "select tablename from pg_tables where schemaname = %s"
_LAST_VERSION = "select coalesce(max(version), 0) from {schema}.messages"
_RAW_TABLE = """
create table {schema}.{table} (like {schema}.messages including all);
alter table {schema}.{table} alter id set default {schema}.new_id();
"""
_CATEGORY_INDEX = """
select c.relname from pg_index i join pg_class c on c.oid = i.indexrelid
where i.indrelid = to_regclass(%(table)s) and pg_get_indexdef(i.indexrelid) like '%%btree (category_hash%%'
"""
_SAME_ROWS = """
insert into {schema}.{table}
    (stream_id, version, category_hash, bucket, size, id, time, type, data, properties, metadata)
select stream_id, version, category_hash, bucket, size, id, time, type, data, properties, metadata
from {schema}.messages order by "position"
"""
_BRIN = """
create index on {schema}.{table} using brin (category_hash, "position") with (autosummarize = on);
"""


@dataclass(frozen=True)
class Log:
    """A log in a schema of its own."""

    url: str
    schema: str
    streams: int

    def name(self, table: str) -> sql.Composed:
        """A table of the log's schema, for a statement."""
        return sql.SQL("{}.{}").format(sql.Identifier(self.schema), sql.Identifier(table))

    def grow(self, versions: int) -> None:
        """So many more messages in each stream, in one transaction."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            _fill_messages(connection, self.schema, versions)

    def raw_table(self, table: str, index: Index = "btree", *, filled: bool = False) -> str:
        """A table beside the log with the same columns, checks and indexes, and, if wanted, the same rows."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(self._composed(_RAW_TABLE, table))
            if index != "btree":
                self._drop_category_index(connection, table)
            if index == "brin":
                connection.execute(self._composed(_BRIN, table))
            if filled:
                connection.execute(self._composed(_SAME_ROWS, table))
                _settle(connection, self._composed("{schema}.{table}", table))
        return table

    def _drop_category_index(self, connection: psycopg.Connection, table: str) -> None:
        full_name = self.name(table).as_string(connection)
        for (index,) in connection.execute(_CATEGORY_INDEX, {"table": full_name}).fetchall():
            connection.execute(sql.SQL("drop index {}").format(self.name(index)))

    def _composed(self, text: str, table: str) -> sql.Composed:
        return _composed(text, schema=self.schema, table=table)


@contextmanager
def fresh_log(url: str, name: str, *, streams: int = STREAMS, versions: int = 1) -> Iterator[Log]:
    """A log in which each stream has so many messages; dropped at the end."""
    schema = f"milepost_bench_{name}"
    with psycopg.connect(url, autocommit=True) as connection:
        drop = _composed("drop schema if exists {schema} cascade", schema=schema)
        connection.execute(drop)
        asyncio.run(_migrate(url, schema))
        connection.execute(_fill_streams(connection, schema), {"streams": streams})
        _fill_messages(connection, schema, versions)
        for table in ("streams", "messages"):
            _settle(connection, _composed("{schema}.{table}", schema=schema, table=table))
        try:
            yield Log(url, schema, streams)
        finally:
            connection.execute(drop)


@contextmanager
def empty_log(url: str, name: str, *, analyzed: bool) -> Iterator[Log]:
    """A log without messages, of which nobody gathers statistics unless it is done now; dropped at the end."""
    schema = f"milepost_bench_{name}"
    with psycopg.connect(url, autocommit=True) as connection:
        drop = _composed("drop schema if exists {schema} cascade", schema=schema)
        connection.execute(drop)
        asyncio.run(_migrate(url, schema))
        for (table,) in connection.execute(_TABLES, [schema]).fetchall():
            off = "alter table {schema}.{table} set (autovacuum_enabled = off)"
            connection.execute(_composed(off, schema=schema, table=table))
            if analyzed:
                connection.execute(_composed("analyze {schema}.{table}", schema=schema, table=table))
        try:
            yield Log(url, schema, STREAMS)
        finally:
            connection.execute(drop)


async def _migrate(url: str, schema: str) -> None:
    async with Milepost(url, schema=schema):
        pass


def _fill_streams(connection: psycopg.Connection, schema: str) -> sql.Composed:
    # The function that opens a stream would take minutes for a million. What it writes is known by column.
    empty = connection.execute(_composed("select * from {schema}.streams", schema=schema)).description or []
    columns = [column.name for column in empty if column.name in _STREAM_VALUES]
    return sql.SQL(_FILL_STREAMS).format(
        schema=sql.Identifier(schema),
        categories=sql.Literal(CATEGORIES),
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        values=sql.SQL(", ").join(_composed(_STREAM_VALUES[column], schema=schema) for column in columns),
    )


def _fill_messages(connection: psycopg.Connection, schema: str, versions: int) -> None:
    last = connection.execute(_composed(_LAST_VERSION, schema=schema)).fetchone()
    content = {
        "type": TYPE,
        "data": msgspec.json.encode(data(1)).decode(),
        "properties": msgspec.json.encode(properties(1)).decode(),
        "above": last[0] if last else 0,
        "versions": versions,
    }
    connection.execute(_composed(_FILL_MESSAGES, schema=schema), content)


def _settle(connection: psycopg.Connection, table: sql.Composed) -> None:
    # What autovacuum would do at some moment of its own choice, in the middle of a round.
    connection.execute(sql.SQL("vacuum analyze {}").format(table))


def _composed(text: str, **names: str) -> sql.Composed:
    return sql.SQL(text).format(**{part: sql.Identifier(name) for part, name in names.items()})
