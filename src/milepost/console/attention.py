"""What a person should look at first: found in a snapshot, the worst first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from milepost.console.snapshot import Snapshot
from milepost.console.words import duration, several
from milepost.engine.info import SubscriptionInfo

Gravity = Literal["problem", "warning", "notice"]
_ORDER: Sequence[Gravity] = ("problem", "warning", "notice")

HELD = 10.0
"""Seconds after which it is remarkable that a transaction holds the horizon: a slow request takes less."""
HELD_TOO_LONG = 60.0
"""Seconds after which holding the horizon is a problem and no longer a warning."""
NOT_PULLED = 60.0
"""Seconds after which it is remarkable that nobody pulls: whoever does is there for moments only."""
NAMED = 3
"""Subscriptions that are named with the same remark, where there are more."""


@dataclass(frozen=True)
class Remark:
    """One thing to look at."""

    gravity: Gravity
    words: str
    subscription: SubscriptionInfo | None = None
    """What it is about, if it is about one."""
    kind: str = ""
    """What is true of all subscriptions with such a remark."""
    page: Literal["subscription", "parked"] = "subscription"
    """Where one goes from here."""
    state: str = "parked"
    """With `parked`: which deliveries are meant."""


def attention(snapshot: Snapshot) -> Sequence[Remark]:
    """Everything that needs a person, the worst first; of many that are alike only some are named."""
    found = [*_of_log(snapshot), *_of_workers(snapshot)]
    for info in snapshot.subscriptions:
        found += _of_subscription(info)
    kinds: dict[tuple[Gravity, str], list[Remark]] = {}
    for remark in found:
        kinds.setdefault((remark.gravity, remark.kind), []).append(remark)
    shortened = [remark for alike in kinds.values() for remark in _shortened(alike)]
    shortened.sort(key=lambda remark: _ORDER.index(remark.gravity))
    return shortened


def _shortened(alike: Sequence[Remark]) -> Sequence[Remark]:
    """The first of some that are alike, and how many more there are."""
    left = len(alike) - NAMED
    if left <= 1:
        return alike
    return [*alike[:NAMED], Remark(alike[0].gravity, f"and {left:,} more {alike[0].kind}")]


def _of_log(snapshot: Snapshot) -> Iterator[Remark]:
    for holder in snapshot.log.holders:
        if holder.age is not None and holder.age < HELD:
            continue
        is_long = (holder.age or 0) > HELD_TOO_LONG
        yield Remark(
            "problem" if is_long else "warning",
            f"Followers wait at position {snapshot.log.horizon:,} for a transaction that appended: {holder}",
            kind="transactions that followers wait for",
        )


def _of_workers(snapshot: Snapshot) -> Iterator[Remark]:
    for worker in snapshot.workers:
        if not worker.lives and (worker.lanes or worker.consumers):
            yield Remark(
                "warning",
                f"{worker.name} of group {worker.group} was last heard of {duration(worker.silent)} ago: it was "
                "killed, is stopped or cut off",
                kind="workers that are silent",
            )


def _of_subscription(info: SubscriptionInfo) -> Iterator[Remark]:
    if info.status == "stalled":
        yield Remark("problem", f"is stalled: {info.stalled}", info, "are stalled", "parked", "retrying")
    if info.stopped:
        yield from _of_stopped(info, info.stopped)
    if info.status == "waiting" and not info.barrier:
        yield from _of_unserved(info)
    if info.status == "running" and _is_pulled(info) and info.lag.seconds > NOT_PULLED and not info.rate:
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


def _of_stopped(info: SubscriptionInfo, why: str) -> Iterator[Remark]:
    limits = {lane.stopped.limit for lane in info.lanes if lane.stopped is not None}
    state = "unrouted" if "max_unrouted" in limits else "parked" if info.parked else "retrying"
    yield Remark("problem", f"reads no further: {why}", info, "read no further", "parked", state)


def _of_unserved(info: SubscriptionInfo) -> Iterator[Remark]:
    left = [_behind(info)] if info.lag.positions else []
    left += [f"{info.retrying:,} to be tried again"] if info.retrying else []
    if left:
        yield Remark("problem", f"is served by nobody, with {' and '.join(left)}", info, "are served by nobody")


def _is_pulled(info: SubscriptionInfo) -> bool:
    return info.settings is not None and info.settings["tracking"] == "all"


def _behind(info: SubscriptionInfo) -> str:
    return f"{several(info.lag.positions, 'position')} behind"
