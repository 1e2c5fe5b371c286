"""`milepost parked`: list, retry and skip the messages that need a person."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from milepost.cli.exit_status import CommandError, print_note
from milepost.cli.options import Json, Schema, SubscriptionAddress, Url, Yes, confirm, make_milepost
from milepost.cli.output import ProgressBar, console, message_as_dict, new_table, print_json, print_table, visible
from milepost.cli.signals import StepInterrupt, StepsInterrupted
from milepost.dispatch import State
from milepost.engine.operate.deliveries import MAX_DECISION_DELIVERIES, DeliveryInfo
from milepost.engine.operate.info import SubscriptionInfo
from milepost.progress.deliveries import Decided, Decision
from milepost.sync import SyncManagedSubscription

MAX_TABLE_ROWS = 200
"""Lines of one table."""

_HEADINGS = ("position", "stream", "type", "state", "since", "attempts", "next", "waiting", "reason")


class DeliveryPrinter:
    """A printer of deliveries: JSON, whole deliveries or pages of a table."""

    def __init__(self, *, as_json: bool, verbose: bool) -> None:
        self.printed = 0
        self._add = self._add_json if as_json else self._print_whole if verbose else self._add_line
        self._page: list[DeliveryInfo] = []

    def add(self, delivery: DeliveryInfo) -> None:
        """Print a delivery, or keep it for the next page of the table."""
        self.printed += 1
        self._add(delivery)

    def end(self) -> None:
        """Print the rest of the table."""
        if not self._page and (self.printed or self._add != self._add_line):
            return
        rows = new_table(*_HEADINGS)
        for delivery in self._page:
            rows.add_row(*map(visible, _columns(delivery)))
        print_table(rows)
        self._page.clear()

    def _add_json(self, delivery: DeliveryInfo) -> None:
        message = None if delivery.message is None else message_as_dict(delivery.message)
        print_json({**msgspec.structs.asdict(delivery), "message": message})

    def _add_line(self, delivery: DeliveryInfo) -> None:
        self._page.append(delivery)
        if len(self._page) == MAX_TABLE_ROWS:
            self.end()

    def _print_whole(self, delivery: DeliveryInfo) -> None:
        screen = console()
        values = dict(zip(_HEADINGS, _columns(delivery), strict=True))
        if delivery.message is not None:
            values["data"] = delivery.message.raw
        for name, value in values.items():
            if value:
                screen.print(f"{name:<9} {visible(value)}")
        for line in delivery.error.splitlines():
            screen.print(f"    {visible(line)}")
        screen.print()


def _columns(delivery: DeliveryInfo) -> tuple[str, ...]:
    message: Any = delivery.message
    attempts = str(delivery.attempts)
    if delivery.total != delivery.attempts:
        attempts += f" of {delivery.total}"
    return (
        str(delivery.position),
        delivery.key or "" if message is None else message.stream,
        "no longer in the log" if message is None else message.type,
        delivery.state,
        _format_time(delivery.since),
        attempts,
        _format_time(delivery.due) if delivery.state is State.RETRYING else "",
        _waiting_in_words(delivery),
        delivery.reason,
    )


def _waiting_in_words(delivery: DeliveryInfo) -> str:
    if delivery.waiting_behind is None:
        return ""
    if delivery.state is State.WAITING:
        return f"behind {delivery.waiting_behind}"
    return f"{delivery.waiting_behind:,}" if delivery.waiting_behind else ""


def _format_time(time: datetime | None) -> str:
    return "" if time is None else f"{time.astimezone():%Y-%m-%d %H:%M:%S}"


DEFAULT_DELIVERIES = 100
"""Deliveries in a table, unless `--limit` says otherwise."""
MAX_NAMED_POSITIONS = 20
"""Refused positions that are named one by one."""

_GO_ON = ", the others are as they were; the same command goes on from here"
_DONE = {Decision.RETRY: "retried", Decision.SKIP: "skipped"}


class _ListByDefault(TyperGroup):
    """A group of commands in which `milepost parked SUBSCRIPTION` means `milepost parked list SUBSCRIPTION`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_ListByDefault, rich_markup_mode="markdown")

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
    address: SubscriptionAddress,
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
            metavar="N",
            min=0,
            help=f"At most so many. Else {DEFAULT_DELIVERIES}, with --json all.",
            show_default=False,
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
    most = DEFAULT_DELIVERIES if limit is None and not as_json else limit
    with make_milepost(url, schema, migrate="check").sync as log:
        managed = log.manage(address)
        printer = DeliveryPrinter(as_json=as_json, verbose=verbose)
        for delivery in managed.deliveries(**choice, limit=most):
            printer.add(delivery)
        printer.end()
        if limit is None and printer.printed == most:
            count = managed.count_deliveries(**choice)
            if count > printer.printed:
                print_note(f"these are {printer.printed} of {count:,}; --limit shows more")


