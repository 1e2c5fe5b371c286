"""`milepost schema`: migrating, its state, its SQL."""

import subprocess

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cli.program import COMMAND, Run
from milepost.postgres import schema as log_schema
from milepost.postgres.schema import NEWEST_MIGRATION_NUMBER
from schemas import SECOND


@pytest.fixture
def schema(unused_schema: str) -> str:
    """A schema that is not there yet."""
    return unused_schema


def test_migrating_and_its_state(run: Run, schema: str) -> None:
    before = run("schema", "status", "--json").done().json
    assert (before["number"], before["newest"], before["up_to_date"]) == (0, NEWEST_MIGRATION_NUMBER, False)
    assert [migration["number"] for migration in before["pending"]] == list(range(1, NEWEST_MIGRATION_NUMBER + 1))
    assert "missing" in run("schema", "status").done().out

    assert f"is at {NEWEST_MIGRATION_NUMBER} now; added: 001 milepost" in run("schema", "migrate").done().out
    after = run("schema", "status", "--json").done().json
    assert (after["number"], after["up_to_date"], after["pending"]) == (NEWEST_MIGRATION_NUMBER, True, [])
    assert after["applied"][0]["name"] == "milepost"
    assert "missing" not in run("schema", "status").done().out

    assert run("schema", "migrate").done().out == f"schema {schema!r} is at {NEWEST_MIGRATION_NUMBER} already\n"
    assert run("schema", "migrate", "--json").json == {
        "schema": schema,
        "number": NEWEST_MIGRATION_NUMBER,
        "added": [],
    }


@pytest.mark.parametrize(("oldest", "status"), [(NEWEST_MIGRATION_NUMBER, 0), (NEWEST_MIGRATION_NUMBER + 1, 1)])
def test_a_schema_that_asks_for_a_newer_program(
    run: Run, database_url: str, schema: str, oldest: int, status: int
) -> None:
    run("schema", "migrate").done()
    statement = sql.SQL("insert into {}.migrations values (%s, 'future', %s, '9.9')").format(
        sql.Identifier(schema)
    )
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(statement, [NEWEST_MIGRATION_NUMBER + 1, oldest])
    shown, told = run("schema", "status"), run("schema", "status", "--json")
    assert (shown.status, told.status, shown.err, told.err) == (status, status, "", "")
    assert ("This program is too old" in shown.out) == bool(status)
    assert told.json["up_to_date"] == (not status)


@pytest.mark.shard("processes")
def test_many_migrate_at_once(environment: None) -> None:
    programs = [subprocess.Popen([*COMMAND, "schema", "migrate"], stderr=subprocess.PIPE) for _ in range(5)]
    for program in programs:
        _, err = program.communicate(timeout=60)
        assert (program.returncode, err) == (0, b"")


@pytest.fixture
def without_database(monkeypatch: pytest.MonkeyPatch, environment: None) -> None:
    monkeypatch.setenv("MILEPOST_URL", "postgresql://127.0.0.1:1/nowhere")


def test_the_sql_needs_no_database(run: Run, without_database: None, database_url: str, schema: str) -> None:
    text = run("schema", "sql").done().out
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(text.encode())
    status = run("schema", "status", "--json", "--url", database_url).json
    assert (status["schema"], status["up_to_date"]) == (schema, True)
    run("append", "a-1", "t", "1", "--url", database_url).done()


def test_the_sql_after_a_number(run: Run, without_database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run("schema", "sql", "--after", str(NEWEST_MIGRATION_NUMBER)).refused("nothing after")
    monkeypatch.setattr(log_schema, "MIGRATIONS", (*log_schema.MIGRATIONS, SECOND))
    monkeypatch.setattr(log_schema, "NEWEST_MIGRATION_NUMBER", SECOND.number)
    out = run("schema", "sql", "--after", str(NEWEST_MIGRATION_NUMBER)).done().out
    assert "create table" in out
    assert "deliveries" not in out


def test_the_sql_of_users_needs_no_database(run: Run, without_database: None, schema: str) -> None:
    text = run("schema", "roles").done().out
    names = [f"{schema}_{role}" for role in ("reader", "appender", "worker", "operator")]
    assert [name for name in names if f'create role "{name}" nologin' in text] == names
    one = run("schema", "roles", "appender", "--prefix", "shop").done().out
    assert "as an appender." in one
    assert 'create role "shop_appender"' in one
    assert "messages" not in one.replace("append_messages", "")
    run("schema", "roles", "appendr").refused("did you mean appender?")
    run("schema", "roles", "--prefix", "x" * 60).refused("prefix", "1 to 56 bytes")
    assert run("schema", "roles", "appender", "--prefix", "x" * 54).status == 0


@pytest.mark.shard("hostile", fast=['Order "By"  x', "new\\nline; drop schema public; --"])
@pytest.mark.parametrize("prefix", ['Order "By"  x', "new\nline; drop schema public; --", "it's", "{schema} %"])
def test_odd_names_of_users(run: Run, database_url: str, schema: str, prefix: str) -> None:
    run("schema", "migrate").done()
    text = run("schema", "roles", "reader", "operator", "--prefix", prefix).done().out
    may = "select has_schema_privilege(%s::name, oid, 'usage') from pg_namespace where nspname = %s"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(text.encode())
        for role in ("reader", "operator"):
            name = f"{prefix}_{role}"
            assert connection.execute(may, [name, schema]).fetchone() == (True,)
            connection.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(name)))


def test_the_name_of_the_schema_is_quoted(run: Run, database_url: str) -> None:
    try:
        run("append", "a-1", "t", "1", "--schema", "Order_By").done()
        assert len(run("read", "--json", "--schema", "Order_By").lines) == 1
    finally:
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier("Order_By")))


def test_a_database_that_is_not_utf8(run: Run, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("create database ascii_only encoding 'SQL_ASCII' locale 'C' template template0")
        try:
            url = make_conninfo(database_url, dbname="ascii_only")
            run("schema", "migrate", "--url", url).refused("UTF8")
            checks = run("doctor", "--json", "--url", url).json["checks"]
            assert next(check for check in checks if check["check"] == "encoding")["verdict"] == "problem"
        finally:
            connection.execute("drop database ascii_only with (force)")
