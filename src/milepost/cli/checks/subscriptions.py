"""Checks of subscriptions: their status, lanes, parked messages, workers and filters."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from milepost.cli.checks.finding import ExaminedDatabase, Finding, Verdict, shorten
from milepost.cli.output import format_age
from milepost.dispatch import LimitReached
from milepost.engine.declare.stored_definition import StoredSelection, decisive_parts, stored_selection
from milepost.filter.explain import Explanation, explain
from milepost.log.query import Selection
from milepost.names import category_hash, category_of
from milepost.progress.postgres.progress import PROGRAM

MAX_WORKERS = 1000
"""Workers that are looked at."""
MAX_WORKER_FINDINGS = 10
"""Lines of one check."""


@dataclass(frozen=True)
class _WorkerRow:
    """A worker, as the checks read it."""

    name: str
    group: str
    program: str
    silent: float
    """Seconds since its last beat."""
    lease: float
    lanes: int

    @property
    def is_alive(self) -> bool:
        return self.silent <= self.lease


async def workers(examined: ExaminedDatabase) -> list[Finding]:
    """Check for workers that stopped without deregistering."""
    known = await _load_workers(examined)
    living = [worker for worker in known if worker.is_alive]
    silent = [worker for worker in known if not worker.is_alive]
    if not silent:
        groups = Counter(worker.group for worker in living)
        words = ", ".join(f"{count} of group {group}" for group, count in sorted(groups.items()))
        return [Finding("workers", "ok", f"live: {words}" if words else "nobody works on subscriptions now")]
    served = {worker.group for worker in living}
    return shorten([_silent_worker(worker, worker.group in served) for worker in silent], MAX_WORKER_FINDINGS)


def _silent_worker(worker: _WorkerRow, has_others: bool) -> Finding:
    is_one = worker.lanes == 1
    lanes = f"its {worker.lanes} lane{'' if is_one else 's'}"
    if not worker.lanes:
        follows = "it had no lane; find out why it ended"
    elif has_others:
        follows = f"others take {lanes} within some seconds; find out why it ended"
    else:
        stands = f"{lanes} {'stands' if is_one else 'stand'} still"
        follows = f"nobody else works there, so {stands}: start its program again, with `milepost run`"
    return Finding(
        "workers",
        "problem" if worker.lanes and not has_others else "warning",
        f"{worker.name} of group {worker.group} was last heard of {format_age(worker.silent)} ago, and "
        f"its lease is {worker.lease:.0f} s: it was killed, is stopped or cut off; {follows}",
        worker.name,
    )


async def versions(examined: ExaminedDatabase) -> list[Finding]:
    """Check that all live workers run this version."""
    programs = Counter(worker.program for worker in await _load_workers(examined) if worker.is_alive)
    others = sorted(program for program in programs if program != PROGRAM)
    if not others:
        return [Finding("versions", "ok", f"this is {PROGRAM}, and so is everything that works")]
    return [
        Finding(
            "versions",
            "warning",
            f"{programs[program]} worker{'' if programs[program] == 1 else 's'} of {program}, while this is "
            f"{PROGRAM}: let the deploy end, or use the doctor of their version",
            program,
        )
        for program in others
    ]


async def _load_workers(examined: ExaminedDatabase) -> list[_WorkerRow]:
    return [_WorkerRow(*row) for row in await examined.progress.ask("workers", most=MAX_WORKERS)]


MAX_FILTERS = 200
"""Subscriptions whose filters are tried."""
SAMPLE_MESSAGES = 500
"""Messages that a filter is tried on."""
MIN_SAMPLE_MESSAGES = 20
"""Messages that have to be there before it says something that a filter matches none."""
MAX_FILTER_FINDINGS = 20
"""Lines of the check."""

Properties = dict[str, Any]


async def filters(examined: ExaminedDatabase) -> list[Finding]:
    """Check for filters that match none of the newest messages, or cannot be evaluated on any."""
    found = []
    rows = await examined.progress.ask("filters", most=MAX_FILTERS)
    for group, name, text in rows:
        chosen = stored_selection(text)
        if chosen is not None and (words := await _judge_filter(examined, chosen)) is not None:
            found.append(Finding("filters", "warning", f"{group}/{name}: {words}", f"{group}/{name}"))
    if found:
        return shorten(found, MAX_FILTER_FINDINGS)
    words = f"each of {len(rows)} matches something new" if rows else "no subscription has one"
    return [Finding("filters", "ok", words)]


async def _judge_filter(examined: ExaminedDatabase, chosen: StoredSelection) -> str | None:
    """Return what is wrong with a filter; None if nothing was found."""
    if chosen.where is None:
        return None
    tried = []
    for properties in await _load_sample(examined, chosen.selection):
        tried.append((explain(chosen.where, properties), properties))
        if tried[-1][0].value is True:
            return None
    newest = f"the newest {len(tried)} messages that it could match"
    if tried and all(explanation.problem for explanation, _ in tried):
        return f"its filter cannot be evaluated on any of {newest}: {_why_not(tried)}: mend it"
    if len(tried) >= MIN_SAMPLE_MESSAGES:
        return f"its filter matches none of {newest}: {_why_not(tried)}: is that meant?"
    return None


def _why_not(tried: list[tuple[Explanation, Properties]]) -> str:
    """Return what decided against one message: one with a hint if any has, else one that was evaluated."""
    hinted = [one for one in tried if one[0].problem is not None and one[0].problem.hint]
    evaluated = [one for one in tried if one[0].problem is None]
    return " and ".join(map(str, decisive_parts(*[*hinted, *evaluated, *tried][0])))


async def _load_sample(examined: ExaminedDatabase, wanted: Selection) -> list[Properties]:
    """Return the properties of the newest messages that fit a subscription but for its filter."""
    streams = sorted(wanted.streams or ())
    categories = [] if streams else sorted(wanted.categories or ())
    rows = await examined.ask(
        "sample",
        everything=not streams and not categories,
        hashes=[category_hash(category) for category in categories],
        streams=streams,
        each=max(1, SAMPLE_MESSAGES // max(1, len(streams) + len(categories))),
        most=SAMPLE_MESSAGES,
    )
    return [
        msgspec.json.decode(properties)
        for stream, type_, properties in rows
        if _is_selected(wanted, stream, type_)
    ]


def _is_selected(wanted: Selection, stream: str, type_: str) -> bool:
    return (wanted.categories is None or category_of(stream) in wanted.categories) and (
        wanted.types is None or wanted.types.match(type_)
    )


MAX_SUBSCRIPTIONS = 1000
"""Subscriptions that are looked at."""
MAX_PARKED_MESSAGES = 100_000
"""Parked messages among which the first is looked for."""
MAX_SUBSCRIPTION_FINDINGS = 20
"""Lines of one check."""


class _SubscriptionRow(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a subscription, as the checks read it."""

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
    """Lanes without an owner."""
    free_seconds: float | None
    position: int
    """Of the lane that is furthest behind."""

    @property
    def address(self) -> str:
        return f"{self.group}/{self.name}"


