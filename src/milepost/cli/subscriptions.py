"""`milepost subscriptions`: who follows the log, and how far behind."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from milepost.cli import loop
from milepost.cli.age import age
from milepost.cli.options import Json, Schema, Url, milepost
from milepost.cli.output import console, show, table, visible, write_json
from milepost.engine.info import HeldBy, SubscriptionInfo

app = typer.Typer(rich_markup_mode="markdown")

Address = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", help="group/name; the name alone is one of MILEPOST_GROUP.")
]

COUNTS = ("lag", "age", "rate", "in flight", "retrying", "waiting", "parked", "unrouted")
"""What is counted of a subscription."""

_STYLES = {
    "running": "green",
    "paused": "yellow",
    "waiting": "yellow",
    "stalled": "bold red",
    "stopped": "bold red",
}


@app.callback(invoke_without_command=True)
def subscriptions(context: typer.Context, as_json: Json = False, url: Url = None, schema: Schema = None) -> None:
    """Lists every subscription of every group: its status, its lag, what needs attention.

    The lag is how many positions of the log it has not passed, and the age of the first message among them.

    **Example:** `milepost subscriptions --json`
    """
    if context.invoked_subcommand is not None:
        return
    found = loop.run(_all(url, schema))
    if as_json:
        write_json(found)
        return
    rows = table("subscription", "status", *COUNTS, "workers")
    for info in found:
        rows.add_row(visible(f"{info.group}/{info.name}"), _status(info), *_numbers(info), str(len(info.owners)))
    show(rows)
    if held := max(
        (info for info in found if info.held_by), key=lambda info: info.lag.held_positions, default=None
    ):
        console().print(_held(held), soft_wrap=True)


@app.command("show")
def show_(address: Address, as_json: Json = False, url: Url = None, schema: Schema = None) -> None:
    """Shows one subscription, with each of its lanes: who has it, since when, how far it is.

    Of one that was created for consumers it shows all settings too, which `update` changes.

    **Example:** `milepost subscriptions show billing/invoices`
    """
    info = loop.run(_one(address, url, schema))
    if as_json:
        write_json(info)
        return
    held = _holder(info.held_by) if info.held_by else None
    why = "".join(f", {visible(each)}" for each in (info.stalled, info.stopped, held) if each)
    console().print(f"{visible(f'{info.group}/{info.name}')}: {info.status}{why}")
    for line in _remarks(info):
        console().print(line)
    counts = table(*COUNTS)
    counts.add_row(*_numbers(info))
    show(counts)
    lanes = table("lane", "position", "worker", "since")
    for lane in info.lanes:
        since = f"{lane.since.astimezone():%Y-%m-%d %H:%M:%S}" if lane.since else ""
        lanes.add_row(str(lane.number), str(lane.position), visible(lane.owner or ""), since)
    show(lanes)
    if info.settings is not None:
        show(settings_table(info.settings))


def settings_table(settings: Mapping[str, Any]) -> Table:
    """Settings of a subscription that was created, a line each."""
    rows = table("setting", "value")
    for name, value in settings.items():
        rows.add_row(name, visible(_in_words(value)))
    return rows


def _in_words(value: Any) -> str:
    match value:
        case None:
            return "none"
        case dict():
            return ", ".join(f"{name} {_in_words(part)}" for name, part in value.items())
        case list() | tuple():
            return ", ".join(map(_in_words, value))
        case int() | float():
            return f"{value:,}".removesuffix(".0")
        case _:
            return str(value)


async def _all(url: str | None, schema: str | None) -> list[SubscriptionInfo]:
    async with milepost(url, schema, migrate="check") as mp:
        return await mp.subscriptions()


async def _one(address: str, url: str | None, schema: str | None) -> SubscriptionInfo:
    async with milepost(url, schema, migrate="check") as mp:
        return await mp.manage(address).info()


def _status(info: SubscriptionInfo) -> Text:
    status = Text(info.status, style=_STYLES[info.status])
    if info.held_by is not None:
        status.append(f", {_holder(info.held_by)}", style="bold red")
    return status


def _holder(held: HeldBy) -> str:
    return (
        f"held by pid {held.pid}" if held.pid else f"held by prepared transaction {visible(held.prepared or '')!r}"
    )


def _held(info: SubscriptionInfo) -> str:
    """What is held back, by whom, and what ends that."""
    if info.held_by is None:
        return ""
    positions = "1 position is" if info.lag.held_positions == 1 else f"{info.lag.held_positions:,} positions are"
    return visible(f"{positions} held back by {info.held_by}; this ends it: {info.held_by.ended_by}")


def _numbers(info: SubscriptionInfo) -> list[str]:
    counts = (info.in_flight, info.retrying, info.waiting, info.parked, info.unrouted)
    rate = f"{info.rate:,.0f}/s" if info.rate >= 10 else f"{info.rate:.2g}/s"
    return [f"{info.lag.positions:,}", age(info.lag.seconds), rate, *(f"{count:,}" for count in counts)]


def _remarks(info: SubscriptionInfo) -> list[str]:
    """What else there is to say, a line each."""
    remarks = [_held(info)] if info.held_by else []
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
