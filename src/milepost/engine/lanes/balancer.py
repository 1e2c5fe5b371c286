"""Share lanes out among processes: take and give them, and follow what is stored of their subscriptions."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID, uuid4

import msgspec

from milepost.dispatch import Exchange, LaneState
from milepost.engine.clock import Clock
from milepost.engine.lanes.heartbeat import Heartbeat
from milepost.engine.lanes.held_lane import HeldLane
from milepost.engine.lanes.message_loader import MessageLoader
from milepost.engine.observe.emitter import EventEmitter
from milepost.engine.observe.worker_reports import ReportedRunner, WorkerReporter
from milepost.engine.runtime import Runtime
from milepost.engine.subscription_logger import SubscriptionLogger
from milepost.errors import Unavailable
from milepost.log.message import Message
from milepost.progress.protocol import (
    LaneGrant,
    OutdatedDefinition,
    Progress,
    RolledBack,
    ServingStatus,
    StaleLane,
    SubscriptionRecord,
    WorkerLease,
    stale_lane_error,
)

logger = logging.getLogger("milepost.engine")

BALANCE_SECONDS = 2.0
"""Seconds between two looks at how lanes are shared, at most a third of the lease."""
SHUTDOWN_SECONDS = 5.0
"""Seconds for the end of what was cancelled, and for the last writes."""
BALANCE_SOON_SECONDS = 0.1
"""Seconds between two looks at whether lanes have come to where their order can change."""
MAX_PARALLEL_RELEASES = 2
"""How many lanes are released at once: each release is short, and a new connection is not."""
BALANCE_RETRY_SECONDS = 0.05
"""Seconds until lanes are shared again after that was not possible, at first."""


class LaneRunner(ReportedRunner, Protocol):
    """What runs the lanes of a subscription in this process."""

    lanes: dict[int, HeldLane]
    logger: SubscriptionLogger

    @property
    def emitter(self) -> EventEmitter | None:
        """Who is told of events, if anybody listens."""
        ...

    def add(self, held: LaneGrant, state: LaneState[Message[Any]]) -> None:
        """A lane was taken."""
        ...

    def lose(self, owned: HeldLane, error: Exception) -> None:
        """A lane is another's, or nobody knows what is stored of it."""
        ...

    async def close(self, owned: HeldLane) -> bool:
        """Hands out nothing more of a lane, and waits until nothing of it runs; False if it is reopened first."""
        ...

    def reopen(self, owned: HeldLane) -> None:
        """A lane that is being closed stays here: it goes on."""
        ...

    def take_back(self) -> None:
        """Nothing that runs of its lanes is waited for any more: others get it."""
        ...

    def finish(self, owned: HeldLane) -> Exchange[Message[Any]] | None:
        """Ends a lane that is closed; what is left to write."""
        ...

    def remove(self, owned: HeldLane) -> None:
        """A lane was released."""
        ...


class LaneHost(Protocol):
    """A subscription that this process works on."""

    keeps: bool
    """Whether its lanes stay here as long as they are wanted, however others are off."""

    @property
    def record(self) -> SubscriptionRecord:
        """As it is stored, as far as is known."""
        ...

    @property
    def runner(self) -> LaneRunner:
        """What runs its lanes."""
        ...

    @property
    def wanted(self) -> int | None:
        """How many lanes are to be shared out among those who can run it; None: this process cannot now."""
        ...

    @property
    def keep_done(self) -> float | None:
        """For how many seconds rows are kept of what is done; None: not at all."""
        ...

    async def learn(self, record: SubscriptionRecord) -> None:
        """It is stored like this now."""
        ...

    async def prepare(self, held: LaneGrant, state: LaneState[Message[Any]]) -> LaneState[Message[Any]]:
        """A lane was taken: return its state, after what has to be done before anything of it runs."""
        ...

    async def taken_back(self) -> SubscriptionRecord | None:
        """A crash of the server took it back: as it is stored now, if it can be declared again."""
        ...

    async def deleted(self) -> None:
        """It is there no more."""
        ...