_decoder = msgspec.json.Decoder(_SubscriptionRow)


async def subscriptions(examined: ExaminedDatabase) -> list[Finding]:
    """Check the status, lanes, parked and unrouted messages of every subscription."""
    rows = await examined.progress.ask("subscriptions", most=MAX_PARKED_MESSAGES, subscriptions=MAX_SUBSCRIPTIONS)
    found = [_decoder.decode(row[0]) for row in rows]
    [[newest]] = await examined.ask("newest")
    return [
        *_findings_of(
            "status", found, _judge_status, "none is stalled, stopped, paused, at a barrier or of two definitions"
        ),
        *_findings_of("lanes", found, lambda one: _judge_lanes(one, newest), "each has a worker"),
        *_findings_of("parked", found, _judge_parked, "nothing waits for a person"),
        *_findings_of("unrouted", found, _judge_unrouted, "nothing waits for a consumer"),
    ]


def _findings_of(
    check: str,
    found: list[_SubscriptionRow],
    judge: Callable[[_SubscriptionRow], tuple[Verdict, str] | None],
    else_: str,
) -> list[Finding]:
    judged = [(one, verdict) for one in found if (verdict := judge(one)) is not None]
    if not judged:
        words = else_ if found else "there are no subscriptions"
        return [Finding(check, "ok", words)]
    findings = [Finding(check, verdict, f"{one.address} {words}", one.address) for one, (verdict, words) in judged]
    # What is wrong comes before what may be.
    findings.sort(key=lambda finding: finding.verdict != "problem")
    return shorten(findings, MAX_SUBSCRIPTION_FINDINGS)


