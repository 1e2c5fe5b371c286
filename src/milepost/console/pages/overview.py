"""The overview page: remarks on what needs attention, every subscription, the log, the workers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from litestar import get
from litestar.di import NamedDependency

from milepost.console.charts import RecentHistory
from milepost.console.forms import NEW_SUBSCRIPTION_FIELDS
from milepost.console.guard import needs
from milepost.console.request import ConsoleRequest, ConsoleResponse, NavItem
from milepost.console.snapshot import OverviewSnapshot
from milepost.console.templating import duration, several
from milepost.engine.operate.info import SubscriptionInfo
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeRule

Severity = Literal["problem", "warning", "notice"]
_SEVERITIES: Sequence[Severity] = ("problem", "warning", "notice")

HELD_SECONDS = 10.0
"""Seconds after which it is remarkable that a transaction holds the horizon: a slow request takes less."""
HELD_TOO_LONG_SECONDS = 60.0
"""Seconds after which holding the horizon is a problem and no longer a warning."""
NOT_PULLED_SECONDS = 60.0
"""Seconds after which a missing pull is remarkable: programs that pull connect for moments only."""
MAX_NAMED_SUBSCRIPTIONS = 3
"""Subscriptions that are named with the same remark, where there are more."""


@dataclass(frozen=True)
class Remark:
    """A remark on something that needs attention."""

    severity: Severity
    words: str
    subscription: SubscriptionInfo | None = None
    """The subscription that it is about, if it is about one."""
    kind: str = ""
    """The words that all subscriptions with such a remark share."""
    page: Literal["subscription", "parked"] = "subscription"
    """The page that the remark links to."""
    state: str = "parked"
    """With `parked`: the state of the deliveries."""


def attention_remarks(snapshot: OverviewSnapshot) -> Sequence[Remark]:
    """Return everything that needs a person, the worst first. Of many alike only some are named."""
    found = [*_log_remarks(snapshot), *_worker_remarks(snapshot)]
    for info in snapshot.subscriptions:
        found += _subscription_remarks(info)
    kinds: dict[tuple[Severity, str], list[Remark]] = {}
    for remark in found:
        kinds.setdefault((remark.severity, remark.kind), []).append(remark)
    shortened = [remark for alike in kinds.values() for remark in _shorten(alike)]
    shortened.sort(key=lambda remark: _SEVERITIES.index(remark.severity))
    return shortened


def _shorten(alike: Sequence[Remark]) -> Sequence[Remark]:
    """Return the first of some remarks that are alike, and one that counts the others."""
    left = len(alike) - MAX_NAMED_SUBSCRIPTIONS
    if left <= 1:
        return alike
    return [*alike[:MAX_NAMED_SUBSCRIPTIONS], Remark(alike[0].severity, f"and {left:,} more {alike[0].kind}")]


def _log_remarks(snapshot: OverviewSnapshot) -> Iterator[Remark]:
    for holder in snapshot.log.holders:
        if holder.age is not None and holder.age < HELD_SECONDS:
            continue
        is_long = (holder.age or 0) > HELD_TOO_LONG_SECONDS
        yield Remark(
            "problem" if is_long else "warning",
            f"Followers wait at position {snapshot.log.horizon:,} for a transaction that appended: {holder}",
            kind="transactions that followers wait for",
        )


def _worker_remarks(snapshot: OverviewSnapshot) -> Iterator[Remark]:
    for worker in snapshot.workers:
        if not worker.is_alive and (worker.lanes or worker.consumers):
            yield Remark(
                "warning",
                f"{worker.name} of group {worker.group} was last heard of {duration(worker.silent)} ago: it was "
                "killed, is stopped or cut off",
                kind="workers that are silent",
            )


def _subscription_remarks(info: SubscriptionInfo) -> Iterator[Remark]:
    if info.status == "stalled":
        yield Remark("problem", f"is stalled: {info.stalled}", info, "are stalled", "parked", "retrying")
    if info.stopped:
        yield from _stopped_remarks(info, info.stopped)
    if info.status == "waiting" and not info.barrier:
        yield from _unserved_remarks(info)
    if info.status == "running" and _is_pulled(info) and info.lag.seconds > NOT_PULLED_SECONDS and not info.rate:
        words = f"has waited {duration(info.lag.seconds)} for somebody to pull, with {_behind(info)}"
        yield Remark("warning", words, info, "have waited for somebody to pull")
    if info.parked:
        behind = several(info.waiting, "waits behind another", "wait behind others")
        words = f"has {several(info.parked, 'parked message')}{f'; {behind}' if info.waiting else ''}"
        yield Remark("warning", words, info, "have parked messages", "parked")
    if info.unrouted:
        words = f"has {several(info.unrouted, 'message')} that no consumer takes"
        yield Remark("warning", words, info, "have messages that no consumer takes", "parked", "unrouted")
    if info.outdated:
        words = f"{several(len(info.outdated), 'worker waits', 'workers wait')}: newer ones run another definition"
        yield Remark("warning", words, info, "have workers that wait for newer ones")
    if info.status == "paused":
        yield Remark("notice", "is paused", info, "are paused")
    if info.barrier:
        yield Remark("notice", f"nothing of it runs for a moment: {info.barrier}", info, "are held back")


def _stopped_remarks(info: SubscriptionInfo, why: str) -> Iterator[Remark]:
    limits = {lane.stopped.limit for lane in info.lanes if lane.stopped is not None}
    state = "unrouted" if "max_unrouted" in limits else "parked" if info.parked else "retrying"
    yield Remark("problem", f"reads no further: {why}", info, "read no further", "parked", state)


def _unserved_remarks(info: SubscriptionInfo) -> Iterator[Remark]:
    left = [_behind(info)] if info.lag.positions else []
    left += [f"{info.retrying:,} to be tried again"] if info.retrying else []
    if left:
        yield Remark("problem", f"is served by nobody, with {' and '.join(left)}", info, "are served by nobody")


def _is_pulled(info: SubscriptionInfo) -> bool:
    return info.settings is not None and info.settings["tracking"] == "all"


def _behind(info: SubscriptionInfo) -> str:
    return f"{several(info.lag.positions, 'position')} behind"


NAV_ITEM = NavItem("Overview", "")


@dataclass(frozen=True)
class SubscriptionRow:
    """A row of the table of subscriptions."""

    info: SubscriptionInfo
    address: str
    held: int
    """Number of its lanes that have an owner."""
    lags: list[tuple[float, float]]
    """In the last minutes."""


def _subscription_row(info: SubscriptionInfo, history: RecentHistory) -> SubscriptionRow:
    address = f"{info.group}/{info.name}"
    held = sum(lane.owner is not None for lane in info.lanes)
    return SubscriptionRow(info, address, held, [(point.at, point.lag) for point in history.of(address)])


@get("/", opt=needs(TokenRole.READ, ScopeRule.ITSELF))
async def overview(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Show the overview."""
    history = console.live_pages.poller.history

    async def load(snapshot: OverviewSnapshot) -> Mapping[str, Any]:
        return {
            "snapshot": snapshot,
            "attention": attention_remarks(snapshot),
            "rows": [_subscription_row(info, history) for info in snapshot.subscriptions],
            "group": console.mp.settings["group"].value,
            "new": NEW_SUBSCRIPTION_FIELDS,
            "log_rates": history.log_rates(),
            "log_rate": history.log_rate(snapshot.taken),
        }

    return await console.live("overview.html", load)


HANDLERS = (overview,)
