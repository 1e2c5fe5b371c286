"""`milepost subscriptions`: list them with their lag, show one."""

import typer
from rich.text import Text

from milepost.cli import signals
from milepost.cli.options import Json, Schema, SubscriptionAddress, Url, make_milepost
from milepost.cli.output import (
    STATUS_STYLES,
    console,
    format_age,
    new_table,
    print_json,
    print_table,
    settings_table,
    visible,
)
from milepost.engine.operate.info import HeldBy, SubscriptionInfo

app = typer.Typer(rich_markup_mode="markdown")

COUNTS = ("lag", "age", "rate", "in flight", "retrying", "waiting", "parked", "unrouted")
"""The columns of counts in the tables of subscriptions."""


@app.callback(invoke_without_command=True)
def subscriptions(context: typer.Context, as_json: Json = False, url: Url = None, schema: Schema = None) -> None:
    """Lists every subscription of every group: its status, its lag, what needs attention.

    The lag is how many positions of the log it has not passed, and the age of the first message among them.

    **Example:** `milepost subscriptions --json`
    """
    if context.invoked_subcommand is not None:
        return
    found = signals.run_async(_load_all(url, schema))
    if as_json:
        print_json(found)
        return
    rows = new_table("subscription", "status", *COUNTS, "workers")
    for info in found:
        rows.add_row(
            visible(f"{info.group}/{info.name}"), _status_text(info), *_count_columns(info), str(len(info.owners))
        )
    print_table(rows)
    if held := max(
        (info for info in found if info.held_by), key=lambda info: info.lag.held_positions, default=None
    ):
        console().print(_held_in_words(held), soft_wrap=True)


@app.command("show")
def show_(address: SubscriptionAddress, as_json: Json = False, url: Url = None, schema: Schema = None) -> None:
    """Shows one subscription, with each of its lanes: who has it, since when, how far it is.

    Of one that was created for consumers it shows all settings too, which `update` changes.

    **Example:** `milepost subscriptions show billing/invoices`
    """
    info = signals.run_async(_load_one(address, url, schema))
    if as_json:
        print_json(info)
        return
    held = _holder_in_words(info.held_by) if info.held_by else None
    why = "".join(f", {visible(each)}" for each in (info.stalled, info.stopped, held) if each)
    console().print(f"{visible(f'{info.group}/{info.name}')}: {info.status}{why}")
    for line in _remarks(info):
        console().print(line)
    counts = new_table(*COUNTS)
    counts.add_row(*_count_columns(info))
    print_table(counts)
    lanes = new_table("lane", "position", "worker", "since")
    for lane in info.lanes:
        since = f"{lane.since.astimezone():%Y-%m-%d %H:%M:%S}" if lane.since else ""
        lanes.add_row(str(lane.number), str(lane.position), visible(lane.owner or ""), since)
    print_table(lanes)
    if info.settings is not None:
        print_table(settings_table(info.settings))


async def _load_all(url: str | None, schema: str | None) -> list[SubscriptionInfo]:
    async with make_milepost(url, schema, migrate="check") as mp:
        return await mp.subscriptions()


async def _load_one(address: str, url: str | None, schema: str | None) -> SubscriptionInfo:
    async with make_milepost(url, schema, migrate="check") as mp:
        return await mp.manage(address).info()


def _status_text(info: SubscriptionInfo) -> Text:
    status = Text(info.status, style=STATUS_STYLES[info.status])
    if info.held_by is not None:
        status.append(f", {_holder_in_words(info.held_by)}", style="bold red")
    return status


def _holder_in_words(held: HeldBy) -> str:
    return (
        f"held by pid {held.pid}" if held.pid else f"held by prepared transaction {visible(held.prepared or '')!r}"
    )


def _held_in_words(info: SubscriptionInfo) -> str:
    """Return a sentence on what is held back, by which transaction, and what ends it."""
    if info.held_by is None:
        return ""
    positions = "1 position is" if info.lag.held_positions == 1 else f"{info.lag.held_positions:,} positions are"
    return visible(f"{positions} held back by {info.held_by}; this ends it: {info.held_by.ended_by}")


def _count_columns(info: SubscriptionInfo) -> list[str]:
    counts = (info.in_flight, info.retrying, info.waiting, info.parked, info.unrouted)
    rate = f"{info.rate:,.0f}/s" if info.rate >= 10 else f"{info.rate:.2g}/s"
    return [f"{info.lag.positions:,}", format_age(info.lag.seconds), rate, *(f"{count:,}" for count in counts)]


def _remarks(info: SubscriptionInfo) -> list[str]:
    """Return the remarks on a subscription, one line each."""
    remarks = [_held_in_words(info)] if info.held_by else []
    if info.barrier is not None:
        remarks.append(f"held back: {visible(info.barrier)}")
    if info.outdated:
        workers = ", ".join(map(visible, info.outdated))
        remarks.append(f"of an older definition, waiting for those of the newer to end: {workers}")
    if info.replaying:
        remarks.append(f"replaying: {info.replaying:,} positions left")
    if info.settings is not None and info.settings["tracking"] != "all":
        others = f"; stand by: {', '.join(map(visible, info.standby))}" if info.standby else ""
        remarks.append(f"consumers: {info.consumers:,}{others}")
    if info.last_error is not None and info.last_error_at is not None:
        remarks.append(
            f"last error, at {info.last_error_at.astimezone():%Y-%m-%d %H:%M:%S}: {visible(info.last_error)}"
        )
    return remarks
