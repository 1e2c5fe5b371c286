"""`milepost subscriptions rewind`: the way on after a log went back that progress elsewhere had followed."""

from typing import Annotated

import typer

from milepost.cli import loop
from milepost.cli.ending import Refusal, refusing
from milepost.cli.options import Schema, Url, address, settings
from milepost.cli.output import console, show, table, visible
from milepost.cli.question import Yes, confirm
from milepost.log.database import Database
from milepost.progress.rewinding import Rewind, Rewinding


def rewind(
    progress: Annotated[
        str | None,
        typer.Option(
            "--progress",
            metavar="URL",
            help="The database that keeps progress. Else MILEPOST_PROGRESS.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Takes progress in another database back to what survived of the log, so that programs start again.

    For programs that end with `LogMismatch` because the log was restored from an older backup, or lost its newest
    messages in a failover. What comes after the last message that both know is handled again, or anew.

    **Example:** `milepost subscriptions rewind --url postgresql://log/… --progress postgresql://app/…`
    """
    given = settings(url, schema)
    elsewhere = progress or given["progress"].value
    log = address(url, schema)
    if not isinstance(elsewhere, str) or elsewhere == log:
        raise Refusal(
            "progress is kept with the log, and went back together with it: nothing has to be done; if it is kept "
            "in another database, give --progress postgresql://… or set MILEPOST_PROGRESS"
        )
    with refusing():
        loop.run(_rewind(log, elsewhere, given["schema"].value, yes=yes))


async def _rewind(log_url: str, progress_url: str, schema: str, *, yes: bool) -> None:
    log, progress = Database(log_url, pool_size=1), Database(progress_url, pool_size=1)
    await log.open()
    try:
        await progress.open()
        try:
            rewinding = Rewinding(log.within(None), progress.within(None), schema)
            plan = await rewinding.plan()
            if plan is None:
                console().print("the log is what progress knows of it: nothing has to be done")
                return
            _show(plan)
            confirm(f"take all progress back to position {plan.survived:,}", yes)
            await rewinding.run(plan)
            console().print(f"progress goes on after position {plan.survived:,}: start the programs again")
        finally:
            await progress.close()
    finally:
        await log.close()


def _show(plan: Rewind) -> None:
    if not plan.subscriptions:
        console().print("no subscription is beyond what survived")
        return
    rows = table("subscription", "positions back", "deliveries forgotten")
    for each in plan.subscriptions:
        rows.add_row(visible(f"{each.group}/{each.name}"), f"{each.positions:,}", f"{each.deliveries:,}")
    show(rows)
