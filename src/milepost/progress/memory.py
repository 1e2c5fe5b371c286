"""Progress in memory: for tests and throw-away uses. Nothing of it outlives the process."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from milepost.dispatch import (
    Cursor,
    DeliveryRow,
    Exchange,
    ExchangeAnswer,
    ExchangeQuery,
    ExchangeWrite,
    HeldKey,
    LaneState,
    LoadedRow,
    RowChange,
    RowCounts,
    State,
)
from milepost.dispatch.breaker import breaker_state_after
from milepost.log.query import Since
from milepost.progress import definition_changes
from milepost.progress.definition_changes import ComparedDefinition
from milepost.progress.protocol import (
    ExchangeResult,
    LaneGrant,
    LocateRows,
    OutdatedDefinition,
    RolledBack,
    RowOnly,
    ServingStatus,
    StaleLane,
    SubscriptionDefinition,
    SubscriptionRecord,
    WorkerLease,
    stale_lane_error,
)
from milepost.progress.reports import LaneStatus, SubscriptionActivity, SubscriptionState, WorkerReport
from milepost.progress.rows import FoundRows, storable_moves

_UNLIMITED_ATTEMPTS = 2**62


@dataclass
class _Lane:
    cursor: Cursor
    revision: int = 1
    epoch: int | None = None
    released: bool = False
    rows: dict[int, DeliveryRow] = field(default_factory=dict)

    def has_rows(self) -> bool:
        return any(row.state is not State.SKIPPED for row in self.rows.values())


@dataclass
class _Subscription:
    id: int
    group: str
    name: str
    lanes: list[_Lane]
    definitions: list[tuple[str, str]]
    since: Since | None = None
    status: str = "running"
    reports: dict[str, WorkerReport] = field(default_factory=dict)
    streak: int = 0
    stalled: str | None = None

    def counts(self) -> RowCounts:
        states = [row.state for lane in self.lanes for row in lane.rows.values()]
        return RowCounts(states.count(State.WAITING), states.count(State.RETRYING), states.count(State.UNROUTED))


class MemoryProgress:
    """Progress of the programs that share this object. It keeps no rows of what is done."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._subscriptions: dict[int, _Subscription] = {}
        self._epochs = 0
        self._log_lives: list[UUID] = []
        """Of the log's server, the present one last."""

    async def open(self) -> None:
        """Nothing has to be opened."""

    async def close(self) -> None:
        """It stays as it is, for whoever else has it."""

    async def now(self) -> float:
        """The time that decides, in seconds since 1970."""
        return self._clock()

    # The log

    async def life(self) -> None:
        """Memory does not outlive its process."""
        return

    async def follow(self, log_life: UUID, survived_since: Callable[[UUID], int]) -> None:
        """Goes back to what survived: what was handled beyond that may be other messages now."""
        if log_life in self._log_lives:
            return
        if self._log_lives:
            self._go_back(survived_since(self._log_lives[-1]))
        self._log_lives.append(log_life)

    def _go_back(self, survived: int) -> None:
        for lane in (lane for one in self._subscriptions.values() for lane in one.lanes):
            lane.cursor = lane.cursor.up_to(survived)
            lane.rows = {position: row for position, row in lane.rows.items() if position <= survived}
            # Whoever has it knows it as it was.
            lane.revision += 1

    # Subscriptions

    async def declare(
        self, definitions: Sequence[SubscriptionDefinition], sign: WorkerLease | None = None
    ) -> list[SubscriptionRecord]:
        """Creates what is new, and tells what is there."""
        return [self._declare(definition) for definition in definitions]

    def _declare(self, given: SubscriptionDefinition) -> SubscriptionRecord:
        found = self._named(given.group, given.name)
        if found is None and (found := self._named(given.group, given.renamed_from)) is not None:
            found.name = given.name
        if found is None:
            if given.log_life is not None and not self._log_lives:
                # Where it starts was reckoned in this life of the log.
                self._log_lives.append(given.log_life)
            found = self._subscriptions[len(self._subscriptions) + 1] = _Subscription(
                id=len(self._subscriptions) + 1,
                group=given.group,
                name=given.name,
                lanes=[_Lane(given.start) for _ in range(given.lanes)],
                definitions=[(given.selects, given.orders)],
                since=given.since,
                status="paused" if given.paused else "running",
            )
            return _subscription_record(found, created=True)
        changed = _adopt_selection(found, given)
        return _subscription_record(
            found, changed=changed, pending="ready" if _is_reordered(found, given) else None
        )

    def _named(self, group: str, name: str | None) -> _Subscription | None:
        found = self._subscriptions.values()
        return next((one for one in found if (one.group, one.name) == (group, name)), None)

    # Ownership

    async def known(self, group: str) -> set[str]:
        """The names of the subscriptions of a group."""
        return {one.name for one in self._subscriptions.values() if one.group == group}

    async def look(self, sign: WorkerLease, serving: Sequence[ServingStatus]) -> dict[int, SubscriptionRecord]:
        """These subscriptions as workers of definitions of these numbers have to know them now."""
        return {
            one.id: _subscription_record(self._subscriptions[one.id], number=one.number)
            for one in serving
            if one.id in self._subscriptions
        }

    async def leave(self, worker: str) -> None:
        """Nobody asks who lives."""

    async def reorder(
        self,
        subscription: int,
        definition: SubscriptionDefinition,
        places: LocateRows,
        sign: WorkerLease | None = None,
    ) -> str | None:
        """Puts another order, or other lanes, in force: all begin at the lowest position."""
        found = self._subscriptions[subscription]
        if not _is_reordered(found, definition):
            return None
        before = _compared_definition(found)
        position = min(lane.cursor.position for lane in found.lanes)
        highest = max(lane.cursor.position for lane in found.lanes)
        rows = {at: row for lane in found.lanes for at, row in lane.rows.items() if at <= position}
        released = all(lane.epoch is None or lane.released for lane in found.lanes)
        revision = max(lane.revision for lane in found.lanes) + 1
        self._epochs += 1
        found.lanes = [_Lane(Cursor(position), revision, self._epochs, released) for _ in range(definition.lanes)]
        for at, lane, key in await places(sorted(rows)):
            found.lanes[lane].rows[at] = self._placed(rows[at], key)
        found.definitions.append((definition.selects, definition.orders))
        return definition_changes.describe_order_change(
            before, _compared_definition(found), position, highest - position
        )

    def _placed(self, row: DeliveryRow, key: str | None) -> DeliveryRow:
        """A row under another key; without one it waits for nobody."""
        placed = row.changed(key=key, revision=row.revision + 1)
        if key is None and row.state is State.WAITING:
            return placed.changed(state=State.RETRYING, due=self._clock())
        return placed

    async def take(
        self,
        subscription: int,
        lanes: Collection[int],
        number: int | None = None,
        acted: int | None = None,
        *,
        worker: str | None = None,
        log_life: UUID | None = None,
    ) -> list[LaneGrant]:
        """Fences whoever had these lanes, by a new epoch and revision, and reads what is stored."""
        found = self._subscriptions.get(subscription)
        if found is None or (log_life is not None and self._log_lives[-1:] != [log_life]):
            return []
        if number is not None and number < len(found.definitions):
            raise OutdatedDefinition(len(found.definitions))
        return [self._take(found, lane) for lane in sorted(lanes) if lane < len(found.lanes)]

    def _take(self, subscription: _Subscription, number: int) -> LaneGrant:
        lane = subscription.lanes[number]
        previous, unclean = lane.epoch, lane.epoch is not None and not lane.released
        self._epochs += 1
        lane.epoch, lane.released = self._epochs, False
        lane.revision += 1
        running = [lane.rows[at] for at in sorted(lane.rows) if lane.rows[at].state is State.RUNNING]
        state = LaneState(
            cursor=lane.cursor,
            now=self._clock(),
            rows=lane.has_rows(),
            running=[_loaded_row(row) for row in running],
            unclean=unclean,
            counts=subscription.counts(),
            streak=subscription.streak,
            stalled=subscription.stalled,
        )
        return LaneGrant(
            subscription=subscription.id,
            lane=number,
            epoch=self._epochs,
            revision=lane.revision,
            previous=previous,
            state=state,
        )

    async def release(self, held: LaneGrant, exchange: Exchange[Any] | None) -> None:
        """The last write of an owner, which leaves the lane in good order."""
        subscription, lane = self._fenced(held)
        if exchange is not None and exchange.write is not None:
            self._write(subscription, lane, exchange.write, _UNLIMITED_ATTEMPTS)
        else:
            lane.revision += 1
        lane.released = True

    async def report(self, worker: str, reports: Sequence[WorkerReport]) -> None:
        """What a worker does."""
        for report in reports:
            if report.subscription in self._subscriptions:
                self._subscriptions[report.subscription].reports[worker] = report

    async def standings(self, group: str | None = None, name: str | None = None) -> list[SubscriptionState]:
        """How all subscriptions stand, or the one of this group and name, in the order of their addresses."""
        found = self._subscriptions.values()
        asked = [one for one in found if name is None or (one.group, one.name) == (group, name)]
        return [_subscription_state(one) for one in sorted(asked, key=lambda one: (one.group, one.name))]

    # Exchanges

    async def exchange(
        self, held: LaneGrant, exchange: Exchange[Any], *, stall_after: int, on_park: str, connection: Any = None
    ) -> ExchangeResult:
        """What is to be written, then what is asked. There is no transaction that it could be part of."""
        if connection is not None:
            raise TypeError("connection: progress in memory is in nobody's transaction")
        subscription, lane = self._fenced(held)
        moved: list[bool] = []
        if exchange.write is not None:
            moved = self._write(subscription, lane, exchange.write, stall_after)
            held = replace(held, revision=lane.revision)
        asked: dict[str, Any] = {}
        if exchange.ask is not None:
            found = _AskAnswerer(lane.rows, exchange.ask, continues=on_park == "continue").found()
            asked = found.answers(exchange.ask)
        answer: ExchangeAnswer[RowOnly] = ExchangeAnswer(
            moved=moved,
            rows=lane.has_rows(),
            counts=subscription.counts(),
            streak=subscription.streak,
            stalled=subscription.stalled,
            **asked,
        )
        return ExchangeResult(held, answer, self._clock())

    async def write(self, cursors: Sequence[tuple[LaneGrant, ExchangeWrite]]) -> list[ExchangeResult | None]:
        """Cursors and nothing else; None stands for a lane that has another owner."""
        found: list[ExchangeResult | None] = []
        for held, write in cursors:
            exchange: Exchange[Any] = Exchange(self._clock(), write, None)
            try:
                found.append(await self.exchange(held, exchange, stall_after=_UNLIMITED_ATTEMPTS, on_park="block"))
            except StaleLane:
                found.append(None)
        return found

    def _fenced(self, held: LaneGrant) -> tuple[_Subscription, _Lane]:
        subscription = self._subscriptions[held.subscription]
        lane = subscription.lanes[held.lane]
        if (lane.epoch, lane.revision) != (held.epoch, held.revision):
            raise stale_lane_error()
        return subscription, lane

    def _write(
        self, subscription: _Subscription, lane: _Lane, write: ExchangeWrite, stall_after: int
    ) -> list[bool]:
        moves = storable_moves(write.moves)
        if not all(_is_at_revision(lane, move) for move in moves if move.required):
            raise RolledBack("a row that a move requires has another revision")
        moved = [_apply_move(lane, move) for move in moves]
        lane.cursor = write.cursor
        lane.revision += 1
        retrying = subscription.counts().retrying
        subscription.streak, subscription.stalled = breaker_state_after(
            subscription.streak, subscription.stalled, write.tally, retrying, stall_after
        )
        return moved


