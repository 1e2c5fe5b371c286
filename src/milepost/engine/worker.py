"""A worker: one process's part in the subscriptions of its group."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from milepost.dispatch import Cursor
from milepost.engine.builder import Builder, Failed
from milepost.engine.declaring import Declaring
from milepost.engine.listeners import Audience
from milepost.engine.place import Place
from milepost.engine.rows import Rows
from milepost.engine.runner import Runner
from milepost.engine.served import Served
from milepost.engine.sharing import Sharing
from milepost.engine.slots import Slots
from milepost.engine.subscription import Subscription
from milepost.engine.telling import Telling
from milepost.errors import MilepostError
from milepost.log.appender import Appender
from milepost.log.database import Database
from milepost.log.reader import Query
from milepost.log.since import Since
from milepost.progress.protocol import Opened, Sign
from milepost.threads import Threads


class Worker:
    """Calls the handlers of a program for its share of lanes, until it is left."""

    def __init__(
        self,
        place: Place,
        appender: Appender,
        *,
        subscriptions: Sequence[Subscription],
        queries: Callable[[Subscription, Since | None], Query],
        concurrency: int,
        grace: float,
        exits: bool,
        failed: Failed | None = None,
        audience: Audience | None = None,
    ) -> None:
        self._place = place
        self._appender = appender
        self._subscriptions = subscriptions
        self._queries = queries
        self._services = place.services
        self._concurrency = concurrency
        self._failed = failed or (lambda delivery, error: False)
        self._audience = audience
        self._declaring = Declaring(place, Rows(place.log.database, place.reader))
        self._exits = exits
        self._slots = Slots(concurrency, grace, place.solitude)
        self._threads = Threads(concurrency)
        self._sharing: Sharing[Served] = Sharing(place, grace=grace, changed=self._serve_slots)
        lease = min(subscription.declaration.lease for subscription in subscriptions)
        self._sign = Sign(self._sharing.id, lease)
        self._running: list[Runner] = []
        self._leaving = asyncio.Lock()
        self._has_left = False
        self.changed = asyncio.Event()
        """Set when something may have ended."""

    @property
    def id(self) -> str:
        """Its name among all workers."""
        return self._sharing.id

    @property
    def runners(self) -> dict[str, Runner]:
        """By the names of their subscriptions."""
        return {served.name: served.runner for served in self._sharing.served.values()}

    def is_blocked(self) -> bool:
        """Whether a handler keeps it from going on, or from ending. For another thread to ask, too."""
        return self._slots.is_blocked()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Works from the beginning of the block to its end; then what runs may end within the grace time."""
        async with self._connections() as transactions:
            await self._services.begin()
            self._sharing.clock.set(await self._services.progress.now())
            opened = await self._declaring.all(self._subscriptions, self._sign)
            async with self._working(opened, transactions):
                yield

    @asynccontextmanager
    async def _connections(self) -> AsyncIterator[Database | None]:
        """Connections for transactions of handlers, which keep them: one for each that may run at once."""
        if not any(subscription.takes_transaction for subscription in self._subscriptions):
            yield None
            return
        transactions = Database(
            self._services.transactions.conninfo, pool_size=self._concurrency, lease=self._sign.lease
        )
        await transactions.open()
        try:
            yield transactions
        finally:
            await transactions.close()

    @asynccontextmanager
    async def _working(self, opened: Sequence[Opened], transactions: Database | None) -> AsyncIterator[None]:
        sharing = self._sharing.running(self._sign.lease, is_blocked=self._slots.is_blocked, exits=self._exits)
        try:
            async with sharing as group:
                self._serve(opened, transactions, group)
                handling = group.create_task(self._slots.run())
                ending = group.create_task(self._end_with_program(handling))
                for telling in self._tellings():
                    telling.started(self.id)
                try:
                    yield
                finally:
                    await self._leave(handling)
                    if self._slots.ending is None:
                        ending.cancel()
                    for telling in self._tellings():
                        telling.stopped(self.id)
                    handling.cancel()
                    for served in self._sharing.served.values():
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
                await self._sharing.leave([handling])
                self._has_left = True

    def _serve(self, opened: Sequence[Opened], transactions: Database | None, group: asyncio.TaskGroup) -> None:
        builder = Builder(
            worker=self.id,
            place=self._place,
            appender=self._appender,
            queries=self._queries,
            concurrency=self._concurrency,
            lease=self._sign.lease,
            clock=self._sharing.clock,
            threads=self._threads,
            failed=self._failed,
            audience=self._audience,
            transactions=transactions,
            changed=self._wake,
            lost=self._sharing.lose,
            reports_soon=self._sharing.look_soon,
        )
        # Nothing is shared before all are there: this does not wait for anything.
        for subscription, one in zip(self._subscriptions, opened, strict=True):
            self._sharing.served[one.id] = Served(subscription, one, builder, self._declaring, self._sign, group)
        self._serve_slots()

    def _serve_slots(self) -> None:
        runners = [served.runner for served in self._sharing.served.values()]
        if runners != self._running:
            self._running = runners
            self._slots.serve(runners)

    def _tellings(self) -> list[Telling]:
        tellings = (served.runner.telling for served in self._sharing.served.values())
        return [telling for telling in tellings if telling is not None]

    def _wake(self) -> None:
        self._slots.wake()
        self.changed.set()

    # Idle

    async def idle(self) -> None:
        """Waits until everything that was appended by now, or by handlers meanwhile, is handled or cannot be."""
        await self._sharing.shared.wait()
        while True:
            head = await self._place.log.horizon.look()
            while not await self._is_idle(head):
                self.changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await self.changed.wait()
            if await self._place.log.horizon.look() == head:
                return

    async def _is_idle(self, head: int) -> bool:
        idle = True
        for served in list(self._sharing.served.values()):
            idle = await self._is_idle_one(served, head) and idle
        return idle

    async def _is_idle_one(self, served: Served, head: int) -> bool:
        if served.opened.pending == "refused":
            raise MilepostError(f"{served.name}: {served.opened.changed}")
        if served.opened.status == "paused":
            return not served.runner.lanes
        if served.opened.pending is not None or served.opened.barrier is not None:
            return False
        runner = served.runner
        return runner.is_idle(head, None if runner.has_all_lanes else await self._stored_cursors(runner.name))

    async def _stored_cursors(self, name: str) -> dict[int, Cursor]:
        """Return how far its lanes are, but for those that a limit of rows keeps from going on."""
        standings = await self._services.progress.standings(self._place.group, name)
        lanes = [lane for standing in standings for lane in standing.lanes]
        return {lane.number: lane.cursor for lane in lanes if lane.stopped is None}
