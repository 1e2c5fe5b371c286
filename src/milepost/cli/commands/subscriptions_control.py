"""`milepost subscriptions pause`, `resume`, `move`, `replay`, `delete` and `rewind`: operate subscriptions."""

import time
from datetime import datetime
from typing import Annotated

import typer

from milepost.cli import signals
from milepost.cli.exit_status import CommandError, argument_errors
from milepost.cli.options import (
    Schema,
    SubscriptionAddress,
    Url,
    Yes,
    confirm,
    database_url,
    make_milepost,
    parse_time,
    resolve_settings,
)
from milepost.cli.output import ProgressBar, console, new_table, print_table, visible
from milepost.engine.declare.declaration import Start
from milepost.engine.operate.control import Plan
from milepost.progress.postgres.log_guard import RewindPlan, open_rewinder
from milepost.sync import SyncManagedSubscription

ConfirmTimeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait for the workers to confirm."),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Wait for nobody: take back what does not end at once. That is no attempt."),
]
CONFIRM_SECONDS = 60.0
"""Seconds that workers have to confirm, unless `--timeout` says otherwise."""
REPLAY_POLL_SECONDS = 0.2
"""Seconds between two looks at how far a replay is."""


def pause(
    address: SubscriptionAddress,
    timeout: ConfirmTimeout = CONFIRM_SECONDS,
    force: Force = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Lets nothing of it run, in any process, until it is resumed. It ends when nothing does any more.

    **Example:** `milepost subscriptions pause billing/invoices`

    **Though a handler hangs:** `milepost subscriptions pause billing/invoices --force`
    """
    with make_milepost(url, schema, migrate="check").sync as log, ProgressBar("waiting for the workers"):
        log.manage(address).pause(timeout=timeout, force=force)
    console().print(f"{visible(address)} is paused")


def resume(address: SubscriptionAddress, url: Url = None, schema: Schema = None) -> None:
    """Lets it go on where it was."""
    with make_milepost(url, schema, migrate="check").sync as log:
        log.manage(address).resume()
    console().print(f"{visible(address)} goes on")


def move(
    address: SubscriptionAddress,
    to: Annotated[
        str,
        typer.Argument(
            metavar="PLACE",
            help="beginning, now, a time (2026-03-01T12:00:00Z, or 3h ago), or a position to go on after.",
        ),
    ],
    yes: Yes = False,
    timeout: ConfirmTimeout = CONFIRM_SECONDS,
    force: Force = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Lets it go on elsewhere: what is between is handled again, or never.

    **Everything again:** `milepost subscriptions move billing/invoices beginning`

    **Leave out what is there:** `milepost subscriptions move billing/invoices now`
    """
    target = _parse_place("PLACE", to)
    with make_milepost(url, schema, migrate="check").sync as log, argument_errors():
        managed = log.manage(address)
        confirm(f"move {visible(address)}: {_plan_in_words(managed.plan_move(target))}", yes)
        with ProgressBar("waiting for the workers"):
            managed.move(target, timeout=timeout, force=force)
        console().print(f"{visible(address)} goes on after position {managed.info().lanes[0].position}")


def replay(
    address: SubscriptionAddress,
    start: Annotated[
        str,
        typer.Argument(
            metavar="START",
            help="beginning, a time (2026-03-01T12:00:00Z, or 3h ago), or a position to begin after.",
        ),
    ],
    end: Annotated[
        str | None,
        typer.Option("--end", metavar="PLACE", help="The last position, or a time. Else all that was handled."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show its progress until it has ended.")] = False,
    yes: Yes = False,
    timeout: ConfirmTimeout = CONFIRM_SECONDS,
    force: Force = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Repeats what was handled, marked as a replay for its handlers; then it goes on where it was.

    **Example:** `milepost subscriptions replay billing/invoices 2026-03-01T12:00:00Z --end 81244 --wait`
    """
    first, last = _parse_place("START", start), None if end is None else _parse_end("--end", end)
    with make_milepost(url, schema, migrate="check").sync as log, argument_errors():
        managed = log.manage(address)
        confirm(f"replay {visible(address)}: {_plan_in_words(managed.plan_replay(first, last))}", yes)
        with ProgressBar("waiting for the workers"):
            again = managed.replay(first, last, timeout=timeout, force=force)
        if wait:
            _show_replay(managed, again)
        console().print(f"{visible(address)}: {again:,} positions {'were' if wait else 'are being'} repeated")


def delete(
    address: SubscriptionAddress,
    yes: Yes = False,
    timeout: ConfirmTimeout = CONFIRM_SECONDS,
    force: Force = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Forgets it, its progress and its deliveries. A program that declares it makes it anew when it starts."""
    with make_milepost(url, schema, migrate="check").sync as log:
        managed = log.manage(address)
        info = managed.info()
        rows = info.retrying + info.waiting + info.parked + info.unrouted
        confirm(f"delete {visible(address)}: its progress and {rows:,} deliveries are forgotten", yes)
        with ProgressBar("waiting for the workers"):
            managed.delete(timeout=timeout, force=force)
    console().print(f"{visible(address)} is deleted")


def _show_replay(managed: SyncManagedSubscription, total: int) -> None:
    with ProgressBar("replaying", total or None) as bar:
        while left := managed.info().replaying:
            bar.advance_to(total - left, f"{left:,} positions left")
            time.sleep(REPLAY_POLL_SECONDS)


def _parse_place(name: str, text: str) -> Start:
    if text == "beginning":
        return "beginning"
    return "now" if text == "now" else _parse_end(name, text)


def _parse_end(name: str, text: str) -> datetime | int:
    return int(text) if text.isascii() and text.isdigit() else parse_time(name, text)


def _plan_in_words(plan: Plan) -> str:
    words = [f"it goes on after position {plan.position}"]
    if plan.again:
        words.append(f"at most {plan.again:,} messages come again")
    if plan.passed_over:
        words.append(f"at most {plan.passed_over:,} messages are never handled")
    if plan.rows:
        rows = ", ".join(f"{count:,} {state}" for state, count in sorted(plan.rows.items()))
        words.append(f"deliveries that are forgotten: {rows}")
    return "; ".join(words)


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
    given = resolve_settings(url, schema)
    elsewhere = progress or given["progress"].value
    log = database_url(url, schema)
    if not isinstance(elsewhere, str) or elsewhere == log:
        raise CommandError(
            "progress is kept with the log, and went back together with it: nothing has to be done; if it is kept "
            "in another database, give --progress postgresql://… or set MILEPOST_PROGRESS"
        )
    with argument_errors():
        signals.run_async(_rewind(log, elsewhere, given["schema"].value, yes=yes))


async def _rewind(log_url: str, progress_url: str, schema: str, *, yes: bool) -> None:
    async with open_rewinder(log_url, progress_url, schema) as rewinder:
        plan = await rewinder.plan()
        if plan is None:
            console().print("the log is what progress knows of it: nothing has to be done")
            return
        _print_rewind(plan)
        confirm(f"take all progress back to position {plan.survived:,}", yes)
        await rewinder.run(plan)
        console().print(f"progress goes on after position {plan.survived:,}: start the programs again")


def _print_rewind(plan: RewindPlan) -> None:
    if not plan.subscriptions:
        console().print("no subscription is beyond what survived")
        return
    rows = new_table("subscription", "positions back", "deliveries forgotten")
    for each in plan.subscriptions:
        rows.add_row(visible(f"{each.group}/{each.name}"), f"{each.positions:,}", f"{each.deliveries:,}")
    print_table(rows)
