"""Checks of the server, and of the rights of the user that the doctor runs as."""

from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import LiteralString
from uuid import uuid4

import psycopg
from psycopg import sql

from milepost.cli.checks.finding import ExaminedDatabase, Finding, Verdict
from milepost.log.postgres.feed import UNNOTIFIED_POLL_SECONDS
from milepost.log.postgres.wakeups import PROBE_TIMEOUT_SECONDS
from milepost.postgres.roles import APPENDER, OPERATOR, READER, WORKER, DatabaseRight, DatabaseRole

MAX_NAMED_RIGHTS = 6
"""Missing rights that are named; of the others it is said how many they are."""
SEES_OTHERS: LiteralString = "select pg_has_role('pg_read_all_stats', 'usage')"
"""True for a user who may see the statements of others, and their start."""

_ROLES = (OPERATOR, WORKER, READER, APPENDER)
# Half a worker starts its subscriptions, and they fail. Half of another may be meant.
_URGENT = (WORKER, READER, APPENDER, OPERATOR)


async def rights(examined: ExaminedDatabase) -> list[Finding]:
    """Check which of the roles of `milepost schema roles` this user can work as."""
    if examined.elsewhere is None:
        return [await _judge_rights(examined, _ROLES, "this user")]
    # Of the log's database a program needs to read and append only, and a worker is one where progress is.
    return [
        await _judge_rights(examined, (READER, APPENDER), "this user, in the log's database,"),
        await _judge_rights(examined.elsewhere, (OPERATOR, WORKER), "this user, in that of progress,"),
    ]


async def _judge_rights(examined: ExaminedDatabase, roles: Sequence[DatabaseRole], who: str) -> Finding:
    held = await _held_rights(examined)
    able: list[DatabaseRole] = []
    for role in roles:
        # An operator need not hear that it can read as well.
        if role.rights <= held and not any(role.rights <= other.rights for other in able):
            able.append(role)
    for role in sorted(roles, key=_URGENT.index):
        if role.own & held and not role.rights <= held:
            return Finding(
                "rights", _verdict_of_role(role), f"{who} {_missing_in_words(examined.schema, role, held)}"
            )
    if able:
        return Finding("rights", "ok", f"{who} may {'; '.join(role.may for role in able)}")
    needed = " or ".join(f"{examined.schema}_{role.name}" for role in reversed(roles))
    words = f"{who} may do nothing here: have the owner run `milepost schema roles`, and grant it {needed}"
    return Finding("rights", "warning", words)


def _verdict_of_role(role: DatabaseRole) -> Verdict:
    return "problem" if role is WORKER else "warning"


def _missing_in_words(schema: str, role: DatabaseRole, held: frozenset[DatabaseRight]) -> str:
    missing = sorted(map(str, role.rights - held))
    named = ", ".join(missing[:MAX_NAMED_RIGHTS])
    more = f" and {len(missing) - MAX_NAMED_RIGHTS} more" if len(missing) > MAX_NAMED_RIGHTS else ""
    return (
        f"has a part of the rights of {role.titled} and lacks {named}{more}: have the owner run what "
        f"`milepost schema roles` prints, and grant it {schema}_{role.name}"
    )


async def _held_rights(examined: ExaminedDatabase) -> frozenset[DatabaseRight]:
    """Return the rights of any role that this user has."""
    every = sorted(OPERATOR.rights, key=str)
    rows = await examined.ask(
        "rights",
        kinds=[right.kind for right in every],
        names=[right.name for right in every],
        privileges=[right.privilege for right in every],
    )
    return frozenset(right for right, (is_held,) in zip(every, rows, strict=True) if is_held)


MIN_POSTGRESQL_VERSION = 15
LONG_TRANSACTION_SECONDS = 300.0
"""Seconds after which a transaction keeps VACUUM from its work."""
MAX_CLOCK_DIFFERENCE_SECONDS = 1.0
"""Seconds that the clocks of this machine and the server may differ."""


async def server(examined: ExaminedDatabase) -> Finding:
    """Check that the server is a primary: only a primary can say what is final."""
    info = examined.connection.info
    where = f"{info.host}:{info.port}, database {info.dbname}, user {info.user}"
    if await examined.value("select pg_is_in_recovery()"):
        return Finding("server", "problem", f"{where}: a standby; give the address of the primary")
    if await examined.value("select current_setting('transaction_read_only')::boolean"):
        return Finding(
            "server", "problem", f"{where}: read-only; unset default_transaction_read_only for this user"
        )
    return Finding("server", "ok", f"{where}: a primary")


async def version(examined: ExaminedDatabase) -> Finding:
    """Check that the PostgreSQL is new enough."""
    number = examined.connection.info.server_version // 10_000
    if number < MIN_POSTGRESQL_VERSION:
        return Finding("version", "problem", f"PostgreSQL {number}: {MIN_POSTGRESQL_VERSION} or newer is needed")
    return Finding("version", "ok", f"PostgreSQL {number}")


