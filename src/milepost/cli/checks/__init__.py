"""The checks of `milepost doctor`: each is a function that returns a finding, or one for each subject."""

import asyncio
from collections.abc import Sequence
from typing import LiteralString

import psycopg

from milepost.cli.checks import log, progress, server, subscriptions
from milepost.cli.checks.finding import Check, ExaminedDatabase, Finding, NotPermitted
from milepost.cli.exit_status import describe_error

__all__ = ["ExaminedDatabase", "Finding", "examine"]

CHECK_SECONDS = 20.0
"""Seconds that one check may take."""

CHECKS: tuple[Check, ...] = (
    server.version,
    server.encoding,
    log.schema,
    log.log,
    server.rights,
    log.horizon,
    progress.progress,
    server.notifications,
    server.pooler,
    server.durability,
    server.transactions,
    server.vacuum,
    server.clock,
    progress.schema_clock,
    subscriptions.workers,
    subscriptions.versions,
    subscriptions.subscriptions,
    subscriptions.filters,
    log.tables,
    log.size,
)
"""The checks in the order in which they are run and printed."""
# Asked of the catalog, which everybody may read.
_HAS_LOG: LiteralString = """
    select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
                   where n.nspname = %(schema)s and c.relname = 'messages')
"""
NEED_LOG = frozenset({log.log, server.rights, log.horizon, log.size})
NEED_PROGRESS = frozenset(
    {
        progress.progress,
        progress.schema_clock,
        subscriptions.workers,
        subscriptions.versions,
        subscriptions.subscriptions,
        subscriptions.filters,
        log.tables,
    }
)
"""Checks that need the newest schema, and the database of progress."""


async def examine(examined: ExaminedDatabase, unreachable: Sequence[Finding] = ()) -> list[Finding]:
    """Run every check that applies here. On a server that is no primary only the first does.

    `unreachable` says so if the database of progress is.
    """
    findings = await _run_check(server.server, examined)
    if findings[0].verdict == "problem":
        return findings
    findings += unreachable
    has_log = await examined.value(_HAS_LOG, {"schema": examined.schema})
    for check in CHECKS:
        if (has_log or check not in NEED_LOG) and _is_applicable(check, findings):
            findings += await _run_check(check, examined)
    return findings


def _is_applicable(check: Check, findings: list[Finding]) -> bool:
    """Return True if the findings so far have no problem in what a check needs, and this user may read it."""
    wrong = {
        finding.check for finding in findings if finding.verdict == "problem" or isinstance(finding, NotPermitted)
    }
    return check not in NEED_PROGRESS or wrong.isdisjoint({"schema", "progress"})


async def _run_check(check: Check, examined: ExaminedDatabase) -> list[Finding]:
    """Run one check. A check that fails becomes a finding, and the others go on."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            found = await check(examined)
            return found if isinstance(found, list) else [found]
    except psycopg.errors.InsufficientPrivilege as error:
        if check is log.schema:
            return [Finding(check.__name__, "problem", describe_error(error))]
        words = f"not looked at, this user may not: {error.diag.message_primary}; run the doctor as an operator"
        return [NotPermitted(check.__name__, "warning", words)]
    except psycopg.Error as error:
        if examined.connection.closed:
            raise
        return [Finding(check.__name__, "problem", describe_error(error))]
    except TimeoutError:
        why = f"no answer within {CHECK_SECONDS:.0f} s: look at the server's load and locks"
        return [Finding(check.__name__, "problem", why)]
