"""The simulation's store with a twin: each step is done in both, and what they say is compared."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from msgspec.structs import replace

from dispatch.simulation.evidence import Evidence
from dispatch.simulation.message import Message
from dispatch.simulation.questions import Questions
from dispatch.simulation.setup import Setup
from dispatch.simulation.store import Refused, Store
from milepost.dispatch import Cursor, DeliveryRow, Exchange, ExchangeAnswer, LaneState, LoadedRow
from milepost.progress.protocol import LaneGrant, RolledBack, StaleLane, SubscriptionDefinition
from progress.keepers import Keeper, MemoryKeeper, PostgresKeeper

T = TypeVar("T")


class Told(Questions):
    """What the simulation answers; of rows that are due the earliest are told, which the contract leaves open."""

    def due(self) -> list[LoadedRow[Message]]:
        if not self._ask.due:
            return []
        due = [row for row in self._times() if row.due is not None and row.due <= self._ask.now]
        due.sort(key=lambda row: (row.due, row.position))
        return sorted(self._load_some(due[: self._ask.limit]), key=lambda loaded: loaded.row.position)


class TwinStore(Store):
    """Does everything in the simulation's store and in the one that is tested."""

    runner: asyncio.Runner
    keeper: Keeper
    exchanges = 0
    made = 0

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        TwinStore.made += 1
        given = SubscriptionDefinition(
            group="g",
            name=f"s{TwinStore.made}",
            lanes=setup.lanes,
            selects="",
            orders="",
            start=Cursor(0),
        )
        [opened] = self._run(self.keeper.progress.declare([given]))
        self._id = opened.id
        self._held: dict[int, LaneGrant] = {}
        """By the simulation's epochs."""
        self._workers: dict[int, int | None] = {}
        """Whose epochs they are, by those of the store that is tested."""

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    def take(self, lane: int, worker: int, definition: int, *, vanished: bool) -> LaneState[Message]:
        expected = super().take(lane, worker, definition, vanished=vanished)
        [held] = self._run(self.keeper.progress.take(self._id, [lane]))
        self._held[self.lanes[lane].epoch] = held
        self._workers[held.epoch] = worker
        unclean = held.state.unclean and self._workers.get(held.previous or 0) != worker
        assert plain(replace(held.state, now=0.0, unclean=unclean)) == plain(replace(expected, now=0.0))
        return expected

    def release(self, lane: int, epoch: int) -> None:
        current = self.lanes[lane].epoch == epoch
        super().release(lane, epoch)
        try:
            self._run(self.keeper.progress.release(self._held[epoch], None))
        except StaleLane:
            assert not current
        else:
            assert current

    def commit(
        self, lane: int, epoch: int, revision: int, exchange: Exchange[Message], evidence: Evidence
    ) -> ExchangeAnswer[Message] | Refused:
        expected = super().commit(lane, epoch, revision, exchange, evidence)
        actual = self._exchange(epoch, exchange, evidence)
        TwinStore.exchanges += 1
        assert plain(actual) == plain(expected), (exchange, plain(actual), plain(expected))
        return expected

    def _exchange(self, epoch: int, exchange: Exchange[Message], evidence: Evidence) -> object:
        settings = evidence.settings
        try:
            exchanged = self._run(
                self.keeper.progress.exchange(
                    self._held[epoch], exchange, stall_after=settings.stall_after, on_park=settings.on_park
                )
            )
        except StaleLane:
            return Refused.STALE
        except RolledBack:
            return Refused.UNMET
        self._held[epoch] = exchanged.held
        return exchanged.answer

    def _change(self, lane: int, position: int, **changes: Any) -> None:
        super()._change(lane, position, **changes)
        self._run(change(self.keeper, self._id, self.lanes[lane].rows[position]))

    def move(self, lane: int, position: int) -> None:
        super().move(lane, position)
        epoch = self._run(move(self.keeper, self._id, lane, position))
        self._workers[epoch] = self.lanes[lane].owner


async def change(keeper: Keeper, subscription: int, row: DeliveryRow) -> None:
    """A person changes a row."""
    if isinstance(keeper, MemoryKeeper):
        keeper.change(
            subscription, row.position, state=row.state, attempts=row.attempts, due=row.due, since=row.since
        )
    elif isinstance(keeper, PostgresKeeper):
        await keeper.run(
            "update {}.deliveries set state = %(state)s, attempts = %(attempts)s, due = to_timestamp(%(due)s), "
            "since = to_timestamp(%(since)s), revision = revision + 1 "
            "where subscription = %(subscription)s and position = %(position)s",
            subscription=subscription,
            position=row.position,
            state=row.state,
            attempts=row.attempts,
            due=row.due,
            since=row.since,
        )


async def move(keeper: Keeper, subscription: int, lane: int, position: int) -> int:
    """A person moves a lane's cursor; the new epoch."""
    if isinstance(keeper, MemoryKeeper):
        return keeper.memory_move(subscription, lane, position)
    assert isinstance(keeper, PostgresKeeper)
    rows = await keeper.run(
        "with gone as (delete from {}.deliveries d where d.subscription = %(subscription)s and d.lane = %(lane)s "
        "and d.position > %(position)s) "
        "insert into {}.cursors (subscription, lane, revision, epoch, taken, released, position) "
        "select c.subscription, c.lane, c.revision + 1, nextval('{}.epochs'), {}.clock(), c.released, "
        "%(position)s from {}.cursors c where c.subscription = %(subscription)s and c.lane = %(lane)s "
        "order by c.revision desc limit 1 returning epoch",
        subscription=subscription,
        lane=lane,
        position=position,
    )
    return int(rows[0][0])


def plain(value: object) -> object:
    """What two answers are compared by: times to the millisecond, messages by their positions."""
    if isinstance(value, Refused):
        return value
    if isinstance(value, LaneState):
        running = sorted((_row(loaded) for loaded in value.running), key=repr)
        return value.cursor, value.rows, running, value.unclean, value.counts, value.streak, value.stalled
    assert isinstance(value, ExchangeAnswer)
    return {
        "moved": list(value.moved),
        "held": {key: ([*map(_row, held.rows)], held.more) for key, held in value.held.items()},
        "due": [*map(_row, value.due)],
        "next_due": _time(value.next_due),
        "heads_end": value.heads_end,
        "unrouted": [*map(_row, value.unrouted)],
        "unrouted_end": value.unrouted_end,
        "rows": value.rows,
        "counts": value.counts,
        "breaker": (value.streak, value.stalled),
    }


def _row(loaded: LoadedRow[Any]) -> DeliveryRow:
    row: DeliveryRow = loaded.row
    assert loaded.message.position == row.position
    return row.changed(since=_time(row.since), due=_time(row.due))


def _time(time: float | None) -> float | None:
    return None if time is None else round(time, 3)
