"""`milepost doctor`: check that the database does what Milepost relies on."""

import asyncio
from dataclasses import replace

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from rich.text import Text

from milepost import embedded
from milepost.app import Milepost
from milepost.cli import signals
from milepost.cli.checks import ExaminedDatabase, Finding, examine
from milepost.cli.exit_status import describe_error
from milepost.cli.options import Json, Schema, Url, make_milepost
from milepost.cli.output import ProgressBar, new_table, print_json, print_table, visible
from milepost.engine.declare.context import ProgressLocation
from milepost.postgres.pool import CONNECT_TIMEOUT_SECONDS, Connection

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(as_json: Json = False, url: Url = None, schema: Schema = None) -> None:
    """Checks the server, the log, the workers and the subscriptions. It changes nothing.

    Each line says what to do. The status is 1 if there is a problem, and 0 if there are only warnings.
    MILEPOST_PROGRESS says where progress is, if that is another database.

    **Example:** `milepost doctor --url postgresql://localhost/shop`
    """
    with ProgressBar("examining"):
        findings = signals.run_async(_examine(make_milepost(url, schema, migrate="off")))
    verdicts = {finding.verdict for finding in findings}
    worst = next(verdict for verdict in ("problem", "warning", "ok") if verdict in verdicts)
    if as_json:
        print_json({"verdict": worst, "checks": findings})
    else:
        _print_findings(findings)
    raise typer.Exit(1 if worst == "problem" else 0)


def _print_findings(findings: list[Finding]) -> None:
    rows = new_table("verdict", "check", "finding")
    for finding in findings:
        verdict = Text(finding.verdict, style=_STYLES[finding.verdict])
        rows.add_row(verdict, finding.check, visible(finding.finding))
    print_table(rows)


async def _examine(mp: Milepost) -> list[Finding]:
    conninfo = _doctor_conninfo(await asyncio.to_thread(lambda: mp.url))
    try:
        async with await _connect(conninfo) as connection:
            log = ExaminedDatabase(conninfo, connection, mp.settings["schema"].value)
            return await _examine_with_progress(log, mp.settings["url"].value, mp.settings["progress"].value)
    except psycopg.OperationalError as error:
        return [Finding("server", "problem", describe_error(error))]


async def _examine_with_progress(log: ExaminedDatabase, url: str, progress: str | None) -> list[Finding]:
    """Examine the log, and the database of progress if that is another."""
    if progress is None or ProgressLocation.of(url, progress) is ProgressLocation.WITH_THE_LOG:
        return await examine(log)
    is_embedded = embedded.is_embedded(progress)
    conninfo = _doctor_conninfo(await asyncio.to_thread(embedded.start, progress) if is_embedded else progress)
    try:
        connection = await _connect(conninfo)
    except psycopg.OperationalError as error:
        return await examine(log, [Finding("progress", "problem", f"its database: {describe_error(error)}")])
    async with connection:
        return await examine(replace(log, elsewhere=ExaminedDatabase(conninfo, connection, log.schema)))


async def _connect(conninfo: str) -> Connection:
    # Nothing is prepared: a pooler may stand between, and that is one of the questions.
    return await psycopg.AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=None)


def _doctor_conninfo(url: str) -> str:
    """Return the address as it is, a standby's too, with the options that the checks need."""
    given = conninfo_to_dict(url)
    needed: dict[str, str | int] = {"client_encoding": "utf8", "application_name": "milepost doctor"}
    if "connect_timeout" not in given:
        needed["connect_timeout"] = CONNECT_TIMEOUT_SECONDS
    return make_conninfo(url, **needed)
