"""Schemas for tests: nothing of one test is left for the next, and dropping hides nothing."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from milepost.postgres import schema as log_schema
from schemas import SchemaPool, drop_schema


def exists(url: str, name: str) -> bool:
    with psycopg.connect(url) as connection:
        found = connection.execute("select count(*) from pg_namespace where nspname = %s", [name]).fetchone()
    return found == (1,)


@pytest.fixture
def made(database_url: str, unused_schema: str) -> str:
    """A schema that is there."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"create schema {unused_schema}".encode())
    return unused_schema


@pytest.fixture
def pool(database_url: str, schema_pools: dict[str, SchemaPool]) -> SchemaPool:
    """The pool that other tests use, too."""
    return schema_pools.setdefault(database_url, SchemaPool(database_url))


Contents = dict[str, object]


CATALOG = """
select 'function', replace(prosrc, %(name)s, '') from pg_proc where pronamespace = %(name)s::regnamespace
union all
select 'relation', concat_ws(' ', relname, relkind, relacl) from pg_class
where relnamespace = %(name)s::regnamespace
union all
select 'column', concat_ws(' ', relname, attname, attidentity)
from pg_attribute join pg_class c on c.oid = attrelid
where relnamespace = %(name)s::regnamespace and attnum > 0
union all
select 'constraint', conname from pg_constraint where connamespace = %(name)s::regnamespace
union all
select 'statistics', count(*)::text from pg_statistic join pg_class c on c.oid = starelid
where relnamespace = %(name)s::regnamespace
union all
select 'rights', nspacl::text from pg_namespace where nspname = %(name)s
union all
select 'sequence', concat_ws(' ', sequencename, last_value, cache_size)
from pg_sequences where schemaname = %(name)s
order by 1, 2
"""


def contents(url: str, name: str) -> Contents:
    """Everything in a schema but what differs between new ones: names, times, the identity of the log."""
    with psycopg.connect(url) as connection:
        found: Contents = {"catalog": connection.execute(CATALOG, {"name": name}).fetchall()}
        tables = "select relname from pg_class where relnamespace = %s::regnamespace and relkind = 'r'"
        for (table,) in connection.execute(tables, [name]).fetchall():
            statement = f"select to_jsonb(t) - '{{applied,log}}'::text[] from {name}.{table} t"
            found[table] = sorted(map(repr, connection.execute(statement.encode()).fetchall()))
    return found


LEFT_BEHIND = {
    "messages and streams": "select {0}.append('a-1', 't', '1')",
    "many messages": "select {0}.append('a-1', 't', to_jsonb(repeat('x', 2000))) from generate_series(1, 300)",
    "sequences": "select nextval('{0}.epochs') from generate_series(1, 5)",
    "marks of sleepers": "insert into {0}.sleeps values (now() + interval '1 hour')",
    "a life of the server": "insert into {0}.server_life values (true, gen_random_uuid(), 7)",
    "a horizon": "update {0}.horizon set position = 7",
    "subscriptions": "insert into {0}.subscriptions (\"group\", name, lanes) values ('g', 's', 1)",
    "deliveries, which a trigger counts": "insert into {0}.deliveries (subscription, position, lane, attempts,"
    " total, size, revision, since, state) values (1, 1, 0, 1, 1, 1, 1, now(), 'parked')",
    "a token": "insert into {0}.tokens (name, hash, roles) values ('n', 'x', array['admin'])",
    "a clock that was moved": "create or replace function {0}.clock() returns timestamptz language sql volatile"
    " parallel safe as $$ select clock_timestamp() + interval '1 hour' $$",
    "a function": "create function {0}.own() returns int language sql as 'select 1'",
    "a table": "create table {0}.effects (n int)",
    "a column": "alter table {0}.tokens add n int",
    "a sequence that draws ahead": "alter sequence {0}.messages_position_seq cache 10",
    "a column without its identity": "alter table {0}.messages alter position drop identity",
    "a missing index": "drop index {0}.messages_category",
    "a missing constraint": "alter table {0}.messages drop constraint messages_id",
    "a newer migration": "insert into {0}.migrations values (99, 'future', 1, '9.9')",
    "a missing migration": "delete from {0}.migrations",
    "rights": "grant usage on schema {0} to public",
    "rights on a table": "grant select on {0}.messages to public",
    "statistics": "select {0}.append('a-1', 't', '1'); analyze {0}.messages",
}


@pytest.mark.shard("variants", fast=["messages and streams", "a clock that was moved", "a newer migration"])
@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_nothing_of_one_test_is_left_for_the_next(pool: SchemaPool, what: str) -> None:
    with pool.schema() as name:
        fresh = contents(pool.url, name)
        with psycopg.connect(pool.url, autocommit=True) as connection:
            for statement in LEFT_BEHIND[what].split("; "):
                connection.execute(statement.format(name).encode())
        assert contents(pool.url, name) != fresh
    with pool.schema() as next_name:
        assert contents(pool.url, next_name) == fresh


def test_a_schema_is_used_again(pool: SchemaPool) -> None:
    names = []
    for _ in range(2):
        with pool.schema() as name:
            names.append(name)
    assert names[0] == names[1]


def test_a_connection_that_a_test_left_behind_is_ended_with_what_it_did(pool: SchemaPool) -> None:
    with pool.schema() as name:
        left = psycopg.connect(pool.url)
        left.execute(f"select {name}.append('a-1', 't', '1')".encode())
    with closing(left), pytest.raises(psycopg.OperationalError):
        left.execute("select 1")
    assert name in pool.free


def test_each_schema_is_a_log_of_its_own(pool: SchemaPool) -> None:
    identities = set()
    for _ in range(2):
        with pool.schema() as name, psycopg.connect(pool.url) as connection:
            identities.add(connection.execute(f"select log from {name}.identity".encode()).fetchone())
    assert len(identities) == 2


def test_an_emptied_schema_holds_what_migrations_write(pool: SchemaPool) -> None:
    with pool.schema():
        pass
    with psycopg.connect(pool.url, autocommit=True) as connection:
        connection.execute(log_schema.printable_sql("new_one").encode())
    try:
        fresh = contents(pool.url, "new_one")
    finally:
        drop_schema(pool.url, "new_one")
    with pool.schema() as used:
        assert contents(pool.url, used) == fresh


@pytest.fixture
def doomed(made: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A schema that is there; the server ends the next connection as soon as it is made."""
    connect = psycopg.connect

    def lost(url: str, **options: Any) -> Any:
        monkeypatch.setattr(psycopg, "connect", connect)
        connection = connect(url, **options)
        with connect(url, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s, 20000)", [connection.info.backend_pid])
        return connection

    monkeypatch.setattr(psycopg, "connect", lost)
    return made


@contextmanager
def reader() -> Iterator[None]:
    """A thread that has the name of one that reads for Milepost."""
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, name="milepost-reader-of-a-test", daemon=True)
    thread.start()
    try:
        yield
    finally:
        may_end.set()
        thread.join()


def test_a_lost_connection_is_told_and_another_does_it(database_url: str, doomed: str) -> None:
    with pytest.warns(UserWarning, match="a connection was lost when schema"):
        drop_schema(database_url, doomed)
    assert not exists(database_url, doomed)


def test_a_reader_that_is_still_there_is_named(database_url: str, doomed: str) -> None:
    with reader(), pytest.warns(UserWarning, match="beside .*milepost-reader-of-a-test"):
        drop_schema(database_url, doomed)


def test_what_the_server_refuses_is_raised(database_url: str, made: str) -> None:
    url = make_conninfo(database_url, options="-c default_transaction_read_only=on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        drop_schema(url, made)
