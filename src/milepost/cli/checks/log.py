"""Checks of the log: its schema, what it relies on, and who keeps its followers waiting."""

import asyncio

from milepost.cli.checks.finding import Examined, Finding, Verdict
from milepost.cli.checks.rights import SEES_OTHERS
from milepost.errors import SchemaMismatch
from milepost.log import schema as log_schema
from milepost.log.horizon import NAME_AFTER, Holder
from milepost.log.statements import Statements, in_schema

HELD_TOO_LONG = 60.0
"""Seconds after which holding the horizon is a problem and no longer a warning."""


async def schema(examined: Examined) -> Finding:
    """The schema fits this program."""
    found = await log_schema.status(examined.connection, examined.schema)
    try:
        found.check(examined.schema)
    except SchemaMismatch as mismatch:
        return Finding("schema", "problem", str(mismatch))
    return Finding("schema", "ok", f"{examined.schema!r} is at {found.number}")


async def log(examined: Examined) -> Finding:
    """What the horizon relies on."""
    found = await log_schema.problems(examined.connection, examined.schema)
    if found:
        return Finding("log", "problem", "; ".join(found))
    return Finding("log", "ok", "positions are drawn one by one inside the INSERT")


async def horizon(examined: Examined) -> Finding:
    """Who keeps followers waiting."""
    holders = await _holders(examined)
    lasting = [holder for holder in holders if holder.age is not None and holder.age > NAME_AFTER]
    hidden = await _still_there(examined, [holder for holder in holders if holder.age is None])
    if not lasting and not hidden:
        nobody = f"followers have waited for no transaction longer than {NAME_AFTER:.0f} s"
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
    verdict: Verdict = "problem" if any((holder.age or 0) > HELD_TOO_LONG for holder in lasting) else "warning"
    return Finding("horizon", verdict, f"followers wait for what was appended by {'; '.join(named)}")


async def _holders(examined: Examined) -> list[Holder]:
    return [Holder(*row) for row in await examined.rows(Statements(examined.schema).get("holders"))]


async def _still_there(examined: Examined, hidden: list[Holder]) -> list[Holder]:
    """Those whose age this user may not see and who are there a while later, too."""
    if not hidden:
        return []
    await asyncio.sleep(NAME_AFTER)
    transactions = {holder.transaction for holder in hidden}
    return [holder for holder in await _holders(examined) if holder.transaction in transactions]


def _ended_by(holder: Holder) -> str:
    return f"commit prepared or {holder.ended_by}" if holder.pid is None else holder.ended_by


async def size(examined: Examined) -> Finding:
    """How large the log is."""
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
    tables = [f"about {count:,} {name} in {pretty}" for name, count, pretty in await examined.rows(statement)]
    return Finding("size", "ok", ", ".join(tables))