@app.command("retry")
def retry(
    address: SubscriptionAddress,
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
    with make_milepost(url, schema, migrate="check").sync as log:
        _decide(Decision.RETRY, log.manage(address), choice, limit, yes=yes, as_json=as_json)


@app.command("skip")
def skip(
    address: SubscriptionAddress,
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
    with make_milepost(url, schema, migrate="check").sync as log:
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
    """Return the arguments of `retry` and `skip`: exactly one of positions, all and up to."""
    if sum([bool(positions), all, up_to is not None]) != 1:
        raise CommandError("which ones? Give their positions, or --all, or --up-to POSITION")
    if positions and (key is not None or reason is not None):
        raise CommandError("--key and --reason go with --all and --up-to: positions say which ones already")
    if refused := set(state or ()) - decision.applies_to:
        allowed = ", ".join(sorted(decision.applies_to))
        raise CommandError(f"--state {min(refused)}: {decision.name.lower()} is for {allowed}")
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
    decided = _apply_decision(decision, managed, choice, limit, count)
    if as_json:
        print_json(decided)
    else:
        remark = _remark(decision, info) if decided.moved else ""
        console().print(visible(f"{_DONE[decision]} {_messages(decided.moved)}{remark}"))
    if decided.refused:
        _print_refused(decided.refused)
        raise typer.Exit(1)


def _count(managed: SyncManagedSubscription, choice: dict[str, Any], limit: int | None) -> int:
    if choice["positions"]:
        found = len(set(choice["positions"]))
    else:
        which = {name: choice[name] for name in ("key", "reason", "up_to")}
        found = managed.count_deliveries(state=choice["state"] or [State.PARKED], **which)
    return found if limit is None else min(found, limit)


def _apply_decision(
    decision: Decision, managed: SyncManagedSubscription, choice: dict[str, Any], limit: int | None, count: int
) -> Decided:
    done = _DONE[decision]
    change = managed.retry if decision is Decision.RETRY else managed.skip
    moved = 0
    # What is said comes when the bar has gone: both are on one line else.
    try:
        with ProgressBar(decision.name.lower(), count or None) as bar, StepInterrupt() as interruption:

            def on_batch(so_far: int) -> None:
                nonlocal moved
                moved = so_far
                bar.advance_to(moved, f"{moved:,} of {count:,}")
                interruption.check()

            return change(**choice, limit=limit, on_batch=on_batch)
    except StepsInterrupted:
        print_note(f"{done} {moved:,} of {count:,}{_GO_ON}")
        raise KeyboardInterrupt from None
    except KeyboardInterrupt:
        # What was under way is done as a whole or not at all.
        print_note(f"{done} {moved:,} of {count:,}, or {MAX_DECISION_DELIVERIES:,} more{_GO_ON}")
        raise


def _print_refused(refused: dict[int, str]) -> None:
    for position in list(refused)[:MAX_NAMED_POSITIONS]:
        print_note(f"position {position}: {refused[position]}")
    if len(refused) > MAX_NAMED_POSITIONS:
        print_note(f"and {len(refused) - MAX_NAMED_POSITIONS:,} more were refused")


def _remark(decision: Decision, info: SubscriptionInfo) -> str:
    """Return why nothing will happen now; empty if it will."""
    what = "they are looked at" if decision is Decision.RETRY else "what waits behind them is looked at"
    if info.status == "waiting":
        return f"; nobody runs {info.group}/{info.name} now: {what} when its program starts"
    if info.status == "paused":
        return f"; {info.group}/{info.name} is paused: {what} when it goes on"
    return ""


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"
