"""Checks that any PostgreSQL can answer."""

from datetime import UTC, datetime
from time import monotonic
from uuid import uuid4

import psycopg
from psycopg import sql

from milepost.cli.checks.finding import Examined, Finding
from milepost.cli.checks.rights import SEES_OTHERS
from milepost.log.feed import POLL_WITHOUT_LISTENING
from milepost.log.wakeups import PROBE_TIMEOUT

OLDEST_POSTGRESQL = 15
LONG_TRANSACTION = 300.0
"""Seconds after which a transaction keeps VACUUM from its work."""
CLOCK_DIFFERENCE = 1.0
"""Seconds that the clocks of this machine and the server may differ."""


async def server(examined: Examined) -> Finding:
    """Only a primary can say what is final."""
    info = examined.connection.info
    where = f"{info.host}:{info.port}, database {info.dbname}, user {info.user}"
    if await examined.value("select pg_is_in_recovery()"):
        return Finding("server", "problem", f"{where}: a standby; give the address of the primary")
    if await examined.value("select current_setting('transaction_read_only')::boolean"):
        return Finding(
            "server", "problem", f"{where}: read-only; unset default_transaction_read_only for this user"
        )
    return Finding("server", "ok", f"{where}: a primary")


async def version(examined: Examined) -> Finding:
    """The oldest PostgreSQL that is supported."""
    number = examined.connection.info.server_version // 10_000
    if number < OLDEST_POSTGRESQL:
        return Finding("version", "problem", f"PostgreSQL {number}: {OLDEST_POSTGRESQL} or newer is needed")
    return Finding("version", "ok", f"PostgreSQL {number}")


async def encoding(examined: Examined) -> Finding:
    """Names and JSON are UTF-8."""
    found = await examined.value("select current_setting('server_encoding')")
    if found != "UTF8":
        return Finding("encoding", "problem", f"{found}: create the database with encoding UTF8")
    return Finding("encoding", "ok", found)


async def notifications(examined: Examined) -> Finding:
    """Whether a sleeping follower would be woken."""
    channel, probe = examined.schema, uuid4().hex
    begun = monotonic()
    async with await psycopg.AsyncConnection.connect(examined.conninfo, autocommit=True) as listener:
        await listener.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        await examined.rows("select pg_notify(%(channel)s, %(probe)s)", {"channel": channel, "probe": probe})
        async for notification in listener.notifies(timeout=PROBE_TIMEOUT):
            if notification.payload == probe:
                return Finding("notifications", "ok", f"arrive ({(monotonic() - begun) * 1000:.0f} ms)")
    shortest, longest = POLL_WITHOUT_LISTENING
    return Finding(
        "notifications",
        "warning",
        f"do not arrive, as behind a pooler in transaction mode: followers look every "
        f"{shortest * 1000:.0f} to {longest * 1000:.0f} ms instead; give followers an address without the pooler",
    )


async def pooler(examined: Examined) -> Finding:
    """Whether something stands between this program and the server."""
    pid = await examined.value("select pg_backend_pid()")
    if pid != examined.connection.info.backend_pid:
        return Finding(
            "pooler", "warning", "there is one: statements are not prepared, and notifications may not arrive"
        )
    return Finding("pooler", "ok", "none: sessions are the server's own")


async def durability(examined: Examined) -> Finding:
    """What a crash can take."""
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


async def transactions(examined: Examined) -> Finding:
    """What keeps VACUUM from removing rows."""
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
        {"long": LONG_TRANSACTION},
    )
    if rows:
        named = ", ".join(f"{who}, open for {age / 60:,.0f} min" for who, age in rows)
        return Finding("transactions", "warning", f"{named}: VACUUM cannot remove what is newer than they are")
    if not await examined.value(SEES_OTHERS):
        return Finding(
            "transactions",
            "warning",
            f"none of this user's is older than {LONG_TRANSACTION / 60:.0f} min. It does not see how old those of "
            "others are: grant it pg_read_all_stats",
        )
    return Finding("transactions", "ok", f"none is older than {LONG_TRANSACTION / 60:.0f} min")


async def vacuum(examined: Examined) -> Finding:
    """Whether tables are kept in shape."""
    if await examined.value("select current_setting('autovacuum')") == "off":
        return Finding("vacuum", "warning", "autovacuum is off: tables grow and plans get worse; turn it on")
    return Finding("vacuum", "ok", "autovacuum is on")


async def clock(examined: Examined) -> Finding:
    """Whether times here and there mean the same."""
    before = datetime.now(UTC)
    theirs = await examined.value("select clock_timestamp()")
    after = datetime.now(UTC)
    difference = (theirs - (before + (after - before) / 2)).total_seconds()
    if abs(difference) > CLOCK_DIFFERENCE + (after - before).total_seconds():
        ahead = "ahead of" if difference > 0 else "behind"
        return Finding(
            "clock",
            "warning",
            f"the server's is {abs(difference):,.1f} s {ahead} this machine's: set both by NTP. "
            "Nothing is lost by it, but times you give and times you see mean the server's",
        )
    return Finding("clock", "ok", f"within {CLOCK_DIFFERENCE:.0f} s of the server's")
