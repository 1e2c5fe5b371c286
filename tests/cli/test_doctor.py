"""`milepost doctor`: each check finds what it is for."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cli.program import Outcome, Run
from conftest import absent
from roles import User
from servers import PGBOUNCER, Server, embedded_binaries, pooler_before

LONG = 0.05
"""Seconds after which a transaction is named."""


@pytest.fixture
def log(run: Run) -> None:
    run("append", "a-1", "t", "1").done()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction is long that lasts a moment."""
    monkeypatch.setattr("milepost.cli.checks.log.HOLDER_NAMED_SECONDS", LONG)


def finding(outcome: Outcome, check: str) -> dict[str, Any]:
    (found,) = [found for found in outcome.json["checks"] if found["check"] == check]
    return dict(found)


def test_nothing_is_wrong(run: Run, log: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.cli.checks.server.PROBE_TIMEOUT_SECONDS", 40.0)
    outcome = run("doctor", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    verdicts = {found["check"]: found["verdict"] for found in outcome.json["checks"]}
    # The tests' own server does without fsync and autovacuum.
    assert verdicts.pop("durability") in ("ok", "warning")
    assert verdicts.pop("vacuum") in ("ok", "warning")
    assert set(verdicts.values()) == {"ok"}
    assert {
        "server",
        "version",
        "encoding",
        "schema",
        "log",
        "horizon",
        "notifications",
        "pooler",
        "clock",
        "size",
    } <= set(verdicts)
    printed = run("doctor").out
    assert "notifications" in printed
    assert "\x1b" not in printed


def test_the_size_of_a_log_that_nobody_has_analyzed_yet(
    run: Run, log: None, database_url: str, schema: str
) -> None:
    """A new log is not said to be empty."""
    statement = sql.SQL("select pg_stat_get_live_tuples({}::regclass)")
    with psycopg.connect(database_url, autocommit=True) as connection:
        counted = statement.format(sql.Literal(f'"{schema}".messages'))
        while connection.execute(counted).fetchone() != (1,):
            connection.execute("select pg_sleep(0.05)")
    assert finding(run("doctor", "--json"), "size")["finding"].startswith("about 1 messages in")


def test_a_server_that_is_not_there(run: Run) -> None:
    outcome = run("doctor", "--json", "--url", "postgresql://127.0.0.1:1/x")
    assert (outcome.status, outcome.err) == (1, "")
    assert outcome.json["verdict"] == "problem"
    assert "is the server running" in finding(outcome, "server")["finding"]


@pytest.mark.usefixtures("no_log")
def test_no_log_yet(run: Run) -> None:
    outcome = run("doctor", "--json")
    assert outcome.status == 1
    assert "milepost schema migrate" in finding(outcome, "schema")["finding"]
    assert run("schema", "status", "--json").json["number"] == 0


def test_positions_that_are_drawn_ahead(run: Run, log: None, database_url: str, schema: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        widen = sql.SQL("alter sequence {}.messages_position_seq cache 10")
        connection.execute(widen.format(sql.Identifier(schema)))
    outcome = run("doctor", "--json")
    assert outcome.status == 1
    assert "CACHE 10" in finding(outcome, "log")["finding"]


def test_a_transaction_that_keeps_followers_waiting(run: Run, log: None, database_url: str, schema: str) -> None:
    append = sql.SQL("select {}.append('a-2', 't', '1')").format(sql.Identifier(schema))
    with psycopg.connect(make_conninfo(database_url, application_name="nightly import")) as connection:
        connection.execute(append)
        connection.execute("select pg_sleep(%s)", [2 * LONG])
        found = finding(run("doctor", "--json"), "horizon")
        assert found["verdict"] == "warning"
        assert f"pid {connection.info.backend_pid} (nightly import)" in found["finding"]
        assert f"pg_terminate_backend({connection.info.backend_pid})" in found["finding"]
        connection.rollback()
    assert finding(run("doctor", "--json"), "horizon")["verdict"] == "ok"


@pytest.mark.usefixtures("prepared_transactions")
def test_a_prepared_transaction_that_keeps_followers_waiting(
    run: Run, log: None, database_url: str, schema: str
) -> None:
    append = sql.SQL("select {}.append('a-2', 't', '1', wake => false)").format(sql.Identifier(schema))
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("begin")
        connection.execute(append)
        connection.execute(sql.SQL("prepare transaction {}").format(schema))
        try:
            connection.execute("select pg_sleep(%s)", [2 * LONG])
            found = finding(run("doctor", "--json"), "horizon")
            assert found["verdict"] == "warning"
            assert f"rollback prepared '{schema}'" in found["finding"]
        finally:
            connection.execute(sql.SQL("rollback prepared {}").format(schema))


def test_commits_that_a_crash_can_lose(run: Run, log: None, database_url: str) -> None:
    url = make_conninfo(database_url, options="-c synchronous_commit=off")
    found = finding(run("doctor", "--json", "--url", url), "durability")
    assert found["verdict"] == "warning"
    assert "synchronous_commit" in found["finding"]


@pytest.mark.parametrize(("seconds", "said"), [(3600, "behind"), (-3600, "ahead of")])
def test_clocks_that_differ(run: Run, log: None, monkeypatch: pytest.MonkeyPatch, seconds: int, said: str) -> None:
    class Elsewhere(datetime):
        """The clock of a machine that nobody has set."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=seconds)

    monkeypatch.setattr("milepost.cli.checks.server.datetime", Elsewhere)
    outcome = run("doctor", "--json")
    found = finding(outcome, "clock")
    assert (outcome.status, found["verdict"]) == (0, "warning")
    assert re.search(rf"the server's is 3,[56]\d\d\.\d s {said} this machine's", found["finding"])


OLD_GRANTS = (
    "grant usage on schema {schema} to {user}",
    "grant select, insert on all tables in schema {schema} to {user}",
    "grant update on {schema}.streams, {schema}.horizon to {user}",
    "grant delete on {schema}.sleeps to {user}",
    "grant select on {schema}.messages_position_seq to {user}",
)
"""Enough to declare a subscription, and too little to run it."""


@pytest.fixture
def stranger(database_url: str, schema: str) -> Iterator[str]:
    """A user who has no rights yet."""
    name = f"stranger_{schema}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("create role {} login").format(sql.Identifier(name)))
        yield name
        connection.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(name)))


def test_a_user_who_may_do_nothing(run: Run, log: None, database_url: str, schema: str, stranger: str) -> None:
    outcome = run("doctor", "--json", "--url", make_conninfo(database_url, user=stranger))
    assert (outcome.status, outcome.err) == (1, "")
    found = finding(outcome, "rights")
    assert found["verdict"] == "warning"
    assert f"grant it {schema}_appender or {schema}_reader" in found["finding"]


def test_a_user_whose_subscriptions_fail(
    run: Run, log: None, database_url: str, schema: str, stranger: str
) -> None:
    names = {"schema": sql.Identifier(schema), "user": sql.Identifier(stranger)}
    with psycopg.connect(database_url, autocommit=True) as connection:
        for grant in OLD_GRANTS:
            connection.execute(sql.SQL(grant).format(**names))
    outcome = run("doctor", "--json", "--url", make_conninfo(database_url, user=stranger))
    found = finding(outcome, "rights")
    assert (outcome.status, found["verdict"]) == (1, "problem")
    for words in ("a part of the rights of a worker", "lacks delete on ", "more", f"{schema}_worker"):
        assert words in found["finding"]


def test_a_user_who_may_read_a_little(run: Run, log: None, database_url: str, schema: str, stranger: str) -> None:
    names = {"schema": sql.Identifier(schema), "user": sql.Identifier(stranger)}
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("grant usage on schema {schema} to {user}").format(**names))
        connection.execute(sql.SQL("grant select on all tables in schema {schema} to {user}").format(**names))
    found = finding(run("doctor", "--json", "--url", make_conninfo(database_url, user=stranger)), "rights")
    assert found["verdict"] == "warning"
    assert "lacks execute on life, execute on mark_sleep, select on messages_position_seq: " in found["finding"]


@pytest.mark.shard("variants", fast=["appender-may append", "worker-run subscriptions"])
@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("reader", "may read and follow"),
        ("appender", "may append"),
        ("worker", "run subscriptions"),
        ("operator", "do what a worker may"),
    ],
)
def test_users_as_schema_roles_makes_them(run: Run, log: None, user: User, role: str, may: str) -> None:
    """Nothing is a problem for any of them; what they may not look at is said."""
    outcome = run("doctor", "--json", "--url", user(role))
    assert (outcome.status, outcome.err) == (0, "")
    found = finding(outcome, "rights")
    assert found["verdict"] == "ok"
    assert may in found["finding"]
    refused = {check["check"] for check in outcome.json["checks"] if "not looked at" in check["finding"]}
    assert refused == ({"progress"} if role == "appender" else set())
    for check in ("horizon", "transactions"):
        assert (finding(outcome, check)["verdict"] == "ok") == (role == "operator")
        assert ("pg_read_all_stats" in finding(outcome, check)["finding"]) == (role != "operator")


def test_a_transaction_of_another_user(run: Run, log: None, user: User, database_url: str, schema: str) -> None:
    url = user("worker")
    with psycopg.connect(database_url) as holder:
        holder.execute(sql.SQL("select {}.append('a-2', 't', '1')").format(sql.Identifier(schema)))
        found = finding(run("doctor", "--json", "--url", url), "horizon")
        assert found["verdict"] == "warning"
        assert f"pid {holder.info.backend_pid} of another user" in found["finding"]
        assert "pg_read_all_stats" in found["finding"]
        holder.rollback()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(embedded_binaries()).create()
    yield server
    server.remove()


@pytest.mark.shard("processes")
def test_a_standby(run: Run, server: Server) -> None:
    standby = server.copy()
    try:
        outcome = run("doctor", "--json", "--url", standby.url())
        assert outcome.status == 1
        assert "a standby" in finding(outcome, "server")["finding"]
        run("read", "--url", standby.url()).refused("primary")
    finally:
        standby.remove()


def test_a_pooler(run: Run, server: Server) -> None:
    if not PGBOUNCER.exists():
        absent("pgbouncer")
    with pooler_before(server) as pooler:
        run("schema", "migrate", "--url", pooler.url).done()
        outcome = run("doctor", "--json", "--url", pooler.url)
        assert outcome.status == 0
        assert finding(outcome, "pooler")["verdict"] == "warning"
        assert finding(outcome, "vacuum")["verdict"] == "ok"
        notifications = finding(outcome, "notifications")
        assert notifications["verdict"] == "warning"
        assert "50 to 400 ms" in notifications["finding"]
        run("append", "a-1", "t", "1", "--url", pooler.url).done()
        assert len(run("read", "--json", "--follow", "--limit", "1", "--url", pooler.url).lines) == 1
