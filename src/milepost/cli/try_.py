"""`milepost try`: a handler on a real message, rolled back."""

import logging
import pdb
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from io import TextIOWrapper
from typing import Annotated

import typer

from milepost.app import Milepost
from milepost.cli import loop
from milepost.cli.ending import Refusal, refusing
from milepost.cli.options import Json
from milepost.cli.output import write_json
from milepost.cli.question import Yes, confirm
from milepost.cli.run import program_of
from milepost.cli.tried import Telling, as_json
from milepost.engine.subscription import Subscription
from milepost.engine.trial import Chosen, Trial, Tried
from milepost.log.codec import MAX_INTEGER
from milepost.options import Setting

NOT_DONE = 1
"""The status when a message would not be done with."""
REALLY = "nothing is rolled back, and what it writes, appends or asks of other services really happens"


def try_(
    program: Annotated[
        str, typer.Argument(metavar="MODULE:OBJECT", help="Where the Milepost is: shop:mp is mp in shop.py.")
    ],
    name: Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="Its name.")],
    positions: Annotated[
        list[int],
        typer.Argument(
            metavar="POSITION",
            min=1,
            max=MAX_INTEGER,
            help="Of the message; for a handler of batches several.",
        ),
    ],
    yes: Yes = False,
    force: Annotated[
        bool, typer.Option("--force", help="Run it also on a message that would not reach it.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--pdb", help="Open the debugger where the handler fails; there is no time-out.")
    ] = False,
    for_program: Json = False,
) -> None:
    """Runs a handler on a message of the log, in a transaction that is rolled back.

    **Example:** `milepost try shop:mp invoices 81244`

    Shows what the handler prints, how long it takes and how it ends, what would become of the message, which
    rows it wrote through its `Transaction` and what it would append. Progress is not touched. The status is 0 if
    the message would be done or skipped, else 1.
    """
    if for_program and debug:
        raise Refusal("--json and --pdb: the debugger is for a person")
    mp = program_of(program)
    subscription = _subscription(mp, name)
    telling = None if for_program else Telling()
    _show_what_happens()
    with redirect_stdout(sys.stderr) if for_program else nullcontext():
        chosen, tried = loop.run(
            _run(mp, subscription, positions, yes=yes, force=force, timed=not debug, telling=telling)
        )
    if telling is None:
        write_json(as_json(chosen, tried))
    else:
        telling.tried(chosen, tried)
    if debug and tried.has_failed and tried.error is not None:
        pdb.post_mortem(tried.error.__traceback__)
    if not tried.is_done:
        raise typer.Exit(NOT_DONE)


def _show_what_happens() -> None:
    """Shows what a handler prints when it does, and what it logs for information, too."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    logging.getLogger("milepost.subscription").setLevel(logging.INFO)


def _subscription(mp: Milepost, address: str) -> Subscription:
    """The program's own subscription that an address means."""
    with refusing():
        mp.declared()
    own = mp.settings["group"].value
    group, _, name = address.rpartition("/")
    if group and group != own:
        raise Refusal(f"{address}: this program has the handlers of group {own!r} alone")
    return mp._subscriptions[name]


async def _run(
    mp: Milepost,
    subscription: Subscription,
    positions: Sequence[int],
    *,
    yes: bool,
    force: bool,
    timed: bool,
    telling: Telling | None,
) -> tuple[Chosen, Tried]:
    _leave_schema_as_it_is(mp)
    async with mp:
        trial = Trial(mp._place(), mp._appender, subscription)
        chosen = await trial.choose(positions)
        if not force:
            _refuse_unreached(chosen)
        if telling is not None:
            telling.chosen(chosen)
        if not chosen.handler.takes_transaction:
            confirm(f"{chosen.handler.name} takes no Transaction: {REALLY}; run it", yes)
        return chosen, await trial.run(chosen, timed=timed)


def _leave_schema_as_it_is(mp: Milepost) -> None:
    """Who tries something migrates nothing, whatever the program does when it runs."""
    if mp.settings["migrate"].value == "auto":
        mp.settings["migrate"] = Setting("migrate", "check", "milepost try")


def _refuse_unreached(chosen: Chosen) -> None:
    for position, why in chosen.unreached.items():
        name = chosen.subscription.name
        raise Refusal(f"position {position} would not reach {name}: {why}; --force runs the handler on it")