S = TypeVar("S", bound=LaneHost)


class LaneBalancer(Generic[S]):
    """Takes its share of the lanes of what it serves, until it is left."""

    def __init__(
        self, runtime: Runtime, *, grace: float, on_change: Callable[[], None], clock: Clock | None = None
    ) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self.clock = clock or Clock()
        self.served: dict[int, S] = {}
        """What it serves, by the numbers of the subscriptions."""
        self.shared = asyncio.Event()
        """Set when lanes were shared for the first time."""
        self.elsewhere: frozenset[int] = frozenset()
        """Of which subscriptions this process wants lanes, has none and gets none: others have them."""
        self._runtime = runtime
        self._progress: Progress = runtime.services.progress
        self._rows = MessageLoader(runtime.log)
        self._reporter = WorkerReporter(self.id, self._progress, self.clock)
        self._grace = grace
        self._on_change = on_change
        self._heartbeat: Heartbeat
        self._rebalance = asyncio.Event()
        self._epochs: set[int] = set()
        self._giving: dict[asyncio.Task[None], int] = {}
        """Lanes that are being given back, by the subscription that each is of."""
        self._waits_for_running: set[asyncio.Task[None]] = set()
        """What waits for the end of what ran when lanes were wanted back."""
        self._round = asyncio.Lock()
        """Whoever has it knows that no lanes are being taken."""
        self._awaiting: list[asyncio.Future[None]] = []
        """Those who wait for the end of a round that has not begun."""
        self._loose: dict[tuple[int, int], HeldLane] = {}
        """Lost lanes, of which something still runs, by their subscriptions and numbers."""
        self._released: set[HeldLane] = set()
        """Lanes that are others' already, and not removed here yet."""
        self._sign: WorkerLease
        self._stopping = False
        self._hurries = False
        """Whether lanes could not be taken that soon can be."""
        self._releasing = asyncio.Semaphore(MAX_PARALLEL_RELEASES)

    @asynccontextmanager
    async def running(
        self, lease: float, *, is_blocked: Callable[[], bool], exits: bool
    ) -> AsyncIterator[asyncio.TaskGroup]:
        """Lives among the others from the beginning of the block to its end."""
        services = self._runtime.services
        self._runtime.log.limit_statement_time(lease)
        services.limit_statement_time(lease)
        self._sign = WorkerLease(self.id, lease)
        self._heartbeat = Heartbeat(
            services.leases,
            self.id,
            self._runtime.group,
            lease,
            services.home,
            is_blocked=is_blocked,
            exits=exits,
        )
        async with (
            self._heartbeat,
            self._runtime.log.feed.followed(),
            services.told(self.balance_soon, self._asked),
            services.back(self._rebalance),
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task(work) for work in services.works()]
            self._sharing_task = group.create_task(self._share())
            try:
                yield group
            finally:
                for task in tasks:
                    task.cancel()

    async def change_lease(self, lease: float) -> None:
        """Others take over when nothing was heard for so many seconds, from now on."""
        self._runtime.log.limit_statement_time(lease)
        self._runtime.services.limit_statement_time(lease)
        await self._heartbeat.change_lease(lease)
        self._sign = WorkerLease(self.id, lease)

    def balance_soon(self) -> None:
        """Something may have changed: what people want, or what is served here."""
        self._rebalance.set()

    def _asked(self) -> None:
        """Somebody wants to know what is done here."""
        self._reporter.report_all_next()
        self._rebalance.set()

    async def _share(self) -> None:
        """Takes and gives lanes, so that all workers have about the same number."""
        failed = 0
        while not self._stopping:
            self._rebalance.clear()
            awaiting, self._awaiting = self._awaiting, []
            try:
                async with self._round:
                    await self._balance()
                self.shared.set()
                _resolve_all(awaiting)
                await self._reporter.report(self._reported())
                failed = 0
            except Unavailable as error:
                logger.debug("lanes are not shared: %s", error)
                self._awaiting += awaiting
                failed += 1
            pause = min(BALANCE_SECONDS, self._sign.lease / 3)
            # The next connection may work: lanes that were lost with one are wanted back soon.
            wait = min(pause, BALANCE_RETRY_SECONDS * 2**failed) if failed else min(pause, self._soon())
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._rebalance.wait()

    async def balanced(self) -> None:
        """Looks at how lanes are shared, and returns when that was done from now on."""
        future = asyncio.get_running_loop().create_future()
        self._awaiting.append(future)
        self._rebalance.set()
        await future

    def _soon(self) -> float:
        """Seconds until something is looked at again."""
        if self._hurries:
            return BALANCE_RETRY_SECONDS
        soon = any(served.record.pending in ("wait", "help", "ready") for served in self.served.values())
        return BALANCE_SOON_SECONDS if soon else BALANCE_SECONDS

    async def _balance(self) -> None:
        self._hurries = False
        await self._follow_stored()
        wanted = {id_: served.wanted for id_, served in self.served.items()}
        held = {id_: list(served.runner.lanes) for id_, served in self.served.items()}
        shares = await self._heartbeat.balance(
            {id_: lanes for id_, lanes in wanted.items() if lanes is not None}, held
        )
        self.elsewhere = frozenset(
            id_ for id_, share in shares.items() if wanted.get(id_) and not held.get(id_) and not share.take
        )
        for subscription_id, share in shares.items():
            if subscription_id not in self.served:
                continue
            served = self.served[subscription_id]
            lanes = served.runner.lanes
            kept = served.keeps and wanted[subscription_id]
            give = () if kept else share.give
            for number, owned in list(lanes.items()):
                if number in give:
                    self._give(subscription_id, owned)
                elif owned.closing and wanted.get(subscription_id):
                    self._keep(served.runner, owned)
            self._take_back(subscription_id, served)
            # Nor one that was lost, as long as something of it runs: later messages would overtake that.
            loose = {number for of, number in self._loose if of == subscription_id}
            take = [number for number in share.take if number not in lanes and number not in loose]
            if take and not self._stopping:
                await self._take(subscription_id, take)

    async def _follow_stored(self) -> None:
        """What people have done, and what other programs declare."""
        asked = dict(self.served)
        async with AsyncExitStack() as alone:
            # While nothing is released: what it tells would be outdated when it comes.
            for _ in range(MAX_PARALLEL_RELEASES):
                await alone.enter_async_context(self._releasing)
            stored = await self._progress.look(self._sign, [self._serving(each) for each in asked.values()])
        for id_, served in asked.items():
            if self.served.get(id_) is not served:
                continue
            record = stored.get(id_)
            if record is None:
                await self._handle_missing(id_)
                continue
            await served.learn(record)
        self._on_change()

    def _serving(self, served: S) -> ServingStatus:
        record = served.record
        lanes = {number for number, owned in served.runner.lanes.items() if owned not in self._released}
        lanes |= {lane for of, lane in self._loose if of == record.id}
        loose = any(of == record.id for of, _ in self._loose)
        return ServingStatus(
            id=record.id,
            number=record.number,
            runs=record.may_run,
            lanes=sorted(lanes),
            waits=loose or any(owned.waits for owned in served.runner.lanes.values()),
            keep_done=served.keep_done,
        )

    async def _handle_missing(self, subscription_id: int) -> None:
        """It was deleted; or a crash took it back, and it is declared again if that is for this process to do."""
        served = self.served[subscription_id]
        was_taken_back = served.record.life != await self._progress.life()
        for owned in list(served.runner.lanes.values()):
            error = Unavailable("PostgreSQL was restarted") if was_taken_back else stale_lane_error()
            self.lose(subscription_id, owned, error)
        if was_taken_back and any(of == subscription_id for of, _ in self._loose):
            # It gets another number: what still runs of it would not keep its lanes from running beside that.
            self._hurries = True
            return
        record = await served.taken_back() if was_taken_back else None
        if self.served.get(subscription_id) is not served:
            return
        del self.served[subscription_id]
        if record is None:
            await served.deleted()
        else:
            self.served[record.id] = served

    async def _take(self, subscription_id: int, lanes: Sequence[int]) -> None:
        served = self.served[subscription_id]
        record = served.record
        life = await self._life_of_the_log()
        taken: list[LaneGrant] = []
        try:
            if life is not None:
                taken = await self._progress.take(
                    subscription_id, lanes, record.number, record.acted, worker=self.id, log_life=life
                )
        except OutdatedDefinition as error:
            await served.learn(msgspec.structs.replace(record, newest=error.number))
        if not taken:
            self._hurries = True
            # It may have been refused because the server has another life than the feed knows.
            await self._runtime.log.current_horizon(wait_for_short_appends=False)
        for held in (replace(each, log_life=life) for each in taken):
            # Nobody has vanished if the owner before was this one.
            vanished = held.state.unclean and held.previous not in self._epochs
            self._epochs.add(held.epoch)
            state = await self._rows.state(held.state, unclean=vanished, log_life=life)
            state = await served.prepare(held, state)
            self.clock.set(state.now)
            if self.served.get(subscription_id) is served:
                served.runner.add(held, state)
                served.runner.lanes[held.lane].known_action = record.acted

    async def _life_of_the_log(self) -> UUID | None:
        """Return the life in which the log is read here; None: it cannot be read just now."""
        feed = self._runtime.log.feed
        with suppress(TimeoutError):
            async with asyncio.timeout(BALANCE_SOON_SECONDS):
                await feed.wait_until_current()
        life = feed.life
        if life is not None:
            await self._progress.follow(life, feed.survived_since)
        return life

    def _give(self, subscription_id: int, owned: HeldLane) -> None:
        if owned.closing:
            return
        owned.closing = True
        runner = self.served[subscription_id].runner
        self._gives(subscription_id, self._hand_over(subscription_id, runner, owned))

    def _keep(self, runner: LaneRunner, owned: HeldLane) -> None:
        """Whatever wanted a lane back wants it no longer. One whose last write has begun comes back by itself."""
        if not owned.is_leaving and not self._stopping:
            runner.reopen(owned)
            task = asyncio.create_task(self._rebalance_when_done(owned))
            self._waits_for_running.add(task)
            task.add_done_callback(self._waits_for_running.discard)

    async def _rebalance_when_done(self, owned: HeldLane) -> None:
        """Whoever wanted the lane back may wait until what ran then has ended."""
        while owned.waits and not owned.lost:
            await owned.wait_for_change()
        self._rebalance.set()

    def _take_back(self, subscription_id: int, served: S) -> None:
        """Somebody does not wait for what is out, while nothing may run: it is given back."""
        record = served.record
        loose = [owned for (of, _), owned in self._loose.items() if of == subscription_id]
        late = [owned for owned in [*served.runner.lanes.values(), *loose] if owned.known_action < record.forced]
        if not record.rests or all(owned.taken_back for owned in late):
            return
        served.runner.take_back()
        for owned in loose:
            owned.take_back()

    def _gives(self, subscription_id: int, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._giving[task] = subscription_id
        task.add_done_callback(self._giving.pop)

    async def _hand_over(self, subscription_id: int, runner: LaneRunner, owned: HeldLane) -> None:
        """Gives a lane back in good order, when nothing of it runs any more."""
        emitter = runner.emitter
        if not await runner.close(owned):
            return
        exchange = runner.finish(owned)
        try:
            async with self._releasing:
                try:
                    await self._progress.release(owned.held, exchange)
                finally:
                    self._released.add(owned)
        except (StaleLane, RolledBack, Unavailable) as error:
            if not owned.lost:
                is_told = isinstance(error, Unavailable) or self._is_others(subscription_id)
                tell = runner.logger.debug if is_told else runner.logger.warning
                tell("lane %d was not released: %s", owned.number, error, lane=owned.number)
                if emitter is not None:
                    emitter.lost(owned.number, error)
        else:
            if emitter is not None:
                emitter.released(owned.number)
        finally:
            # One that was lost meanwhile may have been taken anew.
            if not self._stopping and not owned.lost:
                with suppress(Unavailable):
                    await self._heartbeat.release(subscription_id, [owned.number])
            runner.remove(owned)
            self._released.discard(owned)

    def _is_others(self, subscription_id: int) -> bool:
        """Whether this process may not run it now: others have its lanes by right."""
        served = self.served.get(subscription_id)
        return served is not None and served.wanted is None

    def lose(self, subscription_id: int, owned: HeldLane, error: Exception) -> None:
        """A lane is another's, or nobody knows what is stored of it: it may be had anew."""
        if owned.lost:
            return
        if subscription_id in self.served:
            self.served[subscription_id].runner.lose(owned, error)
        self._loose[subscription_id, owned.number] = owned
        self._gives(subscription_id, self._let_go(subscription_id, owned))

    async def _let_go(self, subscription_id: int, owned: HeldLane) -> None:
        """A lost lane may be had again when nothing of it runs here any more."""
        await owned.at_rest()
        self._loose.pop((subscription_id, owned.number), None)
        with suppress(Unavailable):
            await self._heartbeat.release(subscription_id, [owned.number])
        self._rebalance.set()

    async def stop_serving(self, subscription_id: int) -> None:
        """Serves one of several no longer: gives its lanes back, each when nothing of it runs."""
        async with self._quiet():
            served = self.served.get(subscription_id)
            for owned in list(served.runner.lanes.values()) if served is not None else ():
                self._give(subscription_id, owned)
        if giving := [task for task, of in self._giving.items() if of == subscription_id]:
            await asyncio.wait(giving, timeout=self._grace)
        async with self._quiet():
            self.served.pop(subscription_id, None)
        if served is not None:
            with suppress(Unavailable):
                await self._reporter.report_end_of(subscription_id, served.runner)

    def drop(self, subscription_id: int, error: Exception) -> None:
        """One of several cannot be served any more: its lanes may be had by others."""
        served = self.served.get(subscription_id)
        for owned in list(served.runner.lanes.values()) if served is not None else ():
            self.lose(subscription_id, owned, error)
        self.served.pop(subscription_id, None)

    @asynccontextmanager
    async def _quiet(self) -> AsyncIterator[None]:
        """No lanes are being taken within this block; unless the database does not answer."""
        try:
            async with asyncio.timeout(self._grace):
                await self._round.acquire()
        except TimeoutError:
            yield
            return
        try:
            yield
        finally:
            self._round.release()

    async def leave(self, running: Collection[asyncio.Task[None]] = ()) -> None:
        """Takes no more lanes, and gives all back, each when nothing of it runs.

        `running` is what calls handlers: after the grace time it is cancelled.
        """
        await self._end_sharing()
        for subscription_id, served in self.served.items():
            for owned in list(served.runner.lanes.values()):
                self._give(subscription_id, owned)
        await self._given(running)
        with suppress(Unavailable):
            await self._reporter.report_end(self._reported())
            await self._progress.leave(self.id)

    async def _end_sharing(self) -> None:
        """One lane that is being taken just now still comes."""
        self._stopping = True
        self._rebalance.set()
        for task in self._waits_for_running:
            task.cancel()
        await asyncio.wait([self._sharing_task], timeout=self._grace)
        self._sharing_task.cancel()
        await asyncio.wait([self._sharing_task], timeout=SHUTDOWN_SECONDS)

    async def _given(self, running: Collection[asyncio.Task[None]]) -> None:
        if not self._giving:
            return
        _, late = await asyncio.wait(self._giving, timeout=self._grace)
        if late:
            for task in running:
                task.cancel()
            await asyncio.wait([*running, *late], timeout=SHUTDOWN_SECONDS)
        for task in self._giving:
            task.cancel()

    def _reported(self) -> dict[int, LaneRunner]:
        return {id_: served.runner for id_, served in self.served.items()}


def _resolve_all(awaiting: list[asyncio.Future[None]]) -> None:
    for future in awaiting:
        if not future.done():
            future.set_result(None)
