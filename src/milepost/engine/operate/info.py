"""The state of subscriptions and their statistics, as `mp.subscriptions()` and `manage(…)` return them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from milepost.dispatch import LimitReached
from milepost.engine.declare.consumer_options import ConsumerSubscriptionOptions
from milepost.engine.declare.declaration import unknown_subscription
from milepost.engine.observe.lag import Lag, add_held_positions, compute_lags, positions_not_passed
from milepost.engine.observe.statistics import (
    NO_STATISTICS,
    OwnerStatistics,
    SubscriptionStatistics,
    Unrouted,
    percentile,
)
from milepost.engine.runtime import Runtime, find_subscription, subscription_store
from milepost.errors import MilepostError, UnknownSubscription
from milepost.log.protocol import HeldBack
from milepost.progress.protocol import SubscriptionRecord
from milepost.progress.reports import ConsumerOwnerReport, SubscriptionState

Status = Literal["running", "paused", "stalled", "stopped", "waiting"]


class LaneInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One lane of a subscription."""

    number: int
    owner: str | None
    """The worker that has it, if one has: its machine, its process and a name of its own."""
    since: datetime | None
    """Since when."""
    stopped: LimitReached | None = None
    """The limit of rows at which it reads no further, if it is there, with the key or the filters."""
    position: int
    """Of its cursor: everything up to there is handled, has a row, or is not this lane's."""