class _AskAnswerer:
    """What an owner asks, of a lane's rows."""

    def __init__(self, rows: dict[int, DeliveryRow], ask: ExchangeQuery, *, continues: bool) -> None:
        self._rows = [rows[position] for position in sorted(rows)]
        self._ask = ask
        self._continues = continues

    def found(self) -> FoundRows:
        """Everything that was asked for."""
        ask = self._ask
        due, next_due = self._due() if ask.due else ([], None)
        heads, heads_end = self._heads(ask.heads_after) if ask.heads_after is not None else ([], None)
        unrouted, end = self._unrouted(ask.unrouted_after) if ask.unrouted_after is not None else ([], None)
        most = dict.fromkeys([*(row.key for row in due), *heads], 1) | dict.fromkeys(ask.keys, ask.per_key)
        return FoundRows(
            held=self._held({key: count for key, count in most.items() if key is not None}),
            due=[_loaded_row(row) for row in due],
            next_due=next_due,
            heads=heads,
            heads_end=heads_end,
            unrouted=[_loaded_row(row) for row in unrouted],
            unrouted_end=end,
        )

    def _due(self) -> tuple[list[DeliveryRow], float | None]:
        """Rows that are due, the earliest first so that none is always too late; and when the next one is."""
        times = sorted((row.due, row.position, row) for row in self._elsewhere() if row.due is not None)
        told = [row for due, _, row in times if due <= self._ask.now][: self._ask.limit]
        return told, times[len(told)][0] if len(told) < len(times) else None

    def _heads(self, after: str) -> tuple[list[str], str | None]:
        keys = sorted({row.key for row in self._rows if row.key is not None and row.key > after})
        found = [key for key in keys if next((row.state for row in self._of(key)), None) is State.WAITING]
        if len(found) <= self._ask.limit:
            return found, None
        some = found[: self._ask.limit]
        return some, some[-1] if some else after

    def _unrouted(self, after: int) -> tuple[list[DeliveryRow], int | None]:
        routes, most = self._ask.routes, self._ask.unrouted_limit
        found = [
            row
            for row in self._elsewhere()
            if row.state is State.UNROUTED and row.position > after and (routes is None or row.route in routes)
        ]
        if len(found) <= most:
            return found, None
        return found[:most], found[most - 1].position if most else after

    def _held(self, most: dict[str, int]) -> dict[str, HeldKey[RowOnly]]:
        found = {key: list(self._of(key)) for key in most}
        return {
            key: HeldKey([_loaded_row(row) for row in rows[: most[key]]], len(rows) > most[key])
            for key, rows in found.items()
            if rows
        }

    def _of(self, key: str) -> Iterable[DeliveryRow]:
        settled = (State.SKIPPED, State.PARKED) if self._continues else (State.SKIPPED,)
        return (row for row in self._rows if row.key == key and row.state not in settled)

    def _elsewhere(self) -> Iterable[DeliveryRow]:
        """Rows that the owner does not have in memory as they are."""
        return (row for row in self._rows if self._ask.holding.get(row.position) != row.revision)


