"""`milepost parked`: messages that need a person, and what the person decides."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from milepost.cli.delivery_printer import DeliveryPrinter
from milepost.cli.ending import Refusal, say
from milepost.cli.interruption import Interrupted, Interruption
from milepost.cli.options import Json, Schema, Url, milepost
from milepost.cli.output import console, visible, write_json
from milepost.cli.progress import ProgressBar
from milepost.cli.question import Yes, confirm
from milepost.cli.subscriptions import Address
from milepost.dispatch import State
from milepost.engine.deliveries import BATCH
from milepost.engine.info import SubscriptionInfo
from milepost.progress.deliveries import Decided, Decision
from milepost.sync import SyncManagedSubscription

SHOWN = 100
"""Deliveries in a table, unless `--limit` says otherwise."""
NAMED = 20
"""Refused positions that are named one by one."""

_GO_ON = ", the others are as they were; the same command goes on from here"
_DONE = {Decision.RETRY: "retried", Decision.SKIP: "skipped"}


class _ListUnlessSaid(TyperGroup):
    """`milepost parked SUBSCRIPTION` lists; `retry` and `skip` stand before the subscription."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_ListUnlessSaid, rich_markup_mode="markdown")

Key = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Only what is kept in order by this key: the stream, unless the subscription says otherwise.",
        show_default=False,
    ),
]
Reason = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Only those whose reason has this text in it; case does not matter.",
        show_default=False,
    ),
]
Positions = Annotated[
    list[int] | None,
    typer.Argument(metavar="POSITION", min=0, help="The positions of messages.", show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="All parked ones.")]
UpTo = Annotated[
    int | None,
    typer.Option(metavar="POSITION", min=0, help="All parked ones up to this position.", show_default=False),
]
Limit = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="At most so many, the lowest first.", show_default=False)
]
StateOf = Annotated[
    list[State] | None,
    typer.Option(
        metavar="STATE",
        help="With --all and --up-to: others than the parked ones. With positions: only those that are still in "
        "this state. Repeat it for several.",
        show_default=False,
    ),
]


@app.callback()
def parked() -> None:
    """Lists messages that wait for a person; retry and skip say what is to become of them.

    **All that are parked:** `milepost parked billing/invoices`

    **Try them again:** `milepost parked retry billing/invoices --all`

    **Pass one over:** `milepost parked skip billing/invoices 81244`
    """


@app.command("list")
def list_(
    address: Address,
    state: Annotated[
        list[State] | None,
        typer.Option(
            metavar="STATE",
            help="retrying, waiting, unrouted, running, skipped. Repeat it for several. Else parked.",
            show_default=False,
        ),
    ] = None,
    key: Key = None,
    reason: Reason = None,
    after: Annotated[int, typer.Option(metavar="POSITION", min=0, help="Only higher positions.")] = 0,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help=f"At most so many. Else {SHOWN}, with --json all.", show_default=False
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="With the whole error of each.")] = False,
    as_json: Json = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Lists the messages of a subscription that wait for a person, in order of position.

    **With tracebacks:** `milepost parked billing/invoices --verbose`

    **What is tried again later:** `milepost parked billing/invoices --state retrying --json`
    """
    choice: dict[str, Any] = {"state": state or [State.PARKED], "key": key, "reason": reason, "after": after}
    most = SHOWN if limit is None and not as_json else limit
    with milepost(url, schema, migrate="check").sync as log:
        managed = log.manage(address)
        printer = DeliveryPrinter(as_json=as_json, verbose=verbose)
        for delivery in managed.deliveries(**choice, limit=most):
            printer.add(delivery)
        printer.end()
        if limit is None and printer.printed == most:
            count = managed.count_deliveries(**choice)
            if count > printer.printed:
                say(f"these are {printer.printed} of {count:,}; --limit shows more")


@app.command("retry")
def retry(
    address: Address,
    positions: Positions = None,
    all: All = False,
    up_to: UpTo = None,
    limit: Limit = None,
    state: StateOf = None,
    key: Key = None,
    reason: Reason = None,
    yes: Yes = False,
    as_json: Json = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Has messages tried again now, and their attempts counted anew.

    What waits behind a message goes on once that is handled. A message that is retrying is tried now instead of
    later. The status is 1 if one that was named cannot be retried.

    **Examples:** `milepost parked retry billing/invoices 81244 81250`;
    `milepost parked retry billing/invoices --all --reason timeout --limit 100`
    """
    choice = _choice(Decision.RETRY, positions, all=all, up_to=up_to, state=state, key=key, reason=reason)
    with milepost(url, schema, migrate="check").sync as log:
        _decide(Decision.RETRY, log.manage(address), choice, limit, yes=yes, as_json=as_json)