async def encoding(examined: ExaminedDatabase) -> Finding:
    """Check that the database is encoded in UTF-8, as names and JSON are."""
    found = await examined.value("select current_setting('server_encoding')")
    if found != "UTF8":
        return Finding("encoding", "problem", f"{found}: create the database with encoding UTF8")
    return Finding("encoding", "ok", found)


async def notifications(examined: ExaminedDatabase) -> Finding:
    """Check that a notification would wake a sleeping follower."""
    channel, probe = examined.schema, uuid4().hex
    begun = monotonic()
    async with await psycopg.AsyncConnection.connect(examined.conninfo, autocommit=True) as listener:
        await listener.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        await examined.rows("select pg_notify(%(channel)s, %(probe)s)", {"channel": channel, "probe": probe})
        async for notification in listener.notifies(timeout=PROBE_TIMEOUT_SECONDS):
            if notification.payload == probe:
                return Finding("notifications", "ok", f"arrive ({(monotonic() - begun) * 1000:.0f} ms)")
    shortest, longest = UNNOTIFIED_POLL_SECONDS
    return Finding(
        "notifications",
        "warning",
        f"do not arrive, as behind a pooler in transaction mode: followers look every "
        f"{shortest * 1000:.0f} to {longest * 1000:.0f} ms instead; give followers an address without the pooler",
    )


async def pooler(examined: ExaminedDatabase) -> Finding:
    """Check for a pooler between this program and the server."""
    pid = await examined.value("select pg_backend_pid()")
    if pid != examined.connection.info.backend_pid:
        return Finding(
            "pooler", "warning", "there is one: statements are not prepared, and notifications may not arrive"
        )
    return Finding("pooler", "ok", "none: sessions are the server's own")


async def durability(examined: ExaminedDatabase) -> Finding:
    """Check for settings with which a crash loses data."""
    lost = {
        "synchronous_commit": "a crash of the server can lose the newest appends, which followers may have seen",
        "fsync": "a crash of the machine can destroy the database",
        "full_page_writes": "a crash of the machine can destroy the database",
    }
    off = [
        f"{name} is off: {what}"
        for name, what in lost.items()
        if await examined.value("select current_setting(%(name)s)", {"name": name}) == "off"
    ]
    if off:
        return Finding("durability", "warning", "; ".join(off))
    return Finding("durability", "ok", "what is committed survives a crash")


async def transactions(examined: ExaminedDatabase) -> Finding:
    """Check for long transactions, which keep VACUUM from removing rows."""
    rows = await examined.rows(
        """
        select 'pid ' || a.pid || coalesce(' (' || nullif(a.application_name, '') || ')', ''),
               extract(epoch from clock_timestamp() - a.xact_start)::float8 as age
        from pg_stat_activity a
        where a.datname = current_database() and a.backend_type = 'client backend'
          and a.xact_start < clock_timestamp() - make_interval(secs => %(long)s)
        union all
        select 'prepared transaction ' || quote_literal(p.gid),
               extract(epoch from clock_timestamp() - p.prepared)::float8
        from pg_prepared_xacts p
        where p.prepared < clock_timestamp() - make_interval(secs => %(long)s)
        order by age desc
        limit 5
        """,
        {"long": LONG_TRANSACTION_SECONDS},
    )
    if rows:
        named = ", ".join(f"{who}, open for {age / 60:,.0f} min" for who, age in rows)
        return Finding("transactions", "warning", f"{named}: VACUUM cannot remove what is newer than they are")
    if not await examined.value(SEES_OTHERS):
        return Finding(
            "transactions",
            "warning",
            f"none of this user's is older than {LONG_TRANSACTION_SECONDS / 60:.0f} min. It does not see how old "
            "those of others are: grant it pg_read_all_stats",
        )
    return Finding("transactions", "ok", f"none is older than {LONG_TRANSACTION_SECONDS / 60:.0f} min")


async def vacuum(examined: ExaminedDatabase) -> Finding:
    """Check that autovacuum is on."""
    if await examined.value("select current_setting('autovacuum')") == "off":
        return Finding("vacuum", "warning", "autovacuum is off: tables grow and plans get worse; turn it on")
    return Finding("vacuum", "ok", "autovacuum is on")


async def clock(examined: ExaminedDatabase) -> Finding:
    """Check that the clocks of this machine and of the server agree."""
    before = datetime.now(UTC)
    theirs = await examined.value("select clock_timestamp()")
    after = datetime.now(UTC)
    difference = (theirs - (before + (after - before) / 2)).total_seconds()
    if abs(difference) > MAX_CLOCK_DIFFERENCE_SECONDS + (after - before).total_seconds():
        ahead = "ahead of" if difference > 0 else "behind"
        return Finding(
            "clock",
            "warning",
            f"the server's is {abs(difference):,.1f} s {ahead} this machine's: set both by NTP. "
            "Nothing is lost by it, but times you give and times you see mean the server's",
        )
    return Finding("clock", "ok", f"within {MAX_CLOCK_DIFFERENCE_SECONDS:.0f} s of the server's")
