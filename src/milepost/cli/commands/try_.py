"""`milepost try`: run a handler on a real message, and roll it back."""

import logging
import pdb
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from milepost.app import Milepost
from milepost.cli import signals
from milepost.cli.exit_status import CommandError, argument_errors
from milepost.cli.options import Json, Program, Yes, confirm, load_program
from milepost.cli.output import console, print_json, visible
from milepost.engine.declare.subscription import Subscription
from milepost.engine.operate.dry_run import DryRunChoice, DryRunResult, PredictedOutcome, WrittenRows
from milepost.names import MAX_INTEGER

_SOURCE_FOLDER = str(Path(__file__).parents[2])
_STYLES = {"done": "green", "skipped": "yellow", "again": "yellow", "retrying": "bold red", "parked": "bold red"}


class DryRunPrinter:
    """A printer of a dry run: the messages before it, the result after it."""

    def __init__(self) -> None:
        self._console = console()

    def print_choice(self, chosen: DryRunChoice) -> None:
        """Print the messages and the handler that is about to run."""
        for message in chosen.messages:
            self._line(
                f"position {message.position}: {visible(message.stream)} version {message.version}, "
                f"{visible(message.type)}, {message.time.astimezone():%Y-%m-%d %H:%M:%S}"
            )
            if message.position in chosen.unreached:
                self._line(f"  would not reach {chosen.subscription.name}: {chosen.unreached[message.position]}")
            if delivery := chosen.stored.get(message.position):
                reason = f": {visible(delivery.reason)}" if delivery.reason else ""
                self._line(f"  {delivery.state} after {_attempts_in_words(delivery.attempts)}{reason}")
        attempt = max(chosen.attempt(message.position) for message in chosen.messages)
        self._line(f"handler: {chosen.handler.name} ({chosen.handler.location}), attempt {attempt}")

    def print_result(self, chosen: DryRunChoice, result: DryRunResult) -> None:
        """Print the result."""
        sys.stdout.flush()
        if result.has_failed and result.error is not None:
            self._console.print("".join(format_error(result.error)), end="", soft_wrap=True)
        refused = (
            ", but its transaction cannot be committed" if result.returned and result.error is not None else ""
        )
        self._line(
            f"{'returned' if result.returned else 'raised'} after {_format_duration(result.seconds)}{refused}"
        )
        for position, prospect in result.prospects.items():
            line = Text(f"position {position} would be ")
            self._console.print(line.append(*_prospect_in_words(prospect)), soft_wrap=True)
        if chosen.handler.takes_transaction:
            self._print_transaction(result)

    def _print_transaction(self, result: DryRunResult) -> None:
        if result.committed:
            warning = "NOT ROLLED BACK: the handler ended the transaction itself, and may have committed it"
            self._console.print(Text(warning, style="bold red"), soft_wrap=True)
            return
        self._line(f"rows written{'' if result.returned else ' before that'}: {_writes_in_words(result.writes)}")
        for asked in result.appends:
            self._line(f"appended to {visible(asked.stream)}: {', '.join(map(visible, asked.types))}")
        self._line("rolled back: all that went through its Transaction; anything else that it did stays")

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def dry_run_as_dict(chosen: DryRunChoice, result: DryRunResult) -> dict[str, Any]:
    """Return the choice and the result of a dry run as JSON for a program."""
    return {
        "subscription": chosen.subscription.name,
        "handler": chosen.handler.name,
        "messages": [
            {
                "position": message.position,
                "attempt": chosen.attempt(message.position),
                "unreached": chosen.unreached.get(message.position),
                "prospect": result.prospects[message.position],
            }
            for message in chosen.messages
        ],
        "seconds": result.seconds,
        "returned": result.returned,
        "error": "".join(format_error(result.error)) if result.has_failed and result.error is not None else None,
        "transaction": chosen.handler.takes_transaction,
        "writes": result.writes,
        "appends": result.appends,
        "committed": result.committed,
    }


