"""`milepost trace`: print the state of each message of a stream for every subscription."""

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from milepost.app import Milepost
from milepost.cli import signals
from milepost.cli.exit_status import CommandError, argument_errors, print_note
from milepost.cli.options import Json, Schema, Url, load_program, make_milepost
from milepost.cli.output import console, print_json, print_table, visible
from milepost.engine.operate.trace.results import MessageAt, Trace, Traced, TraceState, local_time
from milepost.engine.operate.trace.tracer import MAX_TRACED_MESSAGES

DEFAULT_TRACE_MESSAGES = 20
"""Messages, unless `--limit` says otherwise."""

_STYLES: dict[TraceState, str] = {
    "done": "green",
    "in flight": "cyan",
    "retrying": "yellow",
    "parked": "bold red",
    "waiting": "yellow",
    "unrouted": "yellow",
    "not reached": "cyan",
    "unsure": "magenta",
}
_OTHER_STYLE = "dim"


def trace(
    target: Annotated[str, typer.Argument(metavar="STREAM|ID", help="A stream, or the id of a message.")],
    program: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:OBJECT",
            help="The program, for a subscription that orders by a function: shop:mp is mp in shop.py.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only subscriptions of this group.", show_default=False)
    ] = None,
    subscription: Annotated[
        str | None,
        typer.Option(
            metavar="SUBSCRIPTION",
            help="Only this one: group/name; the name alone is one of any group.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=MAX_TRACED_MESSAGES, help="At most so many messages, the newest."),
    ] = DEFAULT_TRACE_MESSAGES,
    before_version: Annotated[
        int | None, typer.Option(metavar="VERSION", min=1, help="Only older versions.", show_default=False)
    ] = None,
    as_json: Json = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Says where each message of a stream is, for every subscription of every group.

    **Example:** `milepost trace order-42`

    **Why was it not invoiced?** `milepost trace order-42 --subscription billing/invoices`

    Done; filtered out, and by what; in flight, with whom; retrying, when next, after which error; parked, why,
    and what waits behind it; waiting, behind which message; not reached yet, and how far behind. Nothing is
    changed.
    """
    mp = _milepost_of(program, url, schema)
    found = signals.run_async(_trace(mp, target, group, subscription, limit, before_version))
    if not found.messages:
        raise CommandError(
            f"there is no message in stream {target!r}{_older_in_words(before_version)}, nor one of that id"
        )
    if as_json:
        print_json(found)
        return
    for message in found.messages:
        _print_message(message, [each for each in found if each.message.position == message.position])
    if found.before_version is not None:
        print_note(f"older messages: --before-version {found.before_version}")


def _milepost_of(program: str | None, url: str | None, schema: str | None) -> Milepost:
    """Return the program's own `Milepost`, or one for the address; either leaves the schema as it is."""
    if program is None:
        return make_milepost(url, schema, migrate="check")
    if url is not None or schema is not None:
        raise CommandError("--program has a database of its own: leave --url and --schema out")
    mp = load_program(program)
    with argument_errors():
        mp.check_handlers()
    mp.leave_schema("milepost trace")
    return mp


async def _trace(
    mp: Milepost, target: str, group: str | None, subscription: str | None, limit: int, before_version: int | None
) -> Trace:
    async with mp:
        return await mp.trace(
            target, group=group, subscription=subscription, limit=limit, before_version=before_version
        )


def _older_in_words(before_version: int | None) -> str:
    return f" before version {before_version}" if before_version is not None else ""


def _print_message(message: MessageAt, traced: list[Traced]) -> None:
    console().print(
        Text.assemble(
            (visible(message.stream), "bold"),
            f" version {message.version}: ",
            (visible(message.type), "green"),
            (f", position {message.position}, {local_time(message.time)}", "dim"),
        )
    )
    if not traced:
        console().print("  nobody follows the log")
        return
    rows = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    rows.add_column(width=0)
    rows.add_column(overflow="fold")
    rows.add_column(overflow="fold")
    for each in traced:
        rows.add_row(
            "", visible(each.address), Text(visible(str(each)), style=_STYLES.get(each.state, _OTHER_STYLE))
        )
    print_table(rows)
