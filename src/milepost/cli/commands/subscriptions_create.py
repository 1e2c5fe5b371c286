"""`milepost subscriptions create`, `update` and `sync`: create subscriptions, and change their settings."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, TypeVar

import typer

from milepost.cli.exit_status import CommandError, argument_errors
from milepost.cli.options import (
    Json,
    Program,
    Schema,
    SubscriptionAddress,
    Url,
    declared_subscriptions,
    load_program,
    make_milepost,
    parse_time,
)
from milepost.cli.output import ProgressBar, console, new_table, print_json, print_table, settings_table, visible
from milepost.dispatch import Retry
from milepost.dispatch.routing.routes import STRATEGIES
from milepost.engine.declare.declaration import Checkpoint, Start
from milepost.engine.declare.order import by_correlation, by_property
from milepost.engine.handlers.registrar import DeclaredSubscription
from milepost.engine.operate.info import SubscriptionInfo

T = TypeVar("T")

_WHAT = "What it gets"
_HOW = "How consumers share"
_FAILING = "What fails"
_INSIDE = "Inside"


def _option(name: str, metavar: str, help_: str, panel: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help_, rich_help_panel=panel, show_default=False)


Category = Annotated[
    list[str] | None, _option("--category", "NAME", "One category; several times: any of them; '': all.", _WHAT)
]
Stream = Annotated[
    list[str] | None, _option("--stream", "NAME", "One stream; several times: any of them; '': all.", _WHAT)
]
Types = Annotated[
    list[str] | None,
    _option("--type", "PATTERN", "One type, where * is a dotted part and > the rest; several times: any.", _WHAT),
]
Where = Annotated[
    str | None, _option("--where", "FILTER", "A filter over the messages' properties; '': none.", _WHAT)
]
StartAt = Annotated[
    str | None,
    _option(
        "--start",
        "PLACE",
        "beginning (the default), now, a time (2026-03-01T12:00:00Z, or 3h ago), or a position to begin after.",
        _WHAT,
    ),
]
Paused = Annotated[
    bool, typer.Option("--paused", help="It waits until somebody resumes it, if it is new.", rich_help_panel=_WHAT)
]
Tracking = Annotated[
    str | None,
    _option("--tracking", "failures|all", "all: a row for every message, for pulling. Else failures.", _WHAT),
]
Strategy = Annotated[
    str | None, _option("--strategy", "|".join(STRATEGIES), "Who gets the next message. Else round_robin.", _HOW)
]
OrderedBy = Annotated[
    str | None,
    _option(
        "--ordered-by",
        "none|stream|correlation|property:NAME",
        "What is handled one after the other. Else none.",
        _HOW,
    ),
]
MaxConsumers = Annotated[
    int | None,
    _option("--max-consumers", "N", "How many are served at a time; 0, and else: as many as come.", _HOW),
]
Window = Annotated[
    int | None, _option("--window", "N", "How many messages may be open or read ahead. Else 1,000.", _HOW)
]
Timeout = Annotated[
    float | None, _option("--timeout", "SECONDS", "For a delivery, which then counts as failed. Else 30.", _HOW)
]
Attempts = Annotated[
    int | None, _option("--attempts", "N", "Until a message is parked, the first included. Else 11.", _FAILING)
]
Delay = Annotated[float | None, _option("--delay", "SECONDS", "Before the second attempt. Else 5.", _FAILING)]
Factor = Annotated[
    float | None, _option("--factor", "F", "How much longer each following wait is. Else 2.", _FAILING)
]
MaxDelay = Annotated[float | None, _option("--max-delay", "SECONDS", "The longest wait. Else 240.", _FAILING)]
Jitter = Annotated[
    float | None,
    _option("--jitter", "SHARE", "By which a wait is longer or shorter at random. Else 0.1.", _FAILING),
]
OnPark = Annotated[
    str | None,
    _option(
        "--on-park", "block|continue", "Whether a parked message holds its key back. Else continue.", _FAILING
    ),
]
StallAfter = Annotated[
    int | None,
    _option("--stall-after", "N", "So many failures in a row stop it until one succeeds. Else 1,000.", _FAILING),
]
MaxWaiting = Annotated[
    int | None,
    _option("--max-waiting", "N", "Messages that may wait behind others of their key. Else 100,000.", _INSIDE),
]
MaxUnrouted = Annotated[
    int | None, _option("--max-unrouted", "N", "Messages that nobody may want yet. Else 100,000.", _INSIDE)
]
KeepDone = Annotated[
    float | None,
    _option(
        "--keep-done", "SECONDS", "For how long rows that are done are kept; 0, and else: not at all.", _INSIDE
    ),
]
Lease = Annotated[
    float | None,
    _option("--lease", "SECONDS", "After which a process that gave no sign is replaced. Else 30.", _INSIDE),
]
CheckpointSeconds = Annotated[
    float | None, _option("--checkpoint-seconds", "SECONDS", "Between two writes of progress. Else 0.2.", _INSIDE)
]
CheckpointMessages = Annotated[
    int | None, _option("--checkpoint-messages", "N", "After so many it is written at once. Else 1,000.", _INSIDE)
]

_RETRY = ("attempts", "delay", "factor", "max_delay", "jitter")
_CHECKPOINT = {"checkpoint_seconds": "seconds", "checkpoint_messages": "messages"}


def chosen_options(given: Mapping[str, Any], stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the library's options for those given. The parts of a policy that were not given stay as stored."""
    words = {name: value for name, value in given.items() if value is not None and value != []}
    retry = {name: words.pop(name) for name in _RETRY if name in words}
    checkpoint = {part: words.pop(name) for name, part in _CHECKPOINT.items() if name in words}
    options = {name: _CONVERSIONS.get(name, _unchanged)(value) for name, value in words.items()}
    if retry:
        options["retry"] = _make("", lambda: replace(Retry(**(stored or {}).get("retry", {})), **retry))
    if checkpoint:
        before = (stored or {}).get("checkpoint", asdict(Checkpoint()))
        options["checkpoint"] = _make("", lambda: Checkpoint(**{**before, **checkpoint}))
    return options


