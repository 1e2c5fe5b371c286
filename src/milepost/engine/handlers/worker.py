"""A worker: one process's part in the subscriptions of its group."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from milepost.concurrency import DaemonThreads
from milepost.dispatch import Cursor
from milepost.engine.declare.subscription import Subscription
from milepost.engine.handlers.host import HandlerHost, OnFailure, RunnerBuilder
from milepost.engine.handlers.registrar import SubscriptionRegistrar
from milepost.engine.handlers.runner import Runner
from milepost.engine.handlers.slots import Slots
from milepost.engine.lanes.balancer import LaneBalancer
from milepost.engine.lanes.message_loader import MessageLoader
from milepost.engine.observe.emitter import EventEmitter
from milepost.engine.observe.listeners import ActiveListeners
from milepost.engine.runtime import Runtime
from milepost.errors import MilepostError
from milepost.log.append import Appender
from milepost.progress.postgres.transaction import HandlerDatabase
from milepost.progress.protocol import SubscriptionRecord, WorkerLease


class Worker:
    """Calls the handlers of a program for its share of lanes, until it is left."""

    def __init__(
        self,
        runtime: Runtime,
        appender: Appender,
        *,
        subscriptions: Sequence[Subscription],
        concurrency: int,
        grace: float,
        exits: bool,
        on_failure: OnFailure | None = None,
        audience: ActiveListeners | None = None,
    ) -> None:
        self._runtime = runtime
        self._appender = appender
        self._subscriptions = subscriptions
        self._services = runtime.services
        self._concurrency = concurrency
        self._on_failure = on_failure or (lambda delivery, error: False)
        self._audience = audience
        self._registrar = SubscriptionRegistrar(runtime, MessageLoader(runtime.log))
        self._exits = exits
        self._slots = Slots(concurrency, grace, runtime.suspect_isolation)
        self._threads = DaemonThreads(concurrency)
        self._balancer: LaneBalancer[HandlerHost] = LaneBalancer(runtime, grace=grace, on_change=self._serve_slots)
        lease = min(subscription.declaration.lease for subscription in subscriptions)
        self._sign = WorkerLease(self._balancer.id, lease)
        self._running: list[Runner] = []
        self._leaving = asyncio.Lock()
        self._has_left = False
        self.changed = asyncio.Event()
        """Set when something may have ended."""

    @property
    def id(self) -> str:
        """Its name among all workers."""
        return self._balancer.id

    @property
    def runners(self) -> dict[str, Runner]:
        """By the names of their subscriptions."""
        return {served.name: served.runner for served in self._balancer.served.values()}

    def is_blocked(self) -> bool:
        """Whether a handler keeps it from going on, or from ending. For another thread to ask, too."""
        return self._slots.is_blocked()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Works from the beginning of the block to its end; then what runs may end within the grace time."""
        async with self._connections() as transactions:
            await self._services.begin()
            self._balancer.clock.set(await self._services.progress.now())
            records = await self._registrar.all(self._subscriptions, self._sign)
            async with self._working(records, transactions):
                yield

    @asynccontextmanager
    async def _connections(self) -> AsyncIterator[HandlerDatabase | None]:
        """Connections for transactions of handlers, which keep them: one for each that may run at once."""
        if not any(subscription.takes_transaction for subscription in self._subscriptions):
            yield None
            return
        async with self._services.open_transactions(self._concurrency, self._sign.lease) as transactions:
            yield transactions

    @asynccontextmanager
    async def _working(
        self, records: Sequence[SubscriptionRecord], transactions: HandlerDatabase | None
    ) -> AsyncIterator[None]:
        sharing = self._balancer.running(self._sign.lease, is_blocked=self._slots.is_blocked, exits=self._exits)
        try:
            async with sharing as group:
                self._serve(records, transactions, group)
                handling = group.create_task(self._slots.run())
                ending = group.create_task(self._end_with_program(handling))
                for emitter in self._emitters():
                    emitter.started(self.id)
                try:
                    yield
                finally:
                    await self._leave(handling)
                    if self._slots.ending is None:
                        ending.cancel()
                    for emitter in self._emitters():
                        emitter.stopped(self.id)
                    handling.cancel()
                    for served in self._balancer.served.values():
                        await served.stop()
        finally:
            self._threads.close()
            if self._audience is not None:
                await self._audience.close()

    async def _end_with_program(self, handling: asyncio.Task[None]) -> None:
        """When a handler ends the program, leave in good order, so that its attempt is written; then raise it."""
        await self._slots.ended.wait()
        await self._leave(handling)
        if self._slots.ending is not None:
            raise self._slots.ending

    async def _leave(self, handling: asyncio.Task[None]) -> None:
        async with self._leaving:
            if not self._has_left:
                await self._balancer.leave([handling])
                self._has_left = True

    def _serve(
        self, records: Sequence[SubscriptionRecord], transactions: HandlerDatabase | None, group: asyncio.TaskGroup
    ) -> None:
        builder = RunnerBuilder(
            worker=self.id,
            runtime=self._runtime,
            appender=self._appender,
            concurrency=self._concurrency,
            lease=self._sign.lease,
            clock=self._balancer.clock,
            threads=self._threads,
            on_failure=self._on_failure,
            audience=self._audience,
            transactions=transactions,
            on_change=self._wake,
            on_lost=self._balancer.lose,
            on_report_due=self._balancer.balance_soon,
        )
        # Nothing is shared before all are there: this does not wait for anything.
        for subscription, one in zip(self._subscriptions, records, strict=True):
            self._balancer.served[one.id] = HandlerHost(
                subscription, one, builder, self._registrar, self._sign, group
            )
        self._serve_slots()

    def _serve_slots(self) -> None:
        runners = [served.runner for served in self._balancer.served.values()]
        if runners != self._running:
            self._running = runners
            self._slots.serve(runners)

    def _emitters(self) -> list[EventEmitter]:
        emitters = (served.runner.emitter for served in self._balancer.served.values())
        return [emitter for emitter in emitters if emitter is not None]

    def _wake(self) -> None:
        self._slots.wake()
        self.changed.set()

    # Idle

    async def idle(self) -> None:
        """Waits until everything that was appended by now, or by handlers meanwhile, is handled or cannot be."""
        await self._balancer.shared.wait()
        while True:
            head = (await self._runtime.log.current_horizon()).position
            while not await self._is_idle(head):
                self.changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await self.changed.wait()
            if (await self._runtime.log.current_horizon()).position == head:
                return

    async def _is_idle(self, head: int) -> bool:
        idle = True
        for served in list(self._balancer.served.values()):
            idle = await self._is_idle_one(served, head) and idle
        return idle

    async def _is_idle_one(self, served: HandlerHost, head: int) -> bool:
        if served.record.pending == "refused":
            raise MilepostError(f"{served.name}: {served.record.changed}")
        if served.record.status == "paused":
            return not served.runner.lanes
        if served.record.pending is not None or served.record.barrier is not None:
            return False
        runner = served.runner
        return runner.is_idle(head, None if runner.has_all_lanes else await self._stored_cursors(runner.name))

    async def _stored_cursors(self, name: str) -> dict[int, Cursor]:
        """Return how far its lanes are, but for those that a limit of rows keeps from going on."""
        standings = await self._services.progress.standings(self._runtime.group, name)
        lanes = [lane for standing in standings for lane in standing.lanes]
        return {lane.number: lane.cursor for lane in lanes if lane.stopped is None}
