"""The settings of a subscription for consumers, as options of commands."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, TypeVar

import typer

from milepost.cli.ending import Refusal
from milepost.cli.moment import moment
from milepost.dispatch import Retry
from milepost.dispatch.routes import STRATEGIES
from milepost.engine.checkpoint import Checkpoint
from milepost.engine.order import by_correlation, by_property
from milepost.engine.start import Start

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


def chosen(given: Mapping[str, Any], stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """The library's options for those that were given; what they leave out of a policy is as it is stored."""
    words = {name: value for name, value in given.items() if value is not None and value != []}
    retry = {name: words.pop(name) for name in _RETRY if name in words}
    checkpoint = {part: words.pop(name) for name, part in _CHECKPOINT.items() if name in words}
    options = {name: _CONVERSIONS.get(name, _same)(value) for name, value in words.items()}
    if retry:
        options["retry"] = _made("", lambda: replace(Retry(**(stored or {}).get("retry", {})), **retry))
    if checkpoint:
        before = (stored or {}).get("checkpoint", asdict(Checkpoint()))
        options["checkpoint"] = _made("", lambda: Checkpoint(**{**before, **checkpoint}))
    return options


def _same(value: Any) -> Any:
    return value


def _names(values: list[str]) -> list[str] | None:
    return None if values == [""] else values


def _order(text: str) -> Any:
    kind, _, name = text.partition(":")
    match kind:
        case "none" | "stream" | "correlation" if not name:
            return {"none": None, "stream": "stream", "correlation": by_correlation}[kind]
        case "property" if name:
            return _made("--ordered-by: ", lambda: by_property(name))
    raise Refusal(f"--ordered-by {text!r}: none, stream, correlation or property:NAME is wanted")


def _start(text: str) -> Start:
    if text in ("beginning", "now"):
        return "now" if text == "now" else "beginning"
    return int(text) if text.isascii() and text.isdigit() else moment("--start", text)


def _made(name: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        raise Refusal(f"{name}{error}") from None


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "category": _names,
    "stream": _names,
    "types": _names,
    "where": lambda text: text or None,
    "start": _start,
    "ordered_by": _order,
    "max_consumers": lambda count: count or None,
    "keep_done": lambda seconds: seconds or None,
}
