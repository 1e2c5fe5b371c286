"""What `milepost doctor` looks at: each check is a function that comes to a finding, or to one a subject."""

import asyncio
from collections.abc import Sequence
from typing import LiteralString

import psycopg

from milepost.cli.checks import filters, log, progress, rights, server, subscriptions, tables, workers
from milepost.cli.checks.finding import Check, Examined, Finding, Refused
from milepost.cli.ending import explain

__all__ = ["Examined", "Finding", "examine"]

PATIENCE = 20.0
"""Seconds that one check may take."""

CHECKS: tuple[Check, ...] = (
    server.version,
    server.encoding,
    log.schema,
    log.log,
    rights.rights,
    log.horizon,
    progress.progress,
    server.notifications,
    server.pooler,
    server.durability,
    server.transactions,
    server.vacuum,
    server.clock,
    progress.schema_clock,
    workers.workers,
    workers.versions,
    subscriptions.subscriptions,
    filters.filters,
    tables.tables,
    log.size,
)
"""In the order in which a person would ask."""
# Asked of the catalog, which everybody may read.
_HAS_LOG: LiteralString = """
    select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
                   where n.nspname = %(schema)s and c.relname = 'messages')
"""
NEED_LOG = frozenset({log.log, rights.rights, log.horizon, log.size})
NEED_PROGRESS = frozenset(
    {
        progress.progress,
        progress.schema_clock,
        workers.workers,
        workers.versions,
        subscriptions.subscriptions,
        filters.filters,
        tables.tables,
    }
)
"""What relies on the newest schema, and on the database of progress."""


async def examine(examined: Examined, unreachable: Sequence[Finding] = ()) -> list[Finding]:
    """Every check that makes sense here; a server that is no primary can answer the first only.

    `unreachable` says so if the database of progress is.
    """
    findings = await _outcome(server.server, examined)
    if findings[0].verdict == "problem":
        return findings
    findings += unreachable
    has_log = await examined.value(_HAS_LOG, {"schema": examined.schema})
    for check in CHECKS:
        if (has_log or check not in NEED_LOG) and _makes_sense(check, findings):
            findings += await _outcome(check, examined)
    return findings


def _makes_sense(check: Check, findings: list[Finding]) -> bool:
    """Whether what a check needs has been found to be well, and this user may look at it."""
    wrong = {finding.check for finding in findings if finding.verdict == "problem" or isinstance(finding, Refused)}
    return check not in NEED_PROGRESS or wrong.isdisjoint({"schema", "progress"})


async def _outcome(check: Check, examined: Examined) -> list[Finding]:
    """A check that fails says so, and the others go on."""
    try:
        async with asyncio.timeout(PATIENCE):
            found = await check(examined)
            return found if isinstance(found, list) else [found]
    except psycopg.errors.InsufficientPrivilege as error:
        if check is log.schema:
            return [Finding(check.__name__, "problem", explain(error))]
        words = f"not looked at, this user may not: {error.diag.message_primary}; run the doctor as an operator"
        return [Refused(check.__name__, "warning", words)]
    except psycopg.Error as error:
        if examined.connection.closed:
            raise
        return [Finding(check.__name__, "problem", explain(error))]
    except TimeoutError:
        why = f"no answer within {PATIENCE:.0f} s: look at the server's load and locks"
        return [Finding(check.__name__, "problem", why)]
