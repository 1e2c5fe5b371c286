"""Checks of the log: its schema, its horizon, its size, and tables that are not cleaned up."""

import asyncio

from milepost.cli.checks.finding import ExaminedDatabase, Finding, Verdict
from milepost.cli.checks.server import SEES_OTHERS
from milepost.errors import SchemaMismatch
from milepost.log.protocol import HOLDER_NAMED_SECONDS, HorizonHolder
from milepost.postgres import schema as log_schema
from milepost.postgres.statements import Statements, in_schema

MANY_ROWS = 10_000
"""Dead rows, or rows of cursors, up to which nothing is said."""
MAX_ROWS_PER_LANE = 1000
"""Rows of cursors for each lane. Some hundred are usual, and one for each time it was taken in the last day."""
LARGE_TABLE_BYTES = 64 * 2**20
"""Bytes up to which the size of a table does not matter."""
MAX_BYTES_PER_ROW = 65_536
"""Bytes for each row of a large table that only empty space can explain."""


async def tables(examined: ExaminedDatabase) -> list[Finding]:
    """Check for tables that are mostly dead rows or empty space, and for cursors that are not removed."""
    found = []
    for database in examined.databases:
        for name, live, dead, size, lanes in await database.ask("tables"):
            words = _judge_table(name, f'"{database.schema}".{name}', live, dead, size, lanes)
            if words is not None:
                found.append(Finding("tables", "warning", f"{name} {words}", name))
    return found or [Finding("tables", "ok", "what is no longer needed is removed")]


def _judge_table(name: str, qualified: str, live: int, dead: int, size: int, lanes: int) -> str | None:
    if dead > MANY_ROWS and dead > live:
        return (
            f"has {dead:,} dead rows and {live:,} live ones: end the transactions that keep VACUUM from its work, "
            f"see there, then run `vacuum {qualified}`"
        )
    if name == "cursors" and live > MANY_ROWS and live > MAX_ROWS_PER_LANE * lanes:
        return (
            f"has {live:,} rows for {lanes:,} lanes: old revisions are not removed; see whether workers run, and "
            "whether something holds locks on it"
        )
    if size > LARGE_TABLE_BYTES and size > MAX_BYTES_PER_ROW * max(1, live):
        return (
            f"takes {size / 2**20:,.0f} MiB for {live:,} rows: it had more once; `vacuum full {qualified}` gives "
            "the space back, and stops everything meanwhile"
        )
    return None


HELD_TOO_LONG_SECONDS = 60.0
"""Seconds after which holding the horizon is a problem and no longer a warning."""


async def schema(examined: ExaminedDatabase) -> Finding:
    """Check that the schema fits this program."""
    found = await log_schema.status(examined.connection, examined.schema)
    try:
        found.check(examined.schema)
    except SchemaMismatch as mismatch:
        return Finding("schema", "problem", str(mismatch))
    return Finding("schema", "ok", f"{examined.schema!r} is at {found.number}")


async def log(examined: ExaminedDatabase) -> Finding:
    """Check that positions are drawn as the horizon relies on."""
    found = await log_schema.problems(examined.connection, examined.schema)
    if found:
        return Finding("log", "problem", "; ".join(found))
    return Finding("log", "ok", "positions are drawn one by one inside the INSERT")


async def horizon(examined: ExaminedDatabase) -> Finding:
    """Check for transactions that keep followers waiting."""
    holders = await _holders(examined)
    lasting = [holder for holder in holders if holder.age is not None and holder.age > HOLDER_NAMED_SECONDS]
    hidden = await _still_there(examined, [holder for holder in holders if holder.age is None])
    if not lasting and not hidden:
        nobody = f"followers have waited for no transaction longer than {HOLDER_NAMED_SECONDS:.0f} s"
        if await examined.value(SEES_OTHERS):
            return Finding("horizon", "ok", nobody)
        return Finding(
            "horizon",
            "warning",
            f"{nobody}. If they do, this user does not see since when, or what for: grant it pg_read_all_stats",
        )
    named = [f"{holder}; end it with {_ended_by(holder)}" for holder in lasting]
    named += [
        f"pid {holder.pid} of another user; grant this one pg_read_all_stats to see more" for holder in hidden
    ]
    verdict: Verdict = (
        "problem" if any((holder.age or 0) > HELD_TOO_LONG_SECONDS for holder in lasting) else "warning"
    )
    return Finding("horizon", verdict, f"followers wait for what was appended by {'; '.join(named)}")


async def _holders(examined: ExaminedDatabase) -> list[HorizonHolder]:
    return [
        HorizonHolder(*row)
        for row in await examined.rows(Statements(examined.schema, "milepost.log.postgres").get("holders"))
    ]


async def _still_there(examined: ExaminedDatabase, hidden: list[HorizonHolder]) -> list[HorizonHolder]:
    """Return the holders of unknown age that are still there a moment later."""
    if not hidden:
        return []
    await asyncio.sleep(HOLDER_NAMED_SECONDS)
    transactions = {holder.transaction for holder in hidden}
    return [holder for holder in await _holders(examined) if holder.transaction in transactions]


def _ended_by(holder: HorizonHolder) -> str:
    return f"commit prepared or {holder.ended_by}" if holder.pid is None else holder.ended_by


async def size(examined: ExaminedDatabase) -> Finding:
    """Report the size of the log."""
    statement = in_schema(
        """
        select c.relname,
               -- Below zero: nobody has looked at it yet. What was counted since it was made is all there is then.
               (case when c.reltuples < 0 then pg_stat_get_live_tuples(c.oid) else c.reltuples end)::bigint,
               pg_size_pretty(pg_total_relation_size(c.oid))
        from pg_class c
        where c.oid in (':"schema".messages'::regclass, ':"schema".streams'::regclass)
        order by c.relname
        """,
        examined.schema,
    )
    described = [f"about {count:,} {name} in {pretty}" for name, count, pretty in await examined.rows(statement)]
    return Finding("size", "ok", ", ".join(described))