def _unchanged(value: Any) -> Any:
    return value


def _parse_names(values: list[str]) -> list[str] | None:
    return None if values == [""] else values


def _parse_order(text: str) -> Any:
    kind, _, name = text.partition(":")
    match kind:
        case "none" | "stream" | "correlation" if not name:
            return {"none": None, "stream": "stream", "correlation": by_correlation}[kind]
        case "property" if name:
            return _make("--ordered-by: ", lambda: by_property(name))
    raise CommandError(f"--ordered-by {text!r}: none, stream, correlation or property:NAME is wanted")


def _parse_start(text: str) -> Start:
    if text in ("beginning", "now"):
        return "now" if text == "now" else "beginning"
    return int(text) if text.isascii() and text.isdigit() else parse_time("--start", text)


def _make(name: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        raise CommandError(f"{name}{error}") from None


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "category": _parse_names,
    "stream": _parse_names,
    "types": _parse_names,
    "where": lambda text: text or None,
    "start": _parse_start,
    "ordered_by": _parse_order,
    "max_consumers": lambda count: count or None,
    "keep_done": lambda seconds: seconds or None,
}


_NOT_SETTINGS = ("address", "paused", "concurrency", "if_exists", "as_json", "url", "schema")
"""Parameters of `create` and `update` that are no settings of the subscription."""


def create(
    address: SubscriptionAddress,
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
    options = chosen_options(_given_settings(locals()), None) | {"paused": paused}
    with make_milepost(url, schema).sync as log, ProgressBar("waiting for the consumers"), argument_errors():
        managed = log.create_subscription(address, if_exists=if_exists, **options)  # type: ignore[arg-type]
        info = managed.info()
    if as_json:
        print_json(info)
        return
    console().print(f"{visible(f'{info.group}/{info.name}')}{', paused' if info.status == 'paused' else ''}:")
    print_table(settings_table(info.settings or {}))


def update(
    address: SubscriptionAddress,
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
    given = _given_settings(locals())
    if start is not None:
        raise CommandError(
            f"--start: it has begun already; instead: milepost subscriptions move {address} {start}"
        )
    with make_milepost(url, schema, migrate="check").sync as log:
        managed = log.manage(address)
        stored = managed.info().settings
        changes = chosen_options(given, stored)
        if concurrency is not None:
            changes["concurrency"] = concurrency or None
        with ProgressBar("waiting for the consumers"), argument_errors():
            managed.update(**changes)
        _print_changes(managed.info(), changes, as_json)


def _given_settings(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in _NOT_SETTINGS}


def _print_changes(info: SubscriptionInfo, changes: Mapping[str, Any], as_json: bool) -> None:
    """Print the settings that were changed, as they are now."""
    if as_json:
        print_json(info)
        return
    address = visible(f"{info.group}/{info.name}")
    if info.settings is None:
        most = changes["concurrency"]
        console().print(f"{address}: {f'at most {most:,} at once' if most else 'as its program says'}")
        return
    console().print(f"{address}:")
    print_table(settings_table({name: info.settings[name] for name in changes}))


def sync(
    program: Program,
    as_json: Json = False,
) -> None:
    """Creates the subscriptions that a program declares and that are not there yet. Nothing runs.

    `start="now"` is the moment of this command then. One that is declared with `paused=True` waits, also when its
    workers are there, until `milepost subscriptions resume`. Those that are there already stay as they are; what
    differs in the code comes into force when a worker starts.

    **Before a deploy:** `milepost subscriptions sync shop:mp`
    """
    mp = load_program(program)
    declared_subscriptions(program, mp)
    found = asyncio.run(mp.create_declared())
    if as_json:
        print_json(found)
        return
    rows = new_table("subscription", "status", "")
    for each in found:
        rows.add_row(visible(f"{each.group}/{each.name}"), each.status, visible(_outcome_in_words(each)))
    print_table(rows)


def _outcome_in_words(found: DeclaredSubscription) -> str:
    if found.differs is not None:
        return f"differs until a worker starts: {found.differs}"
    return "created" if found.created else "was there already"
