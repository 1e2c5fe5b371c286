"""Where a message is, in a sentence."""

from datetime import datetime
from typing import TYPE_CHECKING

from milepost.progress.tracing import COUNTED

if TYPE_CHECKING:
    from milepost.engine.trace.traced import Neighbour, Traced


def sentence(traced: "Traced") -> str:
    """What became of a message, for a person; one line, as far as the texts in it are."""
    parts = [_of_state(traced), traced.note]
    return "; ".join(part for part in parts if part)


def _of_state(traced: "Traced") -> str:
    match traced.state:
        case "filtered":
            return f"{'filtered out' if traced.reached else 'will be filtered out'}: {traced.why}"
        case "not selected" | "before its start" | "unsure":
            return f"{traced.state}: {traced.why}"
        case "in flight":
            return _listed(f"in flight{_with(traced)}{_since(traced)}", traced.stopped, _holds(traced))
        case "retrying":
            return _listed(f"retrying{_after(traced)}", _next(traced), traced.stopped, _holds(traced))
        case "parked":
            return _listed(f"parked{_since(traced)}{_after(traced)}", _holds(traced))
        case "waiting":
            return f"waiting{_behind(traced.waiting_behind) or ', the next of its key'}"
        case "unrouted":
            return _listed(f"unrouted{_since(traced)}, no consumer takes it", _holds(traced))
        case "skipped":
            how = f": {traced.why}" if traced.why else " by a person"
            return f"skipped{how}{_at(traced)}{_after(traced)}"
        case "not reached":
            return _listed(f"not reached: {_distance(traced)}", traced.stopped, _will_wait(traced), traced.why)
        case "done":
            return "done"


def _listed(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part)


def moment(time: datetime) -> str:
    """A time as a person reads it, by this machine's zone."""
    return f"{time.astimezone():%Y-%m-%d %H:%M:%S}"


def _with(traced: "Traced") -> str:
    return f" with {traced.owner}" if traced.owner else ""


def _since(traced: "Traced") -> str:
    return f" since {moment(traced.since)}" if traced.since else ""


def _at(traced: "Traced") -> str:
    return f" at {moment(traced.since)}" if traced.since else ""


def _after(traced: "Traced") -> str:
    """Attempts and why the last one failed."""
    attempts = "1 attempt" if traced.total == 1 else f"{traced.total:,} attempts"
    reason = f": {_one_line(traced.reason)}" if traced.reason else ""
    return f" after {attempts}{reason}" if traced.total else reason


def _one_line(text: str) -> str:
    first, *rest = text.strip().splitlines() or [""]
    return f"{first} …" if rest else first


def _next(traced: "Traced") -> str:
    return f"next at {moment(traced.due)}" if traced.due else ""


def _holds(traced: "Traced") -> str:
    if not traced.holds:
        return ""
    more = " or more" if traced.holds >= COUNTED else ""
    first = f", first {_named(traced.holds_first[0])}" if traced.holds_first else ""
    return f"{traced.holds:,}{more} wait{'s' if traced.holds == 1 else ''} behind it{first}"


def _named(neighbour: "Neighbour") -> str:
    if neighbour.stream is None:
        return f"position {neighbour.position:,}"
    return f"{neighbour.stream} version {neighbour.version} (position {neighbour.position:,})"


def _behind(neighbour: "Neighbour | None") -> str:
    return "" if neighbour is None else f" behind {_named(neighbour)}, which is {neighbour.state}"


def _will_wait(traced: "Traced") -> str:
    return f"and will wait{_behind(traced.waiting_behind)}" if traced.waiting_behind else ""


def _distance(traced: "Traced") -> str:
    if traced.behind is None or traced.lane is None:
        return "no lane has come so far"
    positions = "1 position" if traced.behind == 1 else f"{traced.behind:,} positions"
    return f"lane {traced.lane} is {positions} behind it{f', with {traced.owner}' if traced.owner else ''}"
