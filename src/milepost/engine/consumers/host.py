"""Host a subscription's consumers: hold its lane among other processes, report, and follow changes."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import msgspec

from milepost.concurrency import cancel_and_wait
from milepost.dispatch import Cursor, DeliveryRow, LaneState, LoadedRow
from milepost.engine.clock import Clock
from milepost.engine.consumers.consumer import REASON_DELETED, REASON_LOST
from milepost.engine.consumers.dispatcher import ConsumerDispatcher
from milepost.engine.declare.consumer_options import ConsumerSubscriptionOptions
from milepost.engine.lanes.balancer import LaneBalancer
from milepost.engine.lanes.held_lane import HeldLane
from milepost.engine.lanes.message_loader import MessageLoader, RowPlacer
from milepost.engine.observe.emitter import EventEmitter
from milepost.engine.observe.listeners import ActiveListeners
from milepost.engine.observe.statistics import OwnerStatistics
from milepost.engine.runtime import Runtime, subscription_store
from milepost.engine.subscription_logger import SubscriptionLogger
from milepost.errors import Unavailable
from milepost.log.message import Message
from milepost.progress.protocol import LaneGrant, StaleLane, SubscriptionRecord
from milepost.progress.reports import ConsumerPresence

LAST_WRITES_SECONDS = 5.0
"""Seconds for the last writes."""

R = TypeVar("R")


class ConsumerPeers:
    """Lives among others while subscriptions of one lease have consumers here; one heart beats for all.

    When the lease of one of them changes, the shortest holds for all that are in it.
    """

    def __init__(self, runtime: Runtime, lease: float, clock: Clock) -> None:
        self.balancer: LaneBalancer[ConsumerHost] = LaneBalancer(
            runtime, grace=LAST_WRITES_SECONDS, on_change=_do_nothing, clock=clock
        )
        self.lease = lease
        """Seconds after which others take over from this process, if it gives no sign of life."""
        self._leases: dict[object, float] = {}
        """What each of those that are in it wants."""
        self._begun = asyncio.Event()
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nobody can join any more."""
        return self._over.is_set() or (self._task is not None and self._task.done())

    @asynccontextmanager
    async def joined(self, member: object, lease: float) -> AsyncIterator[None]:
        """One more is in it from the beginning of the block to its end; the last one ends it."""
        self._leases[member] = lease
        try:
            await self.run_unless_over(self._begun.wait())
            yield
        finally:
            del self._leases[member]
            if not self._leases:
                await self._end()

    async def change_lease(self, member: object, lease: float) -> None:
        """One that is in it wants another lease."""
        self._leases[member] = lease
        shortest = min(self._leases.values())
        if shortest != self.lease:
            await self.balancer.change_lease(shortest)
            self.lease = shortest

    async def run_unless_over(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """What the coroutine gives; raises what ended the group, if that comes first."""
        if self._task is None:
            self._task = asyncio.create_task(self._live(), name="milepost-consumers")
        wanted = asyncio.create_task(coroutine)
        try:
            await asyncio.wait([wanted, self._task], return_when=asyncio.FIRST_COMPLETED)
            if not wanted.done():
                self._task.result()
            return wanted.result()
        finally:
            await cancel_and_wait(wanted)

    async def _live(self) -> None:
        async with self.balancer.running(self.lease, is_blocked=_is_never_blocked, exits=False):
            self._begun.set()
            await self._over.wait()
            await self.balancer.leave()

    async def _end(self) -> None:
        self._over.set()
        if self._task is not None:
            await asyncio.wait([self._task])


class ConsumerPeersByLease:
    """One for each lease."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._peers_by_lease: list[ConsumerPeers] = []

    def of(self, runtime: Runtime, lease: float) -> ConsumerPeers:
        """The one that can be joined."""
        self._peers_by_lease = [each for each in self._peers_by_lease if not each.is_over]
        for peers in self._peers_by_lease:
            if peers.lease == lease:
                return peers
        self._peers_by_lease.append(ConsumerPeers(runtime, lease, self._clock))
        return self._peers_by_lease[-1]


def _do_nothing() -> None:
    pass


def _is_never_blocked() -> bool:
    return False


CONSUMER_REPORT_SECONDS = 2.0
"""Seconds between two reports of what consumers do."""
UNCHANGED_REPORT_SECONDS = 5.0
"""Seconds after which it is told that nothing has changed."""


class ConsumerHost:
    """Keeps the subscription's lane while there are consumers, and follows what people want."""

    keeps = True

    def __init__(
        self,
        group: str,
        name: str,
        record: SubscriptionRecord,
        runtime: Runtime,
        *,
        clock: Clock,
        peers_by_lease: ConsumerPeersByLease,
        audience: ActiveListeners | None,
    ) -> None:
        self.record = record
        self.name = name
        self.logger = SubscriptionLogger(name, group)
        self._runtime = runtime
        self._stored = subscription_store(runtime)
        self._clock = clock
        self._peers_by_lease = peers_by_lease
        self._audience = audience
        self._peers = self._join()
        """Those with the same lease."""
        self._news = asyncio.Event()
        """Something is to be told at once."""
        self.runner = ConsumerDispatcher(
            ConsumerSubscriptionOptions.from_stored(name, record.settings),
            record,
            runtime=runtime,
            clock=self._clock,
            logger=self.logger,
            emitter=None if audience is None else EventEmitter(audience, name, group),
            on_lost=self._on_lost,
            is_elsewhere=lambda: record.id in self._peers.balancer.elsewhere,
            on_news=self._news.set,
            on_report_due=lambda: self._peers.balancer.balance_soon(),
        )
        self._follows = record.acted
        """The change of the subscription that is in force here, by the number of them."""
        self._is_leased = True
        """Whether its lease is in force here."""
        self._ready = asyncio.Event()
        self._stopping = False
        self._over = asyncio.Event()
        """It lives no longer, or anew among others."""
        self._task: asyncio.Task[None] | None = None

    def _join(self) -> ConsumerPeers:
        return self._peers_by_lease.of(self._runtime, self._lease)

    @property
    def _lease(self) -> float:
        """Seconds after which another process takes over, if this one gives no sign of life."""
        return float(self.record.settings["lease"])

    def _on_lost(self, owned: HeldLane, error: Exception) -> None:
        self._peers.balancer.lose(self.record.id, owned, error)

    # Living

    async def start(self) -> None:
        """Begins to live; returns when it was first looked whether the lane can be had."""
        self._task = asyncio.create_task(self._live(), name=f"milepost-consumers-{self.name}")
        self._task.add_done_callback(_retrieve_exception)
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait([self._task, ready], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(ready)
        if self._task.done():
            self._task.result()
        self.runner.log_standby_once()

    @property
    def is_over(self) -> bool:
        """Whether it lives no longer."""
        return self._stopping or (self._task is not None and self._task.done())

    async def stop(self) -> None:
        """Gives the lane back, and lives no longer."""
        self._end()
        if self._task is not None:
            with suppress(Exception):
                await asyncio.shield(self._task)

    def _end(self) -> None:
        self._stopping = True
        self._over.set()

    async def _live(self) -> None:
        try:
            await self._runtime.services.begin()
            self._clock.set(await self._runtime.services.progress.now())
            while not self._stopping:
                self._over.clear()
                self._peers = self._join()
                async with self._peers.joined(self, self._lease):
                    await self._live_in(self._peers)
        except Exception as error:
            only = _single_error(error)
            self.logger.broke("its consumers end", only)
            raise only from only.__cause__
        finally:
            self.runner.end(REASON_LOST)
            if self._audience is not None:
                await self._audience.close()

    async def _live_in(self, peers: ConsumerPeers) -> None:
        balancer, emitter = peers.balancer, self.runner.emitter
        if emitter is not None:
            emitter.started(balancer.id)
        balancer.served[self.record.id] = self
        try:
            async with asyncio.TaskGroup() as group:
                await self._serve(group, peers)
        except Exception as error:
            balancer.drop(self.record.id, _single_error(error))
            raise
        finally:
            with suppress(Unavailable):
                await self._stored.attend_no_more(self.record.id, balancer.id)
            if emitter is not None:
                emitter.stopped(balancer.id)

    async def _serve(self, group: asyncio.TaskGroup, peers: ConsumerPeers) -> None:
        dispatcher = self.runner
        works = (
            dispatcher.delivery_loop.run(),
            dispatcher.lane_reader.run(),
            dispatcher.checkpoint_writer.run(),
            self._report_presence(),
        )
        tasks = [group.create_task(work) for work in works]
        await peers.run_unless_over(peers.balancer.balanced())
        self._ready.set()
        await peers.run_unless_over(self._over.wait())
        await peers.balancer.stop_serving(self.record.id)
        for task in tasks:
            await cancel_and_wait(task)

    # Reporting

    async def _report_presence(self) -> None:
        """Tells what is done here, so that it can be seen from anywhere."""
        told: ConsumerPresence | None = None
        told_at = 0.0
        while True:
            self._news.clear()
            presence, now = self._presence(), asyncio.get_running_loop().time()
            if presence != told or now - told_at >= UNCHANGED_REPORT_SECONDS:
                with suppress(Unavailable):
                    await self._stored.attend(self.record.id, self._peers.balancer.id, presence)
                    told, told_at = presence, now
            with suppress(TimeoutError):
                async with asyncio.timeout(CONSUMER_REPORT_SECONDS):
                    await self._news.wait()

    def _presence(self) -> ConsumerPresence:
        dispatcher = self.runner
        return ConsumerPresence(
            acted=self._follows,
            owns=bool(dispatcher.lanes),
            consumers=len(dispatcher.consumers),
            statistics=self._statistics() if dispatcher.lanes else None,
            node=self._runtime.node,
        )

    def _statistics(self) -> OwnerStatistics:
        dispatcher = self.runner
        return OwnerStatistics(
            dispatcher.settler.numbers.figures(dispatcher.in_flight),
            tuple(
                consumer.statistics_with(dispatcher.in_flight_of(consumer))
                for consumer in dispatcher.consumers.values()
            ),
        )

    # Following what is stored

    @property
    def keep_done(self) -> float | None:
        """For how many seconds rows are kept of what is done; None: not at all."""
        return self.runner.options.declaration.keep_done

    @property
    def wanted(self) -> int | None:
        """The lane, while there are consumers and nothing keeps it from running."""
        if self._over.is_set() or not self.runner.consumers:
            return None
        return 0 if self.record.rests else 1

    @property
    def _is_reordered(self) -> bool:
        """Whether the order that is stored is in force here."""
        stored = ConsumerSubscriptionOptions.from_stored(self.name, self.record.settings).declaration
        is_rekeyed = not (self.record.rekeys and self.runner.lanes)
        return is_rekeyed and stored.orders == self.runner.options.declaration.orders

    async def learn(self, record: SubscriptionRecord) -> None:
        """It is stored like this now."""
        before, self.record = self.record, msgspec.structs.replace(record, number=record.newest)
        if record.status != before.status:
            self.logger.status(record.status)
            if self.runner.emitter is not None:
                self.runner.emitter.status(record.status)
        if (record.settings, record.since) != (before.settings, before.since) or not self._is_reordered:
            await self._adapt()
        await self._change_lease()
        if record.acted != before.acted:
            self.runner.poke()
        self._follow()
        self.runner.log_standby_once()

    async def _adapt(self) -> None:
        options, owned = (
            ConsumerSubscriptionOptions.from_stored(self.name, self.record.settings),
            self.runner.owned,
        )
        # The order comes last: by then nothing may be under way.
        first = options if owned is None else options.ordered_as(self.runner.options)
        passed = self.runner.change(first, self.record)
        if passed is not None and owned is not None:
            await self._adopt(owned, passed)
        if owned is not None and not self._is_reordered:
            await self._reorder(owned, options)

    async def _adopt(self, owned: HeldLane, passed: Cursor) -> None:
        """Another filter, from here on. Nothing is written meanwhile: that would be taken for the old one's."""
        with owned.unwritten():
            try:
                await self._stored.adopt(self.record.id, self.record.newest, passed)
            except Unavailable as error:
                self._on_lost(owned, error)

    async def _reorder(self, owned: HeldLane, options: ConsumerSubscriptionOptions) -> None:
        """Another order, from here on: rows get their keys by it, then what is in memory."""
        with owned.unwritten():
            while owned.exchanging:
                await owned.wait_for_change()
            if owned.is_leaving or owned.lost:
                # Whoever takes it next does it.
                return
            try:
                rows = await self._rekey(owned.held, options, owned.lane.stored_rows)
            except (StaleLane, Unavailable) as error:
                self._on_lost(owned, error)
                return
            if not owned.lost:
                self.runner.reorder(options, rows)

    async def _rekey(
        self, held: LaneGrant, options: ConsumerSubscriptionOptions, known: Mapping[int, int | None]
    ) -> dict[int, DeliveryRow]:
        """Gives rows their keys; what is stored now of those that are known."""
        record = self.record
        places = RowPlacer(options.declaration.ordered_by, 1, MessageLoader(self._runtime.log))
        positions = await self._stored.row_positions(record.id)
        placed = await places.all(positions)
        rows = await self._stored.rekey(held, record.newest, placed, known)
        if self.record is record:
            self.record = msgspec.structs.replace(record, rekeys=False)
        return rows

    async def prepare(self, held: LaneGrant, state: LaneState[Message[Any]]) -> LaneState[Message[Any]]:
        """A lane was taken: its rows may still have their keys by an order before."""
        if not self.record.rekeys:
            return state
        running = {loaded.row.position: loaded.row for loaded in state.running}
        known = {position: row.revision for position, row in running.items()}
        try:
            rows = running | await self._rekey(held, self.runner.options, known)
        except StaleLane as error:
            raise Unavailable("another process has taken the lane") from error
        return msgspec.structs.replace(
            state, running=[LoadedRow(rows[each.row.position], each.message) for each in state.running]
        )

    async def _change_lease(self) -> None:
        """Another lease is in force at once. Whoever wants a longer one than those it is among leaves them, when
        nothing of it is out."""
        self._is_leased = False
        with suppress(Unavailable):
            await self._peers.change_lease(self, self._lease)
            self._is_leased = True
        if self._peers.lease < self._lease and not self.runner.in_flight:
            self._over.set()

    def _follow(self) -> None:
        """Tells that a change is in force here."""
        if self._is_reordered and self._is_leased and self.record.acted != self._follows:
            self._follows = self.record.acted
            self._news.set()

    async def taken_back(self) -> None:
        """Whoever created it is not here."""
        return

    async def deleted(self) -> None:
        """It is there no more."""
        self.logger.warning("it was deleted: its consumers end")
        self.runner.end(REASON_DELETED)
        self._end()


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """What ended it was logged, and its consumers were told: nobody has to ask again."""
    if not task.cancelled():
        task.exception()


def _single_error(error: Exception) -> Exception:
    """The error of a group that has one, or the group."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