@app.command("skip")
def skip(
    address: Address,
    positions: Positions = None,
    all: All = False,
    up_to: UpTo = None,
    limit: Limit = None,
    state: StateOf = None,
    key: Key = None,
    reason: Reason = None,
    yes: Yes = False,
    as_json: Json = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Passes messages over for good: they are not handled, and what waits behind them goes on.

    The status is 1 if one that was named cannot be skipped, because it is running for instance.

    **Example:** `milepost parked skip billing/invoices 81244`
    """
    choice = _choice(Decision.SKIP, positions, all=all, up_to=up_to, state=state, key=key, reason=reason)
    with milepost(url, schema, migrate="check").sync as log:
        _decide(Decision.SKIP, log.manage(address), choice, limit, yes=yes, as_json=as_json)


def _choice(
    decision: Decision,
    positions: list[int] | None,
    *,
    all: bool,
    up_to: int | None,
    state: list[State] | None,
    key: str | None,
    reason: str | None,
) -> dict[str, Any]:
    """The arguments of `retry` and `skip`; exactly one of positions, all and up to."""
    if sum([bool(positions), all, up_to is not None]) != 1:
        raise Refusal("which ones? Give their positions, or --all, or --up-to POSITION")
    if positions and (key is not None or reason is not None):
        raise Refusal("--key and --reason go with --all and --up-to: positions say which ones already")
    if refused := set(state or ()) - decision.applies_to:
        allowed = ", ".join(sorted(decision.applies_to))
        raise Refusal(f"--state {min(refused)}: {decision.name.lower()} is for {allowed}")
    return {
        "positions": positions or None,
        "all": all,
        "up_to": up_to,
        "state": state or None,
        "key": key,
        "reason": reason,
    }


def _decide(
    decision: Decision,
    managed: SyncManagedSubscription,
    choice: dict[str, Any],
    limit: int | None,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    info = managed.info()
    count = _count(managed, choice, limit)
    if count and not choice["positions"]:
        for_good = " for good" if decision is Decision.SKIP else ""
        confirm(f"{decision.name.lower()} {_messages(count)} of {info.group}/{info.name}{for_good}", yes)
    decided = _decided(decision, managed, choice, limit, count)
    if as_json:
        write_json(decided)
    else:
        remark = _remark(decision, info) if decided.moved else ""
        console().print(visible(f"{_DONE[decision]} {_messages(decided.moved)}{remark}"))
    if decided.refused:
        _name(decided.refused)
        raise typer.Exit(1)


def _count(managed: SyncManagedSubscription, choice: dict[str, Any], limit: int | None) -> int:
    if choice["positions"]:
        found = len(set(choice["positions"]))
    else:
        which = {name: choice[name] for name in ("key", "reason", "up_to")}
        found = managed.count_deliveries(state=choice["state"] or [State.PARKED], **which)
    return found if limit is None else min(found, limit)


def _decided(
    decision: Decision, managed: SyncManagedSubscription, choice: dict[str, Any], limit: int | None, count: int
) -> Decided:
    done = _DONE[decision]
    change = managed.retry if decision is Decision.RETRY else managed.skip
    moved = 0
    # What is said comes when the bar has gone: both are on one line else.
    try:
        with ProgressBar(decision.name.lower(), count or None) as bar, Interruption() as interruption:

            def on_batch(so_far: int) -> None:
                nonlocal moved
                moved = so_far
                bar.advance_to(moved, f"{moved:,} of {count:,}")
                interruption.check()

            return change(**choice, limit=limit, on_batch=on_batch)
    except Interrupted:
        say(f"{done} {moved:,} of {count:,}{_GO_ON}")
        raise KeyboardInterrupt from None
    except KeyboardInterrupt:
        # What was under way is done as a whole or not at all.
        say(f"{done} {moved:,} of {count:,}, or {BATCH:,} more{_GO_ON}")
        raise


def _name(refused: dict[int, str]) -> None:
    for position in list(refused)[:NAMED]:
        say(f"position {position}: {refused[position]}")
    if len(refused) > NAMED:
        say(f"and {len(refused) - NAMED:,} more were refused")


def _remark(decision: Decision, info: SubscriptionInfo) -> str:
    """Why nothing will happen now, if so."""
    what = "they are looked at" if decision is Decision.RETRY else "what waits behind them is looked at"
    if info.status == "waiting":
        return f"; nobody runs {info.group}/{info.name} now: {what} when its program starts"
    if info.status == "paused":
        return f"; {info.group}/{info.name} is paused: {what} when it goes on"
    return ""


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"