def _loaded_row(row: DeliveryRow) -> LoadedRow[RowOnly]:
    return LoadedRow(row, RowOnly(row.position, row.size))


def _is_at_revision(lane: _Lane, move: RowChange) -> bool:
    row = lane.rows.get(move.position)
    return (row.revision if row else None) == move.replaces


def _apply_move(lane: _Lane, move: RowChange) -> bool:
    if not _is_at_revision(lane, move):
        return False
    if move.row is None:
        del lane.rows[move.position]
    else:
        lane.rows[move.position] = move.row
    return True


def _subscription_state(found: _Subscription) -> SubscriptionState:
    stopped = {each.lane: each.limit for report in found.reports.values() for each in report.stopped}
    counts, rows = found.counts(), [row for lane in found.lanes for row in lane.rows.values()]
    return SubscriptionState(
        id=found.id,
        group=found.group,
        name=found.name,
        status=found.status,
        stalled=found.stalled,
        waiting=counts.waiting,
        retrying=counts.retrying,
        unrouted=counts.unrouted,
        parked=sum(row.state is State.PARKED for row in rows),
        told=_subscription_activity(list(found.reports.values())),
        lanes=tuple(
            LaneStatus(
                number=number,
                cursor=lane.cursor,
                held=lane.epoch is not None and not lane.released,
                stopped=stopped.get(number),
            )
            for number, lane in enumerate(found.lanes)
        ),
    )


