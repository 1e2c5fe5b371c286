"""Checks of subscriptions: what keeps them from going on, and what waits for a person."""

from collections.abc import Callable
from typing import Literal

import msgspec

from milepost.cli.age import age
from milepost.cli.checks.finding import Examined, Finding, Verdict, shortened
from milepost.dispatch import LimitReached

MOST = 1000
"""Subscriptions that are looked at."""
MOST_PARKED = 100_000
"""Parked messages among which the first is looked for."""
NAMED = 20
"""Lines of one check."""


class _Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """How one stands."""

    group: str
    name: str
    taken_by: Literal["handlers", "consumers", "pulls"]
    status: str
    stalled: str | None
    stopped: LimitReached | None
    barrier: str | None
    barrier_seconds: float | None
    barrier_at: int | None
    retrying: int
    parked: int
    first_parked: int | None
    parked_seconds: float | None
    unrouted: int
    first_unrouted: int | None
    unrouted_seconds: float | None
    workers: int
    """Live ones that have handlers for it."""
    lease: float | None
    outdated: int
    """Workers that wait, because newer ones run another definition."""
    lanes: int
    free: int
    """Lanes that nobody has."""
    free_seconds: float | None
    position: int
    """Of the lane that is furthest behind."""

    @property
    def address(self) -> str:
        return f"{self.group}/{self.name}"


_decoder = msgspec.json.Decoder(_Subscription)


async def subscriptions(examined: Examined) -> list[Finding]:
    """Everything about every subscription."""
    rows = await examined.progress.ask("subscriptions", most=MOST_PARKED, subscriptions=MOST)
    found = [_decoder.decode(row[0]) for row in rows]
    [[newest]] = await examined.ask("newest")
    return [
        *_lines("status", found, _status, "none is stalled, stopped, paused, at a barrier or of two definitions"),
        *_lines("lanes", found, lambda one: _lanes(one, newest), "each has a worker"),
        *_lines("parked", found, _parked, "nothing waits for a person"),
        *_lines("unrouted", found, _unrouted, "nothing waits for a consumer"),
    ]


def _lines(
    check: str,
    found: list[_Subscription],
    judge: Callable[[_Subscription], tuple[Verdict, str] | None],
    else_: str,
) -> list[Finding]:
    judged = [(one, verdict) for one in found if (verdict := judge(one)) is not None]
    if not judged:
        words = else_ if found else "there are no subscriptions"
        return [Finding(check, "ok", words)]
    findings = [Finding(check, verdict, f"{one.address} {words}", one.address) for one, (verdict, words) in judged]
    # What is wrong comes before what may be.
    findings.sort(key=lambda finding: finding.verdict != "problem")
    return shortened(findings, NAMED)


def _status(one: _Subscription) -> tuple[Verdict, str] | None:
    if one.status == "paused":
        return "warning", f"is paused: `milepost subscriptions resume {one.address}` lets it go on"
    if one.stalled:
        return (
            "problem",
            f"is stalled: {one.stalled}. One message at a time is tried until one succeeds: mend what fails, "
            f"which `milepost parked {one.address} --state retrying --state parked --verbose` shows",
        )
    if one.stopped:
        return "problem", f"reads no further: {one.stopped}. {_past_the_limit(one, one.stopped)}"
    if one.barrier:
        where = "nothing runs" if one.barrier_at is None else f"nothing beyond position {one.barrier_at:,} runs"
        return (
            "warning",
            f"is at a barrier: {one.barrier}. Until that is done {where}; it ends by itself in "
            f"{one.barrier_seconds or 0:.0f} s unless whoever wants it goes on: look again then",
        )
    if one.outdated:
        older = "1 older one waits" if one.outdated == 1 else f"{one.outdated} older ones wait"
        return (
            "warning",
            f"is run by newer workers with another definition, and {older}: stop those, or if two programs "
            f"declare it give one another name or group. `milepost subscriptions show {one.address}` names them",
        )
    return None


def _past_the_limit(one: _Subscription, limit: LimitReached) -> str:
    """What to do about a limit that is reached."""
    if limit.limit == "max_unrouted":
        return (
            "Connect a consumer whose filter takes them, or skip them: "
            f"`milepost parked {one.address} --state unrouted` lists them"
        )
    return (
        "Mend what holds these keys, then retry or skip it: "
        f"`milepost parked {one.address} --state parked --state retrying` lists it; or raise max_waiting"
    )


def _lanes(one: _Subscription, newest: int) -> tuple[Verdict, str] | None:
    if not one.free or one.status == "paused" or one.barrier:
        return None
    if not one.workers:
        return _unserved(one, newest - one.position) if one.free == one.lanes else None
    if (one.free_seconds or 0) <= (one.lease or 0):
        return None
    return (
        "problem",
        f"has {one.free} of {one.lanes} lanes without an owner, for {age(one.free_seconds or 0)}, though "
        f"{one.workers} live worker{'' if one.workers == 1 else 's'} want it: they take free lanes every third of "
        "their lease, so look again; if it stays so, look at their logs: one with an older definition gets none",
    )


_SERVING = {
    "handlers": "start its program with `milepost run`",
    "consumers": "start a program that has a consumer for it",
}
"""What to do about a subscription that nobody serves, by what takes its messages."""


def _unserved(one: _Subscription, behind: int) -> tuple[Verdict, str] | None:
    if one.taken_by == "pulls":
        return _unpulled(behind)
    what_to_do = f"{_SERVING[one.taken_by]}, or delete it with `milepost subscriptions delete`"
    left = []
    if behind > 0:
        left.append(f"{behind:,} position{'' if behind == 1 else 's'} behind")
    if one.retrying:
        left.append(f"{one.retrying:,} to be tried again")
    if left:
        return "problem", f"is served by nobody, with {' and '.join(left)}: {what_to_do}"
    return "warning", f"is served by nobody, and has nothing to do yet: {what_to_do}"


def _unpulled(behind: int) -> tuple[Verdict, str] | None:
    """Nobody has to be there all the time, so this may be as it should be."""
    if behind <= 0:
        return None
    positions = f"{behind:,} position{'' if behind == 1 else 's'}"
    return "warning", f"has not been pulled for the last {positions}: see whether what pulls from it still runs"


def _parked(one: _Subscription) -> tuple[Verdict, str] | None:
    if not one.parked:
        return None
    return (
        "warning",
        f"has {one.parked:,} parked, the first at position {one.first_parked} for "
        f"{age(one.parked_seconds or 0)}: see `milepost parked {one.address}`, then retry or skip",
    )


def _unrouted(one: _Subscription) -> tuple[Verdict, str] | None:
    if not one.unrouted:
        return None
    return (
        "warning",
        f"has {one.unrouted:,} that no consumer takes, the first at position {one.first_unrouted} for "
        f"{age(one.unrouted_seconds or 0)}: connect a consumer whose filter matches, or skip them; "
        f"`milepost parked {one.address} --state unrouted` lists them",
    )