def format_error(error: BaseException) -> list[str]:
    """Return an error with the part of its traceback that begins in the program's own code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_SOURCE_FOLDER):
        trace = trace.tb_next
    return traceback.format_exception(type(error), error, trace)


def _prospect_in_words(prospect: PredictedOutcome) -> tuple[str, str]:
    """Return the predicted outcome of a message in words, and their style."""
    uncounted = "" if prospect.counts else ", and this counts as no attempt"
    words = {
        "done": "done",
        "skipped": "skipped",
        "parked": "parked",
        "again": "run again at once, and this counts as no attempt",
        "retrying": f"tried again in {_format_duration(prospect.after or 0)}{uncounted}",
    }
    reason = f": {visible(prospect.reason)}" if prospect.reason else ""
    return words[prospect.state] + reason, _STYLES[prospect.state]


def _attempts_in_words(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"


def _writes_in_words(writes: Sequence[WrittenRows] | None) -> str:
    if writes is None:
        return "not counted, for the server's track_counts is off"
    return "; ".join(map(_table_in_words, writes)) or "none"


def _table_in_words(written: WrittenRows) -> str:
    counts = {"inserted": written.inserted, "updated": written.updated, "deleted": written.deleted}
    return f"{written.table} {', '.join(f'{count:,} {word}' for word, count in counts.items() if count)}"


def _format_duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


NOT_DONE_STATUS = 1
"""The status when a message would not be done with."""
NOT_ROLLED_BACK = "nothing is rolled back, and what it writes, appends or asks of other services really happens"


def try_(
    program: Program,
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
    as_json: Json = False,
) -> None:
    """Runs a handler on a message of the log, in a transaction that is rolled back.

    **Example:** `milepost try shop:mp invoices 81244`

    Shows what the handler prints, how long it takes and how it ends, what would become of the message, which
    rows it wrote through its `Transaction` and what it would append. Progress is not touched. The status is 0 if
    the message would be done or skipped, else 1.
    """
    if as_json and debug:
        raise CommandError("--json and --pdb: the debugger is for a person")
    mp = load_program(program)
    subscription = _find_subscription(mp, name)
    printer = None if as_json else DryRunPrinter()
    _show_handler_output()
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        chosen, result = signals.run_async(
            _run_handler(mp, subscription, positions, yes=yes, force=force, timed=not debug, printer=printer)
        )
    if printer is None:
        print_json(dry_run_as_dict(chosen, result))
    else:
        printer.print_result(chosen, result)
    if debug and result.has_failed and result.error is not None:
        pdb.post_mortem(result.error.__traceback__)
    if not result.is_done:
        raise typer.Exit(NOT_DONE_STATUS)


def _show_handler_output() -> None:
    """Show at once what a handler prints, and also what it logs at level INFO."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    logging.getLogger("milepost.subscription").setLevel(logging.INFO)


def _find_subscription(mp: Milepost, address: str) -> Subscription:
    """Return the program's own subscription that an address means."""
    own = mp.settings["group"].value
    group, _, name = address.rpartition("/")
    if group and group != own:
        raise CommandError(f"{address}: this program has the handlers of group {own!r} alone")
    with argument_errors():
        return mp.declared_subscription(name)


async def _run_handler(
    mp: Milepost,
    subscription: Subscription,
    positions: Sequence[int],
    *,
    yes: bool,
    force: bool,
    timed: bool,
    printer: DryRunPrinter | None,
) -> tuple[DryRunChoice, DryRunResult]:
    # Who tries something migrates nothing, whatever the program does when it runs.
    mp.leave_schema("milepost try")
    async with mp:
        trial = mp.dry_run(subscription)
        chosen = await trial.choose(positions)
        if not force:
            _refuse_unreached(chosen)
        if printer is not None:
            printer.print_choice(chosen)
        if not chosen.handler.takes_transaction:
            confirm(f"{chosen.handler.name} takes no Transaction: {NOT_ROLLED_BACK}; run it", yes)
        return chosen, await trial.run(chosen, timed=timed)


def _refuse_unreached(chosen: DryRunChoice) -> None:
    for position, why in chosen.unreached.items():
        name = chosen.subscription.name
        raise CommandError(f"position {position} would not reach {name}: {why}; --force runs the handler on it")
