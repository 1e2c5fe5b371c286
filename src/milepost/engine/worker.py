"""A worker: one process's part in the subscriptions of its group."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from uuid import uuid4

import msgspec

from milepost.dispatch import Cursor
from milepost.engine.builder import Builder, Failed
from milepost.engine.clock import Clock
from milepost.engine.declaring import Declaring
from milepost.engine.heart import Heart
from milepost.engine.listeners import Audience
from milepost.engine.owned import Owned
from milepost.engine.place import Place
from milepost.engine.rows import Rows
from milepost.engine.runner import Runner
from milepost.engine.served import Served
from milepost.engine.slots import Slots
from milepost.engine.subscription import Subscription
from milepost.engine.telling import Telling
from milepost.engine.threads import Threads
from milepost.errors import Unavailable
from milepost.log.appender import Appender
from milepost.log.database import Database
from milepost.log.reader import Query
from milepost.progress.protocol import Opened, Outdated, Progress, RolledBack, Stale
from milepost.progress.refusals import stale

logger = logging.getLogger("milepost.engine")

BALANCE = 2.0
"""Seconds between two looks at how lanes are shared, at most a third of the lease."""

LAST = 5.0
"""Seconds for the end of what was cancelled, and for the last writes."""
PATIENCE = 5.0
"""Seconds between two looks at whether a newer program has ended."""
SOON = 0.1
"""Seconds between two looks at whether lanes have come to where their order can change."""
RELEASING = 2
"""How many lanes are released at once: each release is short, and a new connection is not."""
SHORTEST = 0.05
"""Seconds until lanes are shared again after that was not possible, at first."""


class Worker:
    """Takes its share of lanes, and runs them until it is left."""

    def __init__(
        self,
        place: Place,
        appender: Appender,
        *,
        subscriptions: Sequence[Subscription],
        queries: Callable[[Subscription, datetime | None], Query],
        concurrency: int,
        grace: float,
        exits: bool,
        failed: Failed | None = None,
        audience: Audience | None = None,
    ) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._place = place
        self._log = place.log
        self._appender = appender
        self._subscriptions = subscriptions
        self._queries = queries
        self._services = place.services
        self._progress: Progress = place.services.progress
        self._heart: Heart
        self._concurrency = concurrency
        self._failed = failed or (lambda delivery, error: False)
        self._audience = audience
        self._clock = Clock()
        self._rows = Rows(place.log.database, place.reader)
        self._declaring = Declaring(place, self._rows)
        self._grace = grace
        self._exits = exits
        self._slots = Slots(concurrency, grace)
        self._threads = Threads(concurrency)
        self._rebalance = asyncio.Event()
        self._shared = asyncio.Event()
        """Set when lanes were shared for the first time."""
        self._served: dict[int, Served] = {}
        """The subscriptions, by their numbers."""
        self._running: list[Runner] = []
        self._epochs: set[int] = set()
        self._giving: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._hurries = False
        """Whether lanes could not be taken that soon can be."""
        self._releasing = asyncio.Semaphore(RELEASING)
        self.changed = asyncio.Event()
        """Set when something may have ended."""

    @property
    def runners(self) -> dict[str, Runner]:
        """By the names of their subscriptions."""
        return {served.name: served.runner for served in self._served.values()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Works from the beginning of the block to its end; then what runs may end within the grace time."""
        async with self._connections() as transactions:
            await self._services.begin()
            self._clock.set(await self._progress.now())
            opened = await self._declaring.all(self._subscriptions)
            async with self._working(opened, transactions):
                yield

    @asynccontextmanager
    async def _connections(self) -> AsyncIterator[Database | None]:
        """Connections for transactions of handlers, which keep them: one for each that may run at once."""
        if not any(subscription.takes_transaction for subscription in self._subscriptions):
            yield None
            return
        transactions = Database(self._services.transactions.conninfo, pool_size=self._concurrency)
        await transactions.open()
        try:
            yield transactions
        finally:
            await transactions.close()

    @asynccontextmanager
    async def _working(self, opened: Sequence[Opened], transactions: Database | None) -> AsyncIterator[None]:
        lease = min(subscription.declaration.lease for subscription in self._subscriptions)
        self._heart = Heart(
            self._services.leases,
            self.id,
            self._place.group,
            lease,
            self._services.home,
            is_blocked=self._slots.is_blocked,
            exits=self._exits,
        )
        try:
            async with (
                self._heart,
                self._log.feed.followed(),
                self._services.told(self._rebalance.set),
                asyncio.TaskGroup() as group,
            ):
                self._serve(opened, transactions, group)
                handling = group.create_task(self._slots.run())
                sharing = group.create_task(self._share(min(BALANCE, lease / 3)))
                tasks = [handling, *(group.create_task(work) for work in self._services.works())]
                for telling in self._tellings():
                    telling.started(self.id)
                try:
                    yield
                finally:
                    await self._end_sharing(sharing)
                    await self._stop(handling)
                    for telling in self._tellings():
                        telling.stopped(self.id)
                    for task in tasks:
                        task.cancel()
                    for served in self._served.values():
                        await served.stop()
        finally:
            self._threads.close()
            if self._audience is not None:
                await self._audience.close()

    def _serve(self, opened: Sequence[Opened], transactions: Database | None, group: asyncio.TaskGroup) -> None:
        builder = Builder(
            place=self._place,
            appender=self._appender,
            queries=self._queries,
            concurrency=self._concurrency,
            clock=self._clock,
            threads=self._threads,
            failed=self._failed,
            audience=self._audience,
            transactions=transactions,
            changed=self._wake,
            lost=self._lose,
        )
        for subscription, one in zip(self._subscriptions, opened, strict=True):
            self._served[one.id] = Served(subscription, one, builder, group)
        self._serve_slots()

    def _serve_slots(self) -> None:
        runners = [served.runner for served in self._served.values()]
        if runners != self._running:
            self._running = runners
            self._slots.serve(runners)

    def _tellings(self) -> list[Telling]:
        tellings = (served.runner.settling.telling for served in self._served.values())
        return [telling for telling in tellings if telling is not None]

    def _wake(self) -> None:
        self._slots.wake()
        self.changed.set()

    # Lanes

    async def _share(self, pause: float) -> None:
        """Takes and gives lanes, so that all workers have about the same number."""
        failed = 0
        while not self._stopping:
            self._rebalance.clear()
            try:
                await self._balance()
                self._shared.set()
                failed = 0
            except Unavailable as error:
                logger.warning("lanes are not shared: %s", error)
                failed += 1
            # The next connection may work: lanes that were lost with one are wanted back soon.
            wait = min(pause, SHORTEST * 2**failed) if failed else min(pause, self._soon())
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._rebalance.wait()

    def _soon(self) -> float:
        """Seconds until something is looked at again."""
        if self._hurries:
            return SHORTEST
        pending = any(served.opened.pending is not None for served in self._served.values())
        return SOON if pending else BALANCE

    async def _balance(self) -> None:
        self._hurries = False
        await self._look()
        wanted = {id_: served.wanted for id_, served in self._served.items()}
        held = {id_: list(served.runner.lanes) for id_, served in self._served.items()}
        shares = await self._heart.balance(
            {id_: lanes for id_, lanes in wanted.items() if lanes is not None}, held
        )
        for subscription_id, share in shares.items():
            if subscription_id not in self._served:
                continue
            lanes = self._served[subscription_id].runner.lanes
            for number in share.give:
                if number in lanes:
                    self._give(subscription_id, lanes[number])
            take = [number for number in share.take if number not in lanes]
            if take and not self._stopping:
                await self._take(subscription_id, take)

    async def _look(self) -> None:
        """What people have done, and what other programs declare."""
        numbers = {id_: served.opened.number for id_, served in self._served.items()}
        stored = await self._progress.look(numbers)
        for id_, served in list(self._served.items()):
            opened = stored.get(id_)
            if opened is None:
                await self._forget(id_)
                continue
            await served.learn(msgspec.structs.replace(opened, pending=served.opened.pending))
            if not served.is_in_force:
                await self._declare_again(served)
        self._serve_slots()

    async def _declare_again(self, served: Served) -> None:
        """One that others run, or that has to change its order first: it may be this worker's turn now."""
        now = asyncio.get_running_loop().time()
        if now < served.declared_at + (PATIENCE if served.opened.pending is None else SOON):
            return
        served.declared_at = now
        await served.learn(await self._declaring.again(served.subscription, served.opened))
        if served.is_in_force:
            logger.info("%s: goes on", served.name)

    async def _forget(self, subscription_id: int) -> None:
        """It was deleted."""
        served = self._served.pop(subscription_id)
        logger.warning("%s: it was deleted; it is made anew when its program starts again", served.name)
        for owned in list(served.runner.lanes.values()):
            served.runner.lose(owned, stale())
        await served.stop()

    async def _take(self, subscription_id: int, lanes: Sequence[int]) -> None:
        served = self._served[subscription_id]
        opened = served.opened
        try:
            taken = await self._progress.take(subscription_id, lanes, opened.number, opened.acted)
        except Outdated as error:
            await served.learn(msgspec.structs.replace(opened, newest=error.number))
            taken = []
        self._hurries = self._hurries or not taken
        for held in taken:
            # Nobody has vanished if the owner before was this one.
            vanished = held.state.unclean and held.previous not in self._epochs
            self._epochs.add(held.epoch)
            state = await self._rows.state(held.state, unclean=vanished)
            self._clock.set(state.now)
            served.runner.add(held, state)

    def _give(self, subscription_id: int, owned: Owned) -> None:
        if owned.closing:
            return
        owned.closing = True
        runner = self._served[subscription_id].runner
        task = asyncio.create_task(self._hand_over(subscription_id, runner, owned))
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)

    async def _hand_over(self, subscription_id: int, runner: Runner, owned: Owned) -> None:
        """Gives a lane back in good order, when nothing of it runs any more."""
        telling = runner.settling.telling
        exchange = await runner.close(owned)
        try:
            async with self._releasing:
                await self._progress.release(owned.held, exchange)
        except (Stale, RolledBack, Unavailable) as error:
            logger.warning("%s: lane %d was not released: %s", runner.name, owned.number, error)
            if telling is not None:
                telling.lost(owned.number, error)
        else:
            if telling is not None:
                telling.released(owned.number)
        finally:
            # One that was lost meanwhile may have been taken anew.
            if not self._stopping and not owned.lost:
                with suppress(Unavailable):
                    await self._heart.release(subscription_id, [owned.number])
            runner.remove(owned)

    def _lose(self, subscription_id: int, owned: Owned, error: Exception) -> None:
        if owned.lost:
            return
        if subscription_id in self._served:
            self._served[subscription_id].runner.lose(owned, error)
        task = asyncio.create_task(self._let_go(subscription_id, owned))
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)

    async def _let_go(self, subscription_id: int, owned: Owned) -> None:
        """A lost lane may be had again when nothing of it runs here any more."""
        await owned.at_rest()
        with suppress(Unavailable):
            await self._heart.release(subscription_id, [owned.number])
        self._rebalance.set()

    async def _end_sharing(self, sharing: asyncio.Task[None]) -> None:
        """No more lanes are taken; one that is being taken just now still comes."""
        self._stopping = True
        self._rebalance.set()
        await asyncio.wait([sharing], timeout=self._grace)
        sharing.cancel()
        await asyncio.wait([sharing], timeout=LAST)

    async def _stop(self, handling: asyncio.Task[None]) -> None:
        """Gives all lanes back, each when nothing of it runs; after the grace time what runs is cancelled."""
        for subscription_id, served in self._served.items():
            for owned in list(served.runner.lanes.values()):
                self._give(subscription_id, owned)
        if not self._giving:
            return
        _, late = await asyncio.wait(self._giving, timeout=self._grace)
        if late:
            handling.cancel()
            await asyncio.wait([handling, *late], timeout=LAST)
        for task in self._giving:
            task.cancel()

    # Idle

    async def idle(self) -> None:
        """Waits until everything that was appended by now, or by handlers meanwhile, is handled or cannot be."""
        await self._shared.wait()
        while True:
            head = await self._log.horizon.look()
            while not await self._is_idle(head):
                self.changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await self.changed.wait()
            if await self._log.horizon.look() == head:
                return

    async def _is_idle(self, head: int) -> bool:
        idle = True
        for served in list(self._served.values()):
            idle = await self._is_idle_one(served, head) and idle
        return idle

    async def _is_idle_one(self, served: Served, head: int) -> bool:
        if served.opened.status == "paused":
            return not served.runner.lanes
        if served.opened.pending is not None or served.opened.barrier is not None:
            return False
        runner = served.runner
        return runner.is_idle(head, None if runner.has_all_lanes else await self._stored_cursors(runner.name))

    async def _stored_cursors(self, name: str) -> dict[int, Cursor]:
        standings = await self._progress.standings(self._place.group, name)
        return {lane.number: lane.cursor for standing in standings for lane in standing.lanes}
