"""`milepost subscriptions pause`, `resume`, `move`, `replay`, `delete`: what operators do to one."""

import time
from datetime import datetime
from typing import Annotated

import typer

from milepost.cli.ending import refusing
from milepost.cli.moment import moment
from milepost.cli.options import Schema, Url, milepost
from milepost.cli.output import console, visible
from milepost.cli.progress import ProgressBar
from milepost.cli.question import Yes, confirm
from milepost.cli.subscriptions import Address
from milepost.engine.control import Plan
from milepost.engine.start import Start
from milepost.sync import SyncManagedSubscription

Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait for the workers to confirm."),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Wait for nobody: take back what does not end at once. That is no attempt."),
]
PATIENCE = 60.0
"""Seconds that workers have to confirm, unless `--timeout` says otherwise."""
LOOK = 0.2
"""Seconds between two looks at how far a replay is."""


def pause(
    address: Address, timeout: Timeout = PATIENCE, force: Force = False, url: Url = None, schema: Schema = None
) -> None:
    """Lets nothing of it run, in any process, until it is resumed. It ends when nothing does any more.

    **Example:** `milepost subscriptions pause billing/invoices`

    **Though a handler hangs:** `milepost subscriptions pause billing/invoices --force`
    """
    with milepost(url, schema, migrate="check").sync as log, ProgressBar("waiting for the workers"):
        log.manage(address).pause(timeout=timeout, force=force)
    console().print(f"{visible(address)} is paused")


def resume(address: Address, url: Url = None, schema: Schema = None) -> None:
    """Lets it go on where it was."""
    with milepost(url, schema, migrate="check").sync as log:
        log.manage(address).resume()
    console().print(f"{visible(address)} goes on")


def move(
    address: Address,
    to: Annotated[
        str,
        typer.Argument(
            metavar="PLACE",
            help="beginning, now, a time (2026-03-01T12:00:00Z, or 3h ago), or a position to go on after.",
        ),
    ],
    yes: Yes = False,
    timeout: Timeout = PATIENCE,
    force: Force = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Lets it go on elsewhere: what is between is handled again, or never.

    **Everything again:** `milepost subscriptions move billing/invoices beginning`

    **Leave out what is there:** `milepost subscriptions move billing/invoices now`
    """
    target = _place("PLACE", to)
    with milepost(url, schema, migrate="check").sync as log, refusing():
        managed = log.manage(address)
        confirm(f"move {visible(address)}: {_in_words(managed.plan_move(target))}", yes)
        with ProgressBar("waiting for the workers"):
            managed.move(target, timeout=timeout, force=force)
        console().print(f"{visible(address)} goes on after position {managed.info().lanes[0].position}")


def replay(
    address: Address,
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
    timeout: Timeout = PATIENCE,
    force: Force = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Repeats what was handled, marked as a replay for its handlers; then it goes on where it was.

    **Example:** `milepost subscriptions replay billing/invoices 2026-03-01T12:00:00Z --end 81244 --wait`
    """
    first, last = _place("START", start), None if end is None else _end("--end", end)
    with milepost(url, schema, migrate="check").sync as log, refusing():
        managed = log.manage(address)
        confirm(f"replay {visible(address)}: {_in_words(managed.plan_replay(first, last))}", yes)
        with ProgressBar("waiting for the workers"):
            again = managed.replay(first, last, timeout=timeout, force=force)
        if wait:
            _watch(managed, again)
        console().print(f"{visible(address)}: {again:,} positions {'were' if wait else 'are being'} repeated")


def delete(
    address: Address,
    yes: Yes = False,
    timeout: Timeout = PATIENCE,
    force: Force = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Forgets it, its progress and its deliveries. A program that declares it makes it anew when it starts."""
    with milepost(url, schema, migrate="check").sync as log:
        managed = log.manage(address)
        info = managed.info()
        rows = info.retrying + info.waiting + info.parked + info.unrouted
        confirm(f"delete {visible(address)}: its progress and {rows:,} deliveries are forgotten", yes)
        with ProgressBar("waiting for the workers"):
            managed.delete(timeout=timeout, force=force)
    console().print(f"{visible(address)} is deleted")


def _watch(managed: SyncManagedSubscription, total: int) -> None:
    with ProgressBar("replaying", total or None) as bar:
        while left := managed.info().replaying:
            bar.advance_to(total - left, f"{left:,} positions left")
            time.sleep(LOOK)


def _place(name: str, text: str) -> Start:
    if text == "beginning":
        return "beginning"
    return "now" if text == "now" else _end(name, text)


def _end(name: str, text: str) -> datetime | int:
    return int(text) if text.isascii() and text.isdigit() else moment(name, text)


def _in_words(plan: Plan) -> str:
    words = [f"it goes on after position {plan.position}"]
    if plan.again:
        words.append(f"at most {plan.again:,} messages come again")
    if plan.passed_over:
        words.append(f"at most {plan.passed_over:,} messages are never handled")
    if plan.rows:
        rows = ", ".join(f"{count:,} {state}" for state, count in sorted(plan.rows.items()))
        words.append(f"deliveries that are forgotten: {rows}")
    return "; ".join(words)