def _subscription_activity(reports: Sequence[WorkerReport]) -> SubscriptionActivity:
    """What all workers do together."""
    failures = [report for report in reports if report.error_at]
    failed = max(failures, key=lambda report: report.error_at or 0, default=None)
    return SubscriptionActivity(
        rate=sum(report.rate for report in reports),
        in_flight=sum(report.in_flight for report in reports),
        attempts=sum(report.attempts for report in reports),
        handling_seconds=sum(report.handling_seconds for report in reports),
        latencies=tuple(seconds for report in reports for seconds in report.latencies),
        error=failed.error if failed else None,
        error_at=datetime.fromtimestamp(failed.error_at or 0, UTC) if failed else None,
    )


def _subscription_record(
    found: _Subscription,
    *,
    number: int | None = None,
    created: bool = False,
    changed: str | None = None,
    pending: Literal["ready"] | None = None,
) -> SubscriptionRecord:
    return SubscriptionRecord(
        id=found.id,
        number=number or len(found.definitions),
        newest=len(found.definitions),
        lanes=len(found.lanes),
        orders=found.definitions[-1][1],
        status=found.status,
        since=found.since,
        created=created,
        changed=changed,
        pending=pending,
    )


def _adopt_selection(found: _Subscription, given: SubscriptionDefinition) -> str | None:
    """Takes over what a definition selects; what changed, in words."""
    selects, orders = found.definitions[-1]
    if selects == given.selects:
        return None
    before = _compared_definition(found)
    for lane in found.lanes:
        lane.revision += 1
    found.definitions.append((given.selects, orders))
    position = min(lane.cursor.position for lane in found.lanes)
    return definition_changes.describe_selection_change(before, _compared_definition(found), position)


def _compared_definition(found: _Subscription) -> ComparedDefinition:
    selects, orders = found.definitions[-1]
    return ComparedDefinition(selects=selects, orders=orders, lanes=len(found.lanes))


def _is_reordered(found: _Subscription, given: SubscriptionDefinition) -> bool:
    return found.definitions[-1][1] != given.orders or len(found.lanes) != given.lanes
