"""Builds what runs a subscription in a process."""

from collections.abc import Callable
from dataclasses import dataclass

from milepost.engine.calls import AnyDelivery, Calls
from milepost.engine.clock import Clock
from milepost.engine.exactly_once import ExactlyOnce
from milepost.engine.kept import Kept
from milepost.engine.listeners import Audience
from milepost.engine.order import order_named
from milepost.engine.owned import Owned
from milepost.engine.pages import Pages
from milepost.engine.place import Place
from milepost.engine.reading import Reading
from milepost.engine.rows import Rows
from milepost.engine.runner import Runner
from milepost.engine.subscription import Subscription
from milepost.engine.telling import Telling
from milepost.engine.writing import Writing
from milepost.log.appender import Appender
from milepost.log.database import Database
from milepost.log.reader import Query
from milepost.log.since import Since
from milepost.progress.protocol import Opened
from milepost.threads import Threads

Failed = Callable[[AnyDelivery, BaseException], bool]
"""Told of each failed attempt; whether the message is to be parked at once."""


@dataclass(frozen=True, kw_only=True)
class Builder:
    """What the runners of a worker have in common."""

    worker: str
    """The name of the worker."""
    place: Place
    appender: Appender
    queries: Callable[[Subscription, Since | None], Query]
    concurrency: int
    """Of the process: no subscription has more."""
    lease: float
    """Of the process, in seconds."""
    clock: Clock
    threads: Threads
    failed: Failed
    audience: Audience | None
    transactions: Database | None
    """Connections for transactions of handlers."""
    changed: Callable[[], None]
    """Called when something may have become possible."""
    lost: Callable[[int, Owned, Exception], None]
    """Called when a lane of a subscription is lost."""
    reports_soon: Callable[[], None]
    """Called when what this process does should be told at once."""

    @property
    def rows(self) -> Rows:
        """Brings messages to rows."""
        return Rows(self.place.log.database, self.place.reader)

    def build(self, subscription: Subscription, opened: Opened) -> Runner:
        """A runner for a subscription as it is stored: with the order that is in force."""
        runner = Runner(
            subscription,
            order=order_named(opened.orders, subscription.declaration.ordered_by),
            lanes=opened.lanes,
            concurrency=self.concurrency_of(subscription, opened),
            calls=Calls(subscription, self.threads),
            threads=self.threads,
            now=self.clock.now,
            changed=self.changed,
            failed=self.failed,
            lost=lambda owned, error: self.lost(opened.id, owned, error),
            reports_soon=self.reports_soon,
        )
        if self.audience is not None:
            runner.settling.telling = Telling(self.audience, subscription.name, self.place.group)
        if self.transactions is not None and subscription.takes_transaction:
            runner.exactly_once = self._exactly_once(subscription, runner, self.transactions)
        runner.reading = self._reading(subscription, opened, runner)
        runner.writing = self._writing(subscription, opened, runner)
        return runner

    def concurrency_of(self, subscription: Subscription, opened: Opened) -> int:
        """How many messages of it are handled at once: as an operator says, or the code."""
        wanted = opened.limits.get("concurrency") or subscription.declaration.concurrency or self.concurrency
        return min(wanted, self.concurrency)

    def _exactly_once(self, subscription: Subscription, runner: Runner, transactions: Database) -> ExactlyOnce:
        services = self.place.services
        return ExactlyOnce(
            runner.calls,
            transactions,
            services.progress,
            self.rows,
            self.appender if services.kept is Kept.WITH_THE_LOG else None,
            self.clock,
            subscription.journal,
            batch=subscription.batch,
            isolation=subscription.declaration.isolation,
            timeout=runner.timeout,
            lease=self.lease,
            stall_after=runner.settings.stall_after,
            on_park=runner.settings.on_park,
            committed=runner.settling.committed,
        )

    def _reading(self, subscription: Subscription, opened: Opened, runner: Runner) -> Reading:
        feed = self.place.log.feed
        pages = Pages(
            feed,
            self.queries(subscription, opened.since),
            lanes=opened.lanes,
            by_stream=runner.order.by_stream,
        )
        return Reading(feed, pages, runner.places, runner.filled, runner.outlived, window=runner.settings.window)

    def _writing(self, subscription: Subscription, opened: Opened, runner: Runner) -> Writing:
        checkpoint = subscription.declaration.checkpoint
        return Writing(
            self.place.services.progress,
            self.place.services.cursors,
            self.rows,
            self.clock,
            runner.settings,
            seconds=checkpoint.seconds,
            messages=checkpoint.messages,
            changed=runner.exchanged,
            woke=runner.look_again,
            lost=lambda owned, error: self.lost(opened.id, owned, error),
        )
