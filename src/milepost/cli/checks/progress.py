"""Checks of the database of progress: the log that it follows, and its clock."""

from datetime import timedelta
from typing import LiteralString
from uuid import UUID

from milepost.cli.checks.finding import ExaminedDatabase, Finding
from milepost.cli.checks.server import MAX_CLOCK_DIFFERENCE_SECONDS
from milepost.errors import SchemaMismatch
from milepost.postgres import schema as log_schema
from milepost.postgres.statements import Statements, in_schema
from milepost.progress.postgres.log_guard import RememberedLog, remembered_messages

CLOCK: LiteralString = """create or replace function :"schema".clock() returns timestamptz
language sql volatile parallel safe as $$ select clock_timestamp() $$"""
"""The SQL that puts the schema's clock back."""


async def progress(examined: ExaminedDatabase) -> Finding:
    """Check that progress follows this log."""
    kept = examined.progress
    if examined.elsewhere is not None and (unfit := await _unfit(examined.elsewhere)):
        return Finding("progress", "problem", f"{_where(kept)}: {unfit}")
    if against := await _contradiction(examined):
        return Finding("progress", "problem", f"{_where(kept)}: {against}")
    if examined.elsewhere is None:
        return Finding("progress", "ok", "is kept with the log")
    difference = await _clock_difference(examined, kept)
    if abs(difference) > MAX_CLOCK_DIFFERENCE_SECONDS:
        return Finding(
            "progress",
            "warning",
            f"{_where(kept)}: its clock differs from the log's by {abs(difference):,.1f} s: set both by NTP, or "
            "ages and starts at a time are wrong by as much",
        )
    return Finding("progress", "ok", f"{_where(kept)}: follows this log")


async def schema_clock(examined: ExaminedDatabase) -> list[Finding]:
    """Check that no test has left the schema's clock moved."""
    found = []
    for database in examined.databases:
        [[moved]] = await database.ask("schema_clock")
        if abs(moved) > MAX_CLOCK_DIFFERENCE_SECONDS:
            found.append(Finding("schema_clock", "problem", _moved(database.schema, moved)))
    return found or [Finding("schema_clock", "ok", "is the server's")]


def _moved(schema: str, seconds: float) -> str:
    ahead = "ahead of" if seconds > 0 else "behind"
    by = timedelta(seconds=round(abs(seconds)))
    put_back = " ".join(in_schema(CLOCK, schema).split())
    return (
        f"schema {schema!r} is {by} {ahead} its server: a test moved its clock; leases, retries and time-outs "
        f"go by it. Put it back: {put_back}"
    )


def _where(kept: ExaminedDatabase) -> str:
    info = kept.connection.info
    return f"database {info.dbname} of {info.host}:{info.port}"


async def _unfit(kept: ExaminedDatabase) -> str | None:
    """Return why a second database cannot keep progress; None if it can."""
    if await kept.value("select pg_is_in_recovery()"):
        return "a standby; give the address of the primary"
    try:
        (await log_schema.status(kept.connection, kept.schema)).check(kept.schema)
    except SchemaMismatch as mismatch:
        return f"{mismatch}, with its --url"
    return None


async def _contradiction(examined: ExaminedDatabase) -> str | None:
    """Return why this is not, or no longer, the log that progress follows; None if it is."""
    kept = examined.progress
    rows = await kept.rows(Statements(kept.schema, "milepost.progress.postgres").get("followed"))
    if not rows:
        return None
    known = [RememberedLog(*row) for row in rows]
    log: UUID = await examined.value(Statements(examined.schema, "milepost.log.postgres").get("identity"))
    if known[0].log != log:
        return (
            f"schema {kept.schema!r} there keeps the progress of another log than this one: give --url of that "
            "log, or MILEPOST_PROGRESS of this one"
        )
    statement = Statements(examined.schema, "milepost.log.postgres").get("replaced")
    [[drawn, replaced]] = await examined.rows(statement, remembered_messages(known))
    if drawn < known[0].horizon or replaced is not None:
        return (
            f"the log went back: progress followed it to position {known[0].horizon:,}, and it is at {drawn:,}, "
            "or has other messages there. Restore a newer log, or progress as it was at the time of this one, or "
            "take it back: milepost subscriptions rewind"
        )
    return None


async def _clock_difference(examined: ExaminedDatabase, kept: ExaminedDatabase) -> float:
    """Return the seconds by which the clocks of two servers differ, at least."""
    before = await examined.value("select clock_timestamp()")
    theirs = await kept.value("select clock_timestamp()")
    after = await examined.value("select clock_timestamp()")
    if before <= theirs <= after:
        return 0.0
    nearest = before if theirs < before else after
    return float((theirs - nearest).total_seconds())