class HeldBy(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest transaction that holds the horizon back. `str()` says who it is, in words."""

    pid: int | None
    """The process of PostgreSQL that it runs in; None: it is prepared."""
    prepared: str | None
    """The name under which it is prepared, if it is."""
    application: str
    """What its connection calls itself."""
    state: str
    """What it does, as `pg_stat_activity` says."""
    seconds: float | None
    """How long it has been open; None: this role may not see that."""
    ended_by: str
    """The statement that ends it."""
    others: int
    """How many more hold the horizon as well."""
    words: str
    """All of it in words, with the number of others."""

    @classmethod
    def of(cls, held: HeldBack) -> "HeldBy | None":
        """Return who holds it for longer than any short append takes; None: nobody does."""
        if not held.lasting:
            return None
        holder, others = held.lasting[0], len(held.lasting) - 1
        return cls(
            pid=holder.pid,
            prepared=holder.gid,
            application=holder.application,
            state=holder.state,
            seconds=holder.age,
            ended_by=holder.ended_by,
            others=others,
            words=f"{holder}{f', and {others:,} more' if others else ''}",
        )

    def __str__(self) -> str:
        return self.words


class SubscriptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a subscription stands."""

    group: str
    name: str
    status: Status
    """`running`; `paused` by a person; `stalled`: its messages fail; `stopped`: at least one of its lanes reads no
    further, since `max_waiting` or `max_unrouted` is reached; `waiting` for a program that runs it.

    One for pulling waits for no program: whoever pulls has what it needs.
    """
    stalled: str | None
    """Why it is stalled, if it is."""
    stopped: str | None = None
    """Why lanes read no further, if some do: which limit is reached, and behind which key or for which filters."""
    lag: Lag
    held_by: HeldBy | None = None
    """Who keeps back `lag.held_positions`, once that lasts for longer than a second."""
    rate: float
    """Messages that its workers handle, a second, over the last few."""
    in_flight: int
    """Messages that are with handlers or consumers, as told within the last few seconds; or that are pulled."""
    attempts: int = 0
    """Attempts at messages that its workers of the last day have ended, or that a process pulled and settled."""
    handling_seconds: float = 0.0
    """How long these took, together; a batch's time counts once. The mean of a while is what both grew by."""
    last_error: str | None
    """Why an attempt failed, the last that did within a day, as far as the server has not crashed since."""
    last_error_at: datetime | None
    retrying: int
    """Messages that failed and are tried again later."""
    waiting: int
    """Messages that wait behind others of their key; or, for pulling, to be pulled."""
    parked: int
    """Messages that wait for a person."""
    unrouted: int
    """Messages that no consumer wants yet."""
    barrier: str | None
    """Why nothing runs for a moment, or soon will not, if so: it is being moved, or its order changes."""
    replaying: int
    """How many positions that had been handled are still to be repeated."""
    owners: tuple[str, ...]
    """The workers that have its lanes."""
    outdated: tuple[str, ...]
    """Workers that wait, since newer ones run it with another definition."""
    lanes: tuple[LaneInfo, ...]
    settings: dict[str, Any] | None
    """All options of one that was created for consumers, by their names; None: a program declares it."""
    consumers: int
    """How many consumers it has, in all processes, as they told within the last seconds."""
    standby: tuple[str, ...]
    """Processes with consumers that stand by, since another owns it: they take over when that leaves."""


class SubscriptionOverview:
    """Looks at subscriptions: one question to whoever keeps progress, and a few to the log."""

    def __init__(self, runtime: Runtime) -> None:
        self._log = runtime.log
        self._progress = runtime.services.progress

    async def all(self) -> list[SubscriptionInfo]:
        """Every subscription of every group, by address."""
        head = (await self._log.current_horizon()).position
        held = await self._log.held_back()
        return await self._infos(await self._progress.standings(), head, held)

    async def one(self, group: str, name: str) -> SubscriptionInfo:
        """The subscription of this group and name; raises `UnknownSubscription`."""
        # The head comes first: what is appended after the cursors were read is not their lag.
        head = (await self._log.current_horizon()).position
        held = await self._log.held_back()
        return (await self._infos([await self.standing(group, name)], head, held))[0]

    async def standing(self, group: str, name: str) -> SubscriptionState:
        """What is stored of it; raises `UnknownSubscription`."""
        found = await self._progress.standings(group, name)
        if not found:
            raise await self._unknown(group, name)
        return found[0]

    async def _infos(
        self, standings: Sequence[SubscriptionState], head: int, held: HeldBack
    ) -> list[SubscriptionInfo]:
        behind = [positions_not_passed((lane.cursor for lane in standing.lanes), head) for standing in standings]
        found = zip(standings, await compute_lags(behind, self._log), strict=True)
        return [_info(standing, lag, held) for standing, lag in found]

    async def _unknown(self, group: str, name: str) -> UnknownSubscription:
        known = [(standing.group, standing.name) for standing in await self._progress.standings()]
        return unknown_subscription(group, name, known)


def _info(standing: SubscriptionState, lag: Lag, held: HeldBack) -> SubscriptionInfo:
    lag = add_held_positions(lag, [lane.cursor for lane in standing.lanes], held)
    return SubscriptionInfo(
        group=standing.group,
        name=standing.name,
        status=_status(standing),
        stalled=standing.stalled,
        stopped=_stopped(standing),
        lag=lag,
        held_by=HeldBy.of(held) if lag.held_positions else None,
        rate=standing.told.rate,
        in_flight=standing.told.in_flight,
        attempts=standing.told.attempts,
        handling_seconds=standing.told.handling_seconds,
        last_error=standing.told.error,
        last_error_at=standing.told.error_at,
        retrying=standing.retrying,
        waiting=standing.waiting,
        parked=standing.parked,
        unrouted=standing.unrouted,
        barrier=standing.barrier,
        replaying=sum(lane.replay.beyond(lane.cursor.position).size for lane in standing.lanes if lane.replay),
        owners=tuple(sorted({lane.owner for lane in standing.lanes if lane.owner is not None})),
        lanes=tuple(
            LaneInfo(
                number=lane.number,
                owner=lane.owner,
                since=lane.since,
                stopped=lane.stopped,
                position=lane.cursor.position,
            )
            for lane in standing.lanes
        ),
        outdated=standing.outdated,
        settings=None if standing.settings is None else ConsumerSubscriptionOptions.shown(standing.settings),
        consumers=standing.consumers,
        standby=standing.standby,
    )


def _status(standing: SubscriptionState) -> Status:
    if standing.status == "paused":
        return "paused"
    if not _is_pulled(standing) and not any(lane.held for lane in standing.lanes):
        return "waiting"
    if standing.stalled:
        return "stalled"
    return "stopped" if any(lane.stopped for lane in standing.lanes) else "running"


def _stopped(standing: SubscriptionState) -> str | None:
    limits = [lane.stopped for lane in standing.lanes if lane.stopped is not None]
    if not limits:
        return None
    several = f"{len(limits)} of {len(standing.lanes)} lanes: " if len(standing.lanes) > 1 else ""
    return f"{several}{limits[0]}"


def _is_pulled(standing: SubscriptionState) -> bool:
    return standing.settings is not None and standing.settings["tracking"] == "all"


_statistics_decoder = msgspec.json.Decoder(OwnerStatistics)
_NO_OWNER_STATISTICS = OwnerStatistics(NO_STATISTICS, ())


async def subscription_statistics(runtime: Runtime, group: str, name: str) -> SubscriptionStatistics:
    """How a subscription stands, as its owner told last."""
    record = await find_subscription(runtime, group, name)
    if record.in_code:
        raise MilepostError(
            f"{group}/{name} has handlers, not consumers: its `info` tells rate, in flight and errors"
        )
    told = await subscription_store(runtime).told(record.id)
    standing = await SubscriptionOverview(runtime).standing(group, name)
    by_owner = _NO_OWNER_STATISTICS if told.statistics is None else _statistics_decoder.decode(told.statistics)
    return SubscriptionStatistics(
        owner=told.owner,
        at=told.at,
        unrouted=standing.unrouted,
        oldest_unrouted=await _load_oldest_unrouted(runtime, told),
        consumers=by_owner.consumers,
        **{**msgspec.structs.asdict(by_owner.all), **_pull_statistics(record, standing)},
    )


def _pull_statistics(record: SubscriptionRecord, standing: SubscriptionState) -> dict[str, Any]:
    """What is known of one for pulling, which has no owner: who pulls tells it now and then."""
    if record.settings["tracking"] != "all":
        return {}
    told = standing.told
    latencies = sorted(told.latencies)
    return {
        "in_flight": told.in_flight,
        "rate": told.rate,
        **{f"latency_{percent}": percentile(latencies, percent) for percent in (50, 90, 99)},
        "last_error": told.error,
        "last_error_at": told.error_at,
    }


async def _load_oldest_unrouted(runtime: Runtime, told: ConsumerOwnerReport) -> Unrouted | None:
    if told.unrouted is None or told.unrouted_since is None:
        return None
    messages = await runtime.log.messages_at([told.unrouted])
    now = datetime.fromtimestamp(told.now, UTC)
    age = max(0.0, (now - messages[0].time).total_seconds()) if messages else None
    return Unrouted(position=told.unrouted, since=told.unrouted_since, age=age)
