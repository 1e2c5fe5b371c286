"""`milepost subscriptions sync`: creates what a program declares, before its workers start."""

import asyncio
from typing import Annotated

import typer

from milepost.cli.ending import Refusal, refusing
from milepost.cli.options import Json
from milepost.cli.output import show, table, visible, write_json
from milepost.cli.run import program_of
from milepost.engine.declaring import DeclaredSubscription


def sync(
    program: Annotated[
        str, typer.Argument(metavar="MODULE:OBJECT", help="Where the Milepost is: shop:mp is mp in shop.py.")
    ],
    as_json: Json = False,
) -> None:
    """Creates the subscriptions that a program declares and that are not there yet. Nothing runs.

    `start="now"` is the moment of this command then. One that is declared with `paused=True` waits, also when its
    workers are there, until `milepost subscriptions resume`. Those that are there already stay as they are; what
    differs in the code comes into force when a worker starts.

    **Before a deploy:** `milepost subscriptions sync shop:mp`
    """
    mp = program_of(program)
    with refusing():
        if not mp.declared():
            raise Refusal(
                f"{program} has no subscriptions: declare one with @mp.subscription(…) in a module it imports"
            )
    found = asyncio.run(mp.create_declared())
    if as_json:
        write_json(found)
        return
    rows = table("subscription", "status", "")
    for each in found:
        rows.add_row(visible(f"{each.group}/{each.name}"), each.status, visible(_in_words(each)))
    show(rows)


def _in_words(found: DeclaredSubscription) -> str:
    if found.differs is not None:
        return f"differs until a worker starts: {found.differs}"
    return "created" if found.created else "was there already"
