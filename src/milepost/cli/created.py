"""`milepost subscriptions create` and `update`: subscriptions for consumers, and their settings."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from milepost.cli.ending import Refusal
from milepost.cli.options import Json, Schema, Url, milepost
from milepost.cli.output import console, show, visible, write_json
from milepost.cli.progress import ProgressBar
from milepost.cli.settings import (
    Attempts,
    Category,
    CheckpointMessages,
    CheckpointSeconds,
    Delay,
    Factor,
    Jitter,
    KeepDone,
    Lease,
    MaxConsumers,
    MaxDelay,
    MaxUnrouted,
    MaxWaiting,
    OnPark,
    OrderedBy,
    Paused,
    StallAfter,
    StartAt,
    Strategy,
    Stream,
    Timeout,
    Tracking,
    Types,
    Where,
    Window,
    chosen,
)
from milepost.cli.subscriptions import Address, settings_table
from milepost.engine.info import SubscriptionInfo

_ITSELF = ("address", "paused", "concurrency", "if_exists", "as_json", "url", "schema")
"""What is no setting of the subscription."""


def create(
    address: Address,
    category: Category = None,
    stream: Stream = None,
    types: Types = None,
    where: Where = None,
    start: StartAt = None,
    paused: Paused = False,
    tracking: Tracking = None,
    strategy: Strategy = None,
    ordered_by: OrderedBy = None,
    max_consumers: MaxConsumers = None,
    window: Window = None,
    timeout: Timeout = None,
    attempts: Attempts = None,
    delay: Delay = None,
    factor: Factor = None,
    max_delay: MaxDelay = None,
    jitter: Jitter = None,
    on_park: OnPark = None,
    stall_after: StallAfter = None,
    max_waiting: MaxWaiting = None,
    max_unrouted: MaxUnrouted = None,
    keep_done: KeepDone = None,
    lease: Lease = None,
    checkpoint_seconds: CheckpointSeconds = None,
    checkpoint_messages: CheckpointMessages = None,
    if_exists: Annotated[
        str,
        typer.Option(
            metavar="error|update|ignore",
            help="What to do about one of this name: refuse, change all its settings to these, leave it.",
        ),
    ] = "error",
    as_json: Json = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Creates a durable subscription for consumers, or for pulling with `--tracking all`.

    **For consumers:** `milepost subscriptions create shipping --category order --strategy pinned`

    **For jobs:** `milepost subscriptions create emails --type order.cancelled --tracking all --timeout 300`
    """
    options = chosen(_settings(locals()), None) | {"paused": paused}
    with milepost(url, schema).sync as log, ProgressBar("waiting for the consumers"), _refused():
        managed = log.create_subscription(address, if_exists=if_exists, **options)  # type: ignore[arg-type]
        info = managed.info()
    if as_json:
        write_json(info)
        return
    console().print(f"{visible(f'{info.group}/{info.name}')}{', paused' if info.status == 'paused' else ''}:")
    show(settings_table(info.settings or {}))


def update(
    address: Address,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            show_default=False,
            help="For one with handlers: at most so many messages at once in a process; 0: as its program says.",
        ),
    ] = None,
    category: Category = None,
    stream: Stream = None,
    types: Types = None,
    where: Where = None,
    start: Annotated[str | None, typer.Option(hidden=True)] = None,
    tracking: Tracking = None,
    strategy: Strategy = None,
    ordered_by: OrderedBy = None,
    max_consumers: MaxConsumers = None,
    window: Window = None,
    timeout: Timeout = None,
    attempts: Attempts = None,
    delay: Delay = None,
    factor: Factor = None,
    max_delay: MaxDelay = None,
    jitter: Jitter = None,
    on_park: OnPark = None,
    stall_after: StallAfter = None,
    max_waiting: MaxWaiting = None,
    max_unrouted: MaxUnrouted = None,
    keep_done: KeepDone = None,
    lease: Lease = None,
    checkpoint_seconds: CheckpointSeconds = None,
    checkpoint_messages: CheckpointMessages = None,
    as_json: Json = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Changes settings of a subscription that was created, while its consumers run; the others stay.

    One with handlers is declared by its program: it can only be limited, at once and over restarts.

    **Example:** `milepost subscriptions update shipping --timeout 60 --where 'region == "EU"'`

    **With handlers:** `milepost subscriptions update billing/invoices --concurrency 2`
    """
    given = _settings(locals())
    if start is not None:
        raise Refusal(f"--start: it has begun already; instead: milepost subscriptions move {address} {start}")
    with milepost(url, schema, migrate="check").sync as log:
        managed = log.manage(address)
        stored = managed.info().settings
        changes = chosen(given, stored)
        if concurrency is not None:
            changes["concurrency"] = concurrency or None
        with ProgressBar("waiting for the consumers"), _refused():
            managed.update(**changes)
        _tell(managed.info(), changes, as_json)


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in _ITSELF}


def _tell(info: SubscriptionInfo, changes: Mapping[str, Any], as_json: bool) -> None:
    """How it stands after a change."""
    if as_json:
        write_json(info)
        return
    address = visible(f"{info.group}/{info.name}")
    if info.settings is None:
        most = changes["concurrency"]
        console().print(f"{address}: {f'at most {most:,} at once' if most else 'as its program says'}")
        return
    console().print(f"{address}:")
    show(settings_table({name: info.settings[name] for name in changes}))


@contextmanager
def _refused() -> Iterator[None]:
    """What the library says of a wrong value is said as it is."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise Refusal(str(error)) from None