def _judge_status(one: _SubscriptionRow) -> tuple[Verdict, str] | None:
    if one.status == "paused":
        return "warning", f"is paused: `milepost subscriptions resume {one.address}` lets it go on"
    if one.stalled:
        return (
            "problem",
            f"is stalled: {one.stalled}. One message at a time is tried until one succeeds: mend what fails, "
            f"which `milepost parked {one.address} --state retrying --state parked --verbose` shows",
        )
    if one.stopped:
        return "problem", f"reads no further: {one.stopped}. {_limit_advice(one, one.stopped)}"
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


def _limit_advice(one: _SubscriptionRow, limit: LimitReached) -> str:
    """Return the advice for a subscription that reached a limit."""
    if limit.limit == "max_unrouted":
        return (
            "Connect a consumer whose filter takes them, or skip them: "
            f"`milepost parked {one.address} --state unrouted` lists them"
        )
    return (
        "Mend what holds these keys, then retry or skip it: "
        f"`milepost parked {one.address} --state parked --state retrying` lists it; or raise max_waiting"
    )


def _judge_lanes(one: _SubscriptionRow, newest: int) -> tuple[Verdict, str] | None:
    if not one.free or one.status == "paused" or one.barrier:
        return None
    if not one.workers:
        return _judge_unserved(one, newest - one.position) if one.free == one.lanes else None
    if (one.free_seconds or 0) <= (one.lease or 0):
        return None
    return (
        "problem",
        f"has {one.free} of {one.lanes} lanes without an owner, for {format_age(one.free_seconds or 0)}, though "
        f"{one.workers} live worker{'' if one.workers == 1 else 's'} want it: they take free lanes every third of "
        "their lease, so look again; if it stays so, look at their logs: one with an older definition gets none",
    )


_SERVING_ADVICE = {
    "handlers": "start its program with `milepost run`",
    "consumers": "start a program that has a consumer for it",
}
"""The advice for a subscription without workers, by what takes its messages."""


def _judge_unserved(one: _SubscriptionRow, behind: int) -> tuple[Verdict, str] | None:
    if one.taken_by == "pulls":
        return _judge_unpulled(behind)
    what_to_do = f"{_SERVING_ADVICE[one.taken_by]}, or delete it with `milepost subscriptions delete`"
    left = []
    if behind > 0:
        left.append(f"{behind:,} position{'' if behind == 1 else 's'} behind")
    if one.retrying:
        left.append(f"{one.retrying:,} to be tried again")
    if left:
        return "problem", f"is served by nobody, with {' and '.join(left)}: {what_to_do}"
    return "warning", f"is served by nobody, and has nothing to do yet: {what_to_do}"


def _judge_unpulled(behind: int) -> tuple[Verdict, str] | None:
    """Judge a subscription that is pulled. Pulling may be rare, so a backlog is a warning only."""
    if behind <= 0:
        return None
    positions = f"{behind:,} position{'' if behind == 1 else 's'}"
    return "warning", f"has not been pulled for the last {positions}: see whether what pulls from it still runs"


def _judge_parked(one: _SubscriptionRow) -> tuple[Verdict, str] | None:
    if not one.parked:
        return None
    return (
        "warning",
        f"has {one.parked:,} parked, the first at position {one.first_parked} for "
        f"{format_age(one.parked_seconds or 0)}: see `milepost parked {one.address}`, then retry or skip",
    )


def _judge_unrouted(one: _SubscriptionRow) -> tuple[Verdict, str] | None:
    if not one.unrouted:
        return None
    return (
        "warning",
        f"has {one.unrouted:,} that no consumer takes, the first at position {one.first_unrouted} for "
        f"{format_age(one.unrouted_seconds or 0)}: connect a consumer whose filter matches, or skip them; "
        f"`milepost parked {one.address} --state unrouted` lists them",
    )
