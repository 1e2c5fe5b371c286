"""A worker: one process's part in the subscriptions of its group."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from uuid import uuid4

from milepost.dispatch import Cursor
from milepost.engine.calls import AnyDelivery, Calls
from milepost.engine.clock import Clock
from milepost.engine.exactly_once import ExactlyOnce
from milepost.engine.heart import Heart
from milepost.engine.kept import Kept
from milepost.engine.listeners import Audience
from milepost.engine.owned import Owned
from milepost.engine.pages import Pages
from milepost.engine.place import Place
from milepost.engine.reading import Reading
from milepost.engine.rows import Rows
from milepost.engine.runner import Runner
from milepost.engine.slots import Slots
from milepost.engine.start import start_of
from milepost.engine.subscription import Subscription
from milepost.engine.telling import Telling
from milepost.engine.threads import Threads
from milepost.engine.writing import Writing
from milepost.errors import Unavailable
from milepost.log.appender import Appender
from milepost.log.database import Database
from milepost.log.reader import Query
from milepost.progress.protocol import Definition, Opened, Outdated, Progress, RolledBack, Stale

logger = logging.getLogger("milepost.engine")

BALANCE = 2.0
"""Seconds between two looks at how lanes are shared, at most a third of the lease."""

LAST = 5.0
"""Seconds for the end of what was cancelled, and for the last writes."""
PATIENCE = 5.0
"""Seconds between two looks at whether a newer program has ended."""
RELEASING = 2
"""How many lanes are released at once: each release is short, and a new connection is not."""
SHORTEST = 0.05
"""Seconds until lanes are shared again after that was not possible, at first."""

Failed = Callable[[AnyDelivery, BaseException], bool]
"""Told of each failed attempt; whether the message is to be parked at once."""


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
        self._log = place.log
        self._appender = appender
        self._subscriptions = subscriptions
        self._queries = queries
        self._services = place.services
        self._progress: Progress = place.services.progress
        self._heart: Heart
        self._transactions: Database
        self._group = place.group
        self._concurrency = concurrency
        self._failed = failed or (lambda delivery, error: False)
        self._audience = audience
        self._clock = Clock()
        self._rows = Rows(place.log.database, place.reader)
        self._grace = grace
        self._exits = exits
        self._slots = Slots(concurrency, grace)
        self._threads = Threads(concurrency)
        self._rebalance = asyncio.Event()
        self._shared = asyncio.Event()
        """Set when lanes were shared for the first time."""
        self._opened: dict[int, Opened] = {}
        self._runners: dict[int, Runner] = {}
        self._waiting: dict[int, float] = {}
        """Subscriptions that a newer program runs, and when that was last looked at."""
        self._epochs: set[int] = set()
        self._giving: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._releasing = asyncio.Semaphore(RELEASING)
        self.changed = asyncio.Event()
        """Set when something may have ended."""

    @property
    def runners(self) -> dict[str, Runner]:
        """By the names of their subscriptions."""
        return {runner.name: runner for runner in self._runners.values()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Works from the beginning of the block to its end; then what runs may end within the grace time."""
        async with self._connections():
            await self._open()
            async with self._working():
                yield

    @asynccontextmanager
    async def _connections(self) -> AsyncIterator[None]:
        """Connections for transactions of handlers, which keep them: one for each that may run at once."""
        if not any(subscription.takes_transaction for subscription in self._subscriptions):
            yield
            return
        self._transactions = Database(self._services.transactions.conninfo, pool_size=self._concurrency)
        await self._transactions.open()
        try:
            yield
        finally:
            await self._transactions.close()

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        lease = min(subscription.declaration.lease for subscription in self._subscriptions)
        self._heart = Heart(
            self._services.leases,
            self.id,
            self._group,
            lease,
            self._services.home,
            is_blocked=self._slots.is_blocked,
            exits=self._exits,
        )
        try:
            async with self._heart, self._log.feed.followed(), asyncio.TaskGroup() as group:
                handling = group.create_task(self._slots.run())
                sharing = group.create_task(self._share(min(BALANCE, lease / 3)))
                tasks = [handling, *(group.create_task(work) for work in self._works())]
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
        finally:
            self._threads.close()
            if self._audience is not None:
                await self._audience.close()

    def _tellings(self) -> list[Telling]:
        tellings = (runner.settling.telling for runner in self._runners.values())
        return [telling for telling in tellings if telling is not None]

    async def _open(self) -> None:
        await self._services.begin()
        self._clock.set(await self._progress.now())
        definitions = [await self._definition(subscription) for subscription in self._subscriptions]
        for subscription, opened in zip(
            self._subscriptions, await self._progress.declare(definitions), strict=True
        ):
            if opened.changed:
                logger.info("%s: %s", subscription.name, opened.changed)
            self._opened[opened.id] = opened
            runner = self._runners[opened.id] = self._runner(subscription, opened)
            if runner.settling.telling is not None:
                runner.settling.telling.opened(opened)
        self._slots.serve(list(self._runners.values()))

    async def _definition(self, subscription: Subscription) -> Definition:
        declaration = subscription.declaration
        start, since = await start_of(declaration.start, self._log)
        return Definition(
            group=self._group,
            name=subscription.name,
            lanes=declaration.lanes,
            selects=subscription.selects,
            orders=declaration.orders,
            start=start,
            since=since,
            renamed_from=declaration.renamed_from,
            exactly_once=subscription.takes_transaction,
        )

    def _runner(self, subscription: Subscription, opened: Opened) -> Runner:
        declaration = subscription.declaration
        runner = Runner(
            subscription,
            lanes=opened.lanes,
            concurrency=min(declaration.concurrency or self._concurrency, self._concurrency),
            calls=Calls(subscription, self._threads),
            threads=self._threads,
            now=self._clock.now,
            changed=self._wake,
            failed=self._failed,
            lost=lambda owned, error: self._lose(opened.id, owned, error),
        )
        if self._audience is not None:
            runner.settling.telling = Telling(self._audience, subscription.name, self._group)
        if subscription.takes_transaction:
            runner.exactly_once = self._exactly_once(subscription, runner)
        pages = Pages(
            self._log.feed,
            self._queries(subscription, opened.since),
            lanes=opened.lanes,
            by_stream=declaration.ordered_by.by_stream,
        )
        runner.reading = Reading(
            self._log.feed, pages, runner.places, runner.filled, runner.outlived, window=runner.settings.window
        )
        runner.writing = Writing(
            self._progress,
            self._rows,
            self._clock,
            runner.settings,
            seconds=declaration.checkpoint.seconds,
            messages=declaration.checkpoint.messages,
            changed=runner.exchanged,
            woke=runner.look_again,
            lost=lambda owned, error: self._lose(opened.id, owned, error),
        )
        return runner

    def _exactly_once(self, subscription: Subscription, runner: Runner) -> ExactlyOnce:
        return ExactlyOnce(
            Calls(subscription, self._threads),
            self._transactions,
            self._progress,
            self._rows,
            self._appender if self._services.kept is Kept.WITH_THE_LOG else None,
            self._clock,
            batch=subscription.batch is not None,
            stall_after=runner.settings.stall_after,
            on_park=runner.settings.on_park,
            committed=runner.settling.committed,
        )

    def _works(self) -> list[Coroutine[None, None, None]]:
        works: list[Coroutine[None, None, None]] = [*self._services.works()]
        for runner in self._runners.values():
            works += [runner.reading.run(), runner.writing.run()]
        return works

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
            wait = min(pause, SHORTEST * 2**failed) if failed else pause
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._rebalance.wait()

    async def _balance(self) -> None:
        await self._ask_again()
        wanted = {id_: opened.lanes for id_, opened in self._opened.items() if id_ not in self._waiting}
        held = {subscription_id: list(runner.lanes) for subscription_id, runner in self._runners.items()}
        for subscription_id, share in (await self._heart.balance(wanted, held)).items():
            runner = self._runners[subscription_id]
            for number in share.give:
                if number in runner.lanes:
                    self._give(subscription_id, runner.lanes[number])
            lanes = [number for number in share.take if number not in runner.lanes]
            if lanes and not self._stopping:
                await self._take(subscription_id, lanes)

    async def _take(self, subscription_id: int, lanes: Sequence[int]) -> None:
        runner = self._runners[subscription_id]
        try:
            taken = await self._progress.take(subscription_id, lanes, self._opened[subscription_id].number)
        except Outdated as error:
            logger.warning("%s: waits for a program with a newer definition to end: %s", runner.name, error)
            self._waiting[subscription_id] = asyncio.get_running_loop().time()
            await self._heart.release(subscription_id, lanes)
            self._rebalance.set()
            return
        for held in taken:
            # Nobody has vanished if the owner before was this one.
            vanished = held.state.unclean and held.previous not in self._epochs
            self._epochs.add(held.epoch)
            state = await self._rows.state(held.state, unclean=vanished)
            self._clock.set(state.now)
            runner.add(held, state)

    async def _ask_again(self) -> None:
        """Declares again, now and then, what waits for a newer program to end."""
        now = asyncio.get_running_loop().time()
        for subscription_id, since in list(self._waiting.items()):
            if now < since + PATIENCE:
                continue
            self._waiting[subscription_id] = now
            name = self._runners[subscription_id].name
            subscription = next(each for each in self._subscriptions if each.name == name)
            [opened] = await self._progress.declare([await self._definition(subscription)])
            if opened.number > self._opened[subscription_id].number:
                logger.info("%s: goes on: %s", subscription.name, opened.changed)
                self._opened[subscription_id] = opened
                del self._waiting[subscription_id]

    def _give(self, subscription_id: int, owned: Owned) -> None:
        if owned.closing:
            return
        owned.closing = True
        task = asyncio.create_task(self._hand_over(subscription_id, owned))
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)

    async def _hand_over(self, subscription_id: int, owned: Owned) -> None:
        """Gives a lane back in good order, when nothing of it runs any more."""
        runner = self._runners[subscription_id]
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
        self._runners[subscription_id].lose(owned, error)
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
        for subscription_id, runner in self._runners.items():
            for owned in list(runner.lanes.values()):
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
        for runner in self._runners.values():
            cursors = None if runner.has_all_lanes else await self._stored_cursors(runner.name)
            idle = runner.is_idle(head, cursors) and idle
        return idle

    async def _stored_cursors(self, name: str) -> dict[int, Cursor]:
        standings = await self._progress.standings(self._group, name)
        return {lane.number: lane.cursor for standing in standings for lane in standing.lanes}
