"""A subscription of a program while a worker runs, and how the runner for its definition in force is built."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from milepost.concurrency import DaemonThreads, cancel_and_wait
from milepost.dispatch import LaneState
from milepost.engine.clock import Clock
from milepost.engine.declare.context import ProgressLocation
from milepost.engine.declare.handler import AnyDelivery
from milepost.engine.declare.order import order_from_text
from milepost.engine.declare.subscription import Subscription
from milepost.engine.handlers.exactly_once import ExactlyOnce
from milepost.engine.handlers.invoker import HandlerInvoker
from milepost.engine.handlers.registrar import SubscriptionRegistrar
from milepost.engine.handlers.runner import Runner
from milepost.engine.lanes.balancer import BALANCE_SOON_SECONDS
from milepost.engine.lanes.checkpoint_writer import CheckpointWriter
from milepost.engine.lanes.held_lane import HeldLane
from milepost.engine.lanes.message_loader import MessageLoader
from milepost.engine.lanes.reader import LaneReader, SubscriptionPages
from milepost.engine.observe.emitter import EventEmitter
from milepost.engine.observe.listeners import ActiveListeners
from milepost.engine.query import query_of
from milepost.engine.runtime import Runtime
from milepost.engine.subscription_logger import FieldLogger
from milepost.log.append import Appender
from milepost.log.message import Message
from milepost.progress.postgres.transaction import HandlerDatabase
from milepost.progress.protocol import LaneGrant, SubscriptionRecord, WorkerLease

OnFailure = Callable[[AnyDelivery, BaseException], bool]
"""Told of each failed attempt; whether the message is to be parked at once."""


@dataclass(frozen=True, kw_only=True)
class RunnerBuilder:
    """What the runners of a worker have in common."""

    worker: str
    """The name of the worker."""
    runtime: Runtime
    appender: Appender
    concurrency: int
    """Of the process: no subscription has more."""
    lease: float
    """Of the process, in seconds."""
    clock: Clock
    threads: DaemonThreads
    on_failure: OnFailure
    audience: ActiveListeners | None
    transactions: HandlerDatabase | None
    """Connections for transactions of handlers."""
    on_change: Callable[[], None]
    """Called when something may have become possible."""
    on_lost: Callable[[int, HeldLane, Exception], None]
    """Called when a lane of a subscription is lost."""
    on_report_due: Callable[[], None]
    """Called when what this process does should be told at once."""

    @property
    def rows(self) -> MessageLoader:
        """Brings messages to rows."""
        return MessageLoader(self.runtime.log)

    def build(self, subscription: Subscription, record: SubscriptionRecord) -> Runner:
        """A runner for a subscription as it is stored: with the order that is in force."""
        runner = Runner(
            subscription,
            order=order_from_text(record.orders, subscription.declaration.ordered_by),
            lanes=record.lanes,
            concurrency=self.concurrency_of(subscription, record),
            invoker=HandlerInvoker(subscription, self.threads),
            threads=self.threads,
            now=self.clock.now,
            on_change=self.on_change,
            on_failure=self.on_failure,
            on_lost=lambda owned, error: self.on_lost(record.id, owned, error),
            on_report_due=self.on_report_due,
        )
        if self.audience is not None:
            runner.settler.emitter = EventEmitter(self.audience, subscription.name, self.runtime.group)
        if self.transactions is not None and subscription.takes_transaction:
            runner.exactly_once = self._exactly_once(subscription, runner, self.transactions)
        runner.lane_reader = self._lane_reader(subscription, record, runner)
        runner.checkpoint_writer = self._checkpoint_writer(subscription, record, runner)
        return runner

    def concurrency_of(self, subscription: Subscription, record: SubscriptionRecord) -> int:
        """How many messages of it are handled at once: as an operator says, or the code."""
        wanted = record.limits.get("concurrency") or subscription.declaration.concurrency or self.concurrency
        return min(wanted, self.concurrency)

    def _exactly_once(
        self, subscription: Subscription, runner: Runner, transactions: HandlerDatabase
    ) -> ExactlyOnce:
        services = self.runtime.services
        return ExactlyOnce(
            runner.invoker,
            transactions,
            services.progress,
            self.rows,
            self.runtime.log,
            self.appender if services.progress_location is ProgressLocation.WITH_THE_LOG else None,
            self.clock,
            subscription.logger,
            batch=subscription.batch,
            isolation=subscription.declaration.isolation,
            timeout=runner.timeout,
            lease=self.lease,
            stall_after=runner.settings.stall_after,
            on_park=runner.settings.on_park,
            committed=runner.settler.committed,
        )

    def _lane_reader(self, subscription: Subscription, record: SubscriptionRecord, runner: Runner) -> LaneReader:
        feed = self.runtime.log.feed
        pages = SubscriptionPages(
            feed,
            query_of(subscription.selection, subscription.declaration.where, since=record.since),
            lanes=record.lanes,
            by_stream=runner.order.by_stream,
        )
        return LaneReader(
            feed, pages, runner.places, runner.filled, runner.lose_outlived, window=runner.settings.window
        )

    def _checkpoint_writer(
        self, subscription: Subscription, record: SubscriptionRecord, runner: Runner
    ) -> CheckpointWriter:
        checkpoint = subscription.declaration.checkpoint
        return CheckpointWriter(
            self.runtime.services.progress,
            self.runtime.services.cursors,
            self.rows,
            self.clock,
            runner.settings,
            seconds=checkpoint.seconds,
            messages=checkpoint.messages,
            on_written=runner.exchanged,
            on_wake=runner.retry_after_pause,
            on_lost=lambda owned, error: self.on_lost(record.id, owned, error),
        )


DEFINITIONS_LOGGER = "milepost.engine.definitions"
"""The logger that says what changes of definitions, and what keeps it from changing."""
REDECLARE_SECONDS = 5.0
"""Seconds between two looks at whether a newer program has ended."""


class HandlerHost:
    """How a subscription is stored, as far as the worker knows, and the runner that was built for that."""

    keeps = False

    def __init__(
        self,
        subscription: Subscription,
        record: SubscriptionRecord,
        builder: RunnerBuilder,
        registrar: SubscriptionRegistrar,
        sign: WorkerLease,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.subscription = subscription
        self.record = record
        self._sign = sign
        self._said: str | None = None
        fields = {"subscription": subscription.name, "group": subscription.group}
        self._logger = FieldLogger(logging.getLogger(DEFINITIONS_LOGGER), fields)
        self._declared_at = 0.0
        self._builder = builder
        self._registrar = registrar
        self._group = tasks
        self._build()
        self._say(record)
        if record.status == "paused":
            subscription.logger.status("paused")

    @property
    def name(self) -> str:
        return self.subscription.name

    @property
    def keep_done(self) -> float | None:
        """For how many seconds rows are kept of what is done; None: not at all."""
        return self.subscription.declaration.keep_done

    @property
    def wanted(self) -> int | None:
        """How many lanes are to be shared out among the workers that can run it; None: this one cannot now."""
        if self._is_misfit or not self.record.may_run:
            return None
        return 0 if self.record.rests else self.record.lanes

    @property
    def _is_misfit(self) -> bool:
        """Whether the runner was built for something else."""
        return self._shape != _definition_of_runner(self.record)

    async def learn(self, record: SubscriptionRecord) -> None:
        """It is stored like this now; whatever keeps it from running as declared is looked at."""
        known = self.record
        await self._adapt(msgspec.structs.replace(record, pending=known.pending, changed=known.changed))
        if not self.record.is_in_force:
            await self._declare_again()

    async def _declare_again(self) -> None:
        """Others run it, or it has to change its order first: it may be this worker's turn now."""
        now = asyncio.get_running_loop().time()
        if now < self._declared_at + (
            REDECLARE_SECONDS if self.record.pending in (None, "refused") else BALANCE_SOON_SECONDS
        ):
            return
        self._declared_at = now
        await self._adapt(await self._registrar.again(self.subscription, self._sign))
        if self.record.is_in_force and not self.record.changed:
            self._log(logging.INFO, "goes on")

    async def _adapt(self, record: SubscriptionRecord) -> None:
        before, self.record = self.record, record
        if record.status != before.status:
            self.subscription.logger.status(record.status)
            if self.runner.emitter is not None:
                self.runner.emitter.status(record.status)
        if record.barrier and record.barrier != before.barrier and record.is_in_force:
            self._log(logging.INFO, f"stands still: {record.barrier}")
        self._say(record)
        if self._is_misfit and not self.runner.lanes:
            await self._rebuild()
        self.runner.concurrency = self._builder.concurrency_of(self.subscription, record)
        # Nothing more is read of lanes that are to be let go: they would leave where they were brought to.
        self.runner.yields = self.wanted is None
        self.runner.stops_at(record.barrier_at if self.wanted else 0)
        if record.acted != before.acted:
            self.runner.poke()

    def _say(self, record: SubscriptionRecord) -> None:
        """Tells what changed, or what keeps it from changing, once."""
        is_news, self._said = record.changed != self._said, record.changed
        if is_news and record.changed:
            self._log(_log_level(record), record.changed)
        emitter = self.runner.emitter
        if emitter is not None and (record.created or (is_news and record.is_in_force)):
            emitter.definition_changed(record)

    def _log(self, level: int, words: str) -> None:
        self._logger.log(level, "%s: %s", self.name, words)

    def _build(self) -> None:
        self.runner: Runner = self._builder.build(self.subscription, self.record)
        self._shape = _definition_of_runner(self.record)
        works = (self.runner.lane_reader.run(), self.runner.checkpoint_writer.run())
        self._tasks = [self._group.create_task(work) for work in works]

    async def _rebuild(self) -> None:
        """Nothing of it runs: what runs it is made anew, for what is in force now."""
        settler = self.runner.settler
        await self.stop()
        self._build()
        self.runner.settler.continue_from(settler)

    async def prepare(self, held: LaneGrant, state: LaneState[Message[Any]]) -> LaneState[Message[Any]]:
        """A lane was taken: there is nothing to do before it runs."""
        return state

    async def taken_back(self) -> SubscriptionRecord:
        """A crash of the server took it back, or its definition: it is declared again."""
        self._log(logging.WARNING, "a restart of the server took it back: it is declared again")
        self.record = await self._registrar.again(self.subscription, self._sign)
        await self._rebuild()
        return self.record

    async def deleted(self) -> None:
        """It is there no more."""
        self.subscription.logger.warning("it was deleted; it is made anew when its program starts again")
        if self.runner.emitter is not None:
            self.runner.emitter.stopped(self._builder.worker)
        await self.stop()

    async def stop(self) -> None:
        """Ends what reads and writes for it."""
        for task in self._tasks:
            await cancel_and_wait(task)


def _log_level(record: SubscriptionRecord) -> int:
    """How much somebody should care: it stands still, or here, or what is declared comes into force."""
    if record.pending == "refused":
        return logging.ERROR
    return logging.WARNING if record.is_outdated else logging.INFO


def _definition_of_runner(record: SubscriptionRecord) -> tuple[object, ...]:
    """What a runner is built for."""
    return record.orders, record.lanes, record.since
