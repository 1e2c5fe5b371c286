"""What `milepost doctor` looks at: each check is a function that comes to a finding."""

import asyncio
from typing import LiteralString

import psycopg

from milepost.cli.checks import log, server
from milepost.cli.checks.finding import Check, Examined, Finding
from milepost.cli.ending import explain

__all__ = ["Examined", "Finding", "examine"]

PATIENCE = 20.0
"""Seconds that one check may take."""

CHECKS: tuple[Check, ...] = (
    server.version,
    server.encoding,
    log.schema,
    log.log,
    log.rights,
    log.horizon,
    server.notifications,
    server.pooler,
    server.durability,
    server.transactions,
    server.vacuum,
    server.clock,
    log.size,
)
"""In the order in which a person would ask."""
# Asked of the catalog, which everybody may read.
_HAS_LOG: LiteralString = """
    select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
                   where n.nspname = %(schema)s and c.relname = 'messages')
"""
NEED_LOG = frozenset({log.log, log.rights, log.horizon, log.size})


async def examine(examined: Examined) -> list[Finding]:
    """Every check that makes sense here; a server that is no primary can answer the first only."""
    findings = [await _outcome(server.server, examined)]
    if findings[0].verdict == "problem":
        return findings
    has_log = await examined.value(_HAS_LOG, {"schema": examined.schema})
    return findings + [await _outcome(check, examined) for check in CHECKS if has_log or check not in NEED_LOG]


async def _outcome(check: Check, examined: Examined) -> Finding:
    """A check that fails says so, and the others go on."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await check(examined)
    except psycopg.Error as error:
        if examined.connection.closed:
            raise
        return Finding(check.__name__, "problem", explain(error))
    except TimeoutError:
        why = f"no answer within {PATIENCE:.0f} s: look at the server's load and locks"
        return Finding(check.__name__, "problem", why)
