"""`milepost doctor`: whether the database does what Milepost relies on."""

import asyncio
from dataclasses import replace

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from rich.text import Text

from milepost import embedded
from milepost.app import Milepost
from milepost.cli import loop
from milepost.cli.checks import Examined, Finding, examine
from milepost.cli.ending import explain
from milepost.cli.options import Json, Schema, Url, milepost
from milepost.cli.output import show, table, visible, write_json
from milepost.cli.progress import ProgressBar
from milepost.engine.kept import Kept
from milepost.log.database import CONNECT_TIMEOUT, Connection

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(as_json: Json = False, url: Url = None, schema: Schema = None) -> None:
    """Checks the server, the log, the workers and the subscriptions. It changes nothing.

    Each line says what to do. The status is 1 if there is a problem, and 0 if there are only warnings.
    MILEPOST_PROGRESS says where progress is, if that is another database.

    **Example:** `milepost doctor --url postgresql://localhost/shop`
    """
    with ProgressBar("examining"):
        findings = loop.run(_findings(milepost(url, schema, migrate="off")))
    verdicts = {finding.verdict for finding in findings}
    worst = next(verdict for verdict in ("problem", "warning", "ok") if verdict in verdicts)
    if as_json:
        write_json({"verdict": worst, "checks": findings})
    else:
        _show(findings)
    raise typer.Exit(1 if worst == "problem" else 0)


def _show(findings: list[Finding]) -> None:
    rows = table("verdict", "check", "finding")
    for finding in findings:
        verdict = Text(finding.verdict, style=_STYLES[finding.verdict])
        rows.add_row(verdict, finding.check, visible(finding.finding))
    show(rows)


async def _findings(mp: Milepost) -> list[Finding]:
    conninfo = _conninfo(await asyncio.to_thread(lambda: mp.url))
    try:
        async with await _connected(conninfo) as connection:
            log = Examined(conninfo, connection, mp.settings["schema"].value)
            return await _with_progress(log, mp.settings["url"].value, mp.settings["progress"].value)
    except psycopg.OperationalError as error:
        return [Finding("server", "problem", explain(error))]


async def _with_progress(log: Examined, url: str, progress: str | None) -> list[Finding]:
    """What is found where progress is kept with the log, or at another address."""
    if progress is None or Kept.of(url, progress) is Kept.WITH_THE_LOG:
        return await examine(log)
    is_embedded = embedded.is_embedded(progress)
    conninfo = _conninfo(await asyncio.to_thread(embedded.start, progress) if is_embedded else progress)
    try:
        connection = await _connected(conninfo)
    except psycopg.OperationalError as error:
        return await examine(log, [Finding("progress", "problem", f"its database: {explain(error)}")])
    async with connection:
        return await examine(replace(log, elsewhere=Examined(conninfo, connection, log.schema)))


async def _connected(conninfo: str) -> Connection:
    # Nothing is prepared: a pooler may stand between, and that is one of the questions.
    return await psycopg.AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=None)


def _conninfo(url: str) -> str:
    """The address as it is, a standby's too, but for what the checks need."""
    given = conninfo_to_dict(url)
    needed: dict[str, str | int] = {"client_encoding": "utf8", "application_name": "milepost doctor"}
    if "connect_timeout" not in given:
        needed["connect_timeout"] = CONNECT_TIMEOUT
    return make_conninfo(url, **needed)
