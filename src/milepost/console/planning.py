"""What would happen, in words: said before it does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from milepost.console.words import several
from milepost.engine.control import Plan
from milepost.engine.info import SubscriptionInfo
from milepost.engine.start import Start
from milepost.errors import InvalidMessage
from milepost.server.wire.place import place_of


@dataclass(frozen=True)
class Outlook:
    """What a change would do."""

    words: Sequence[str]
    grave: Sequence[str] = field(default=())
    """What cannot be undone."""


def place_in(form: Mapping[str, str], name: str) -> Start | None:
    """The place that a form names by `name`, `name-position` and `name-time`; None: it says none."""
    match form.get(name, ""):
        case "position":
            return place_of(name, form.get(f"{name}-position", "").strip())
        case "time":
            return _moment(name, form.get(f"{name}-time", ""))
        case "":
            return None
        case word:
            return place_of(name, word)


def _moment(name: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise InvalidMessage(name, "a time is wanted") from None


def of_move(plan: Plan) -> Outlook:
    """What a move would do."""
    words = [f"It goes on after position {plan.position:,}."]
    grave = []
    if plan.again:
        words.append(f"At most {several(plan.again, 'message comes', 'messages come')} again.")
    if plan.passed_over:
        grave.append(f"At most {several(plan.passed_over, 'message is', 'messages are')} never handled.")
    if plan.rows:
        grave.append(_forgotten(plan.rows))
    if not plan.again and not grave:
        words.append("Nothing comes again, and nothing is left out.")
    return Outlook(words, grave)


def of_replay(plan: Plan) -> Outlook:
    """What a replay would do."""
    words = [
        f"It goes back to position {plan.position:,} and repeats at most "
        f"{several(plan.again, 'message')}, marked as a replay; then it goes on where it was."
    ]
    return Outlook(words, [_forgotten(plan.rows)] if plan.rows else [])


def of_pause(info: SubscriptionInfo) -> Outlook:
    """What a pause would do."""
    first = (
        f"{several(info.in_flight, 'message')} in flight may end first; then nothing"
        if info.in_flight
        else "Nothing"
    )
    return Outlook(
        [
            f"{first} of it runs, in any process, until somebody resumes it. Restarts change nothing about that.",
            f"It is {several(info.lag.positions, 'position')} behind, and what is appended meanwhile waits.",
        ]
    )


def of_resume(info: SubscriptionInfo) -> Outlook:
    """What resuming would do."""
    return Outlook([f"It goes on where it was, {several(info.lag.positions, 'position')} behind."])


def of_delete(info: SubscriptionInfo) -> Outlook:
    """What deleting would do."""
    rows = {
        state: count for state in ("retrying", "waiting", "parked", "unrouted") if (count := getattr(info, state))
    }
    anew = "A program that declares it makes it anew when it starts, and begins at its start again."
    listed = f" and {several(sum(rows.values()), 'delivery', 'deliveries')} are" if rows else " is"
    return Outlook([anew] if info.settings is None else [], [f"Its progress{listed} forgotten for good."])


def _forgotten(rows: Mapping[str, int]) -> str:
    listed = ", ".join(f"{count:,} {state}" for state, count in sorted(rows.items()))
    return f"Deliveries that are forgotten: {listed}."


def of_retry(count: int) -> Outlook:
    """What retrying so many deliveries would do."""
    return Outlook([f"{several(count, 'message is', 'messages are')} tried now, and counted anew."])


def of_skip(count: int) -> Outlook:
    """What skipping so many would do."""
    lost = f"{several(count, 'message is', 'messages are')} passed over for good: nobody handles {_them(count)}."
    return Outlook([f"What waits behind {_them(count)} goes on."], [lost])


def _them(count: int) -> str:
    return "it" if count == 1 else "them"
