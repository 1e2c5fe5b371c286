"""`Milepost`: the object that a program is written around."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar
from uuid import UUID

from milepost import embedded
from milepost.concurrency import in_event_loop
from milepost.dispatch import Route
from milepost.engine.consumers.consumer import Consumer
from milepost.engine.consumers.registry import ConsumerRegistry
from milepost.engine.consumers.routes import routes_of
from milepost.engine.declare.consumer_options import ConsumerSubscriptionOptions, IfExists
from milepost.engine.declare.context import ProgressLocation
from milepost.engine.declare.declaration import address_of
from milepost.engine.declare.handler import Instrument
from milepost.engine.declare.subscription import ProgramSubscriptions, Subscription
from milepost.engine.handlers.program import ErrorsOption, Program, Supervisor
from milepost.engine.handlers.registrar import DeclaredSubscription, SubscriptionRegistrar
from milepost.engine.handlers.settler import RunTally
from milepost.engine.lanes.message_loader import MessageLoader
from milepost.engine.observe.listeners import Listeners
from milepost.engine.operate.create import create_subscription
from milepost.engine.operate.dry_run import DryRun
from milepost.engine.operate.info import SubscriptionInfo, SubscriptionOverview
from milepost.engine.operate.manage import ManagedSubscription
from milepost.engine.operate.trace.results import Trace
from milepost.engine.operate.trace.tracer import DEFAULT_TRACED_MESSAGES, Tracer
from milepost.engine.pull.claims import PulledDeliveries
from milepost.engine.pull.puller import Puller
from milepost.engine.pull.settle import DeliveriesOrTokens, PullSettleResult, SettleReason
from milepost.engine.runtime import Runtime, SuspectIsolation
from milepost.engine.services import (
    Services,
    open_log,
    services_in_another_database,
    services_outside_postgresql,
    services_with_log,
    transaction_log,
)
from milepost.errors import MilepostError, NoDatabase, Unhealthy
from milepost.log.append import Appender
from milepost.log.codec import Codec
from milepost.log.postgres.log import PostgresLog
from milepost.message_methods import MessageMethods, Names
from milepost.names import MigrateMode
from milepost.options import Setting, resolve
from milepost.progress.protocol import Leases, Progress
from milepost.progress.reports import Node

if TYPE_CHECKING:
    from milepost.sync import SyncMilepost

F = TypeVar("F", bound=Callable[..., Any])

NOT_OPEN = "not open: use it inside `async with mp:`, or through mp.sync"
NOT_MAIN_THREAD = (
    "run() waits for SIGINT and SIGTERM, which only the main thread receives: in another thread use "
    "`async with mp.running():`, or `with mp.sync.running():` in code that is not async, and end its block to stop"
)
OTHER_LOOP = "this Milepost is open in another event loop: use a second one, or mp.sync"


class Milepost(MessageMethods):
    """A message log on PostgreSQL, and everything that follows it.

    Every option can also be set by an environment variable, `MILEPOST_` and its name.

    Args:
        url: The address of a PostgreSQL primary, or "embedded" for one of its own in ./.milepost.
            Without it and without `MILEPOST_URL` there is an error: an empty database must not start by accident.
        group: The name of the subscriptions that this program serves together with others like it. Defaults to
            "default".
        schema: The schema that holds everything. Defaults to "milepost".
        progress: The address of another database, the application's own, where progress is to be kept; or an
            object that keeps it, such as `MemoryProgress()`. Defaults to the database of the log.
        leases: An object that says which process works on what: `PostgresLeases()`, which is the default,
            `AdvisoryLeases()`, or `MemoryLeases()`, which is also the default where an object keeps progress.
        concurrency: How many messages this process handles at once. Defaults to the smaller of 20 and 5 for each
            CPU.
        pool_size: Connections for calls. One for the horizon and one for wake-ups come on top. Defaults to 8.
        migrate: What to do about the schema when opened: "auto" brings it up to date, "check" refuses one
            that is not, "off" does not look. Defaults to "auto".
        max_message_bytes: The largest message, in bytes of JSON. Defaults to 1 MiB.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        group: str | None = None,
        schema: str | None = None,
        progress: str | Progress | None = None,
        leases: Leases | None = None,
        concurrency: int | None = None,
        pool_size: int | None = None,
        migrate: MigrateMode | None = None,
        max_message_bytes: int | None = None,
        **unknown: Never,
    ) -> None:
        self.settings = resolve(
            {
                "url": url,
                "group": group,
                "schema": schema,
                "progress": progress,
                "leases": leases,
                "concurrency": concurrency,
                "pool_size": pool_size,
                "migrate": migrate,
                "max_message_bytes": max_message_bytes,
                **unknown,
            }
        )
        self._codec = Codec(self.settings["max_message_bytes"].value)
        self._instruments: list[Instrument] = []
        self._appender = Appender(self._codec, self._instruments)
        self._transaction_log = transaction_log(self.settings["schema"].value, self._codec)
        self._progress_location = ProgressLocation.of(self.settings["url"].value, self.settings["progress"].value)
        self._subscriptions = ProgramSubscriptions(
            self._codec.registered,
            self._progress_location,
            group=self.settings["group"].value,
            instruments=self._instruments,
        )
        self._listeners = Listeners()
        self.node: str | None = None
        """The address at which this process serves consumers elsewhere; the server sets it."""
        self._set_closed()

    def _set_closed(self) -> None:
        """Set all that belongs to one opening, or to one event loop, to what it is before `__aenter__`."""
        self._suspect_isolation = SuspectIsolation()
        self.consumer_registry = ConsumerRegistry(self.runtime, self._listeners)
        """The subscriptions with consumers in this process; for the server."""
        self.puller = Puller(
            self.settings["schema"].value,
            self._progress_location,
            self._transaction_log,
            self.runtime,
            self._listeners,
        )
        """What `pull` and `settle` do; for `mp.sync`."""
        self._log: PostgresLog | None = None
        self._services: Services | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._entered = 0
        self._opening = asyncio.Lock()
        self._supervisors: list[Supervisor] = []
        """Of each block of `running`; one that ended with an error stays until the next one begins."""

    @cached_property
    def url(self) -> str:
        """The address of the PostgreSQL in use; the embedded one is started if need be."""
        url = self.settings["url"].value
        if url is None:
            raise NoDatabase('no database: give Milepost("postgresql://…") or "embedded", or set MILEPOST_URL')
        return _started_url(url)

    @cached_property
    def sync(self) -> "SyncMilepost":
        """The same methods for code that is not async."""
        from milepost.sync import SyncMilepost

        return SyncMilepost(self)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if self._log is not None and self._loop is not loop:
            raise MilepostError(OTHER_LOOP)
        async with self._opening:
            if self._log is None:
                self.check_handlers()
                (self._log, self._services), self._loop = await self._open(), loop
        self._entered += 1
        return self

    async def _open(self) -> tuple[PostgresLog, Services]:
        url = await asyncio.to_thread(lambda: self.url)
        log = await open_log(
            url,
            self.settings["schema"].value,
            self._codec,
            migrate=self.settings["migrate"].value,
            pool_size=self.settings["pool_size"].value,
        )
        try:
            return log, await self._open_services(log)
        except BaseException:
            await log.close()
            raise

    async def _open_services(self, log: PostgresLog) -> Services:
        progress, leases = self.settings["progress"].value, self.settings["leases"].value
        match self._progress_location:
            case ProgressLocation.WITH_THE_LOG:
                return services_with_log(log, self.url, leases)
            case ProgressLocation.OUTSIDE:
                return services_outside_postgresql(log, self.url, progress, leases)
            case ProgressLocation.IN_ANOTHER_DATABASE:
                return await services_in_another_database(
                    log,
                    await asyncio.to_thread(_started_url, progress),
                    leases,
                    migrate=self.settings["migrate"].value,
                    pool_size=self.settings["pool_size"].value,
                )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered -= 1
        if self._entered == 0:
            self._opening = asyncio.Lock()
            await self._close()

    async def _close(self) -> None:
        log, services = self._log, self._services
        if log is not None:
            await self.consumer_registry.close()
            await self.puller.close()
        self._log = self._services = self._loop = None
        if services is not None:
            await services.close()
        if log is not None:
            await log.close()

    def forget(self) -> object:
        """In a forked process: what is open stayed in the parent; gives what must not be ended here."""
        left = self._log, self._services
        self._log = self._services = self._loop = None
        self._entered = 0
        self._supervisors = []
        return left

    def twin(self) -> Self:
        """Return a copy that is not open: it has the same declarations, and opens a log of its own.

        This is for Milepost's own parts.
        """
        twin = copy(self)
        vars(twin).pop("sync", None)
        twin._set_closed()
        return twin

    def adopt(self, original: "Milepost", provide: Mapping[Any, Any]) -> None:
        """Take over what another one declares. `provide` has objects for handlers, by their types.

        This is for Milepost's own parts.
        """
        self._instruments += original._instruments
        self._codec.adopt(original._codec)
        self._subscriptions.adopt(original._subscriptions, provide)
        self._listeners.adopt(original._listeners)

    @property
    def log(self) -> PostgresLog:
        """The open log; an error if it is not open."""
        if self._log is None:
            raise MilepostError(NOT_OPEN)
        if in_event_loop() and asyncio.get_running_loop() is not self._loop:
            raise MilepostError(OTHER_LOOP)
        return self._log

    @property
    def services(self) -> Services:
        """Who keeps progress and leases; an error if it is not open."""
        if self._services is None:
            raise MilepostError(NOT_OPEN)
        return self._services

    def subscription(self, name: str, **options: Any) -> Subscription:
        """Declares a durable subscription: a decorator for its handler, or with `.on` for several.

        Its options are those of `milepost.engine.declare.declaration.Declaration`.
        """
        return self._subscriptions.declare(name, options)

    def provide(self, function: F) -> F:
        """Declares what gives handlers something, found by its return type."""
        return self._subscriptions.provide(function)

    def on_event(self, function: F) -> F:
        """Declares a listener: a function that is told what happens to subscriptions that this program works on.

        The annotation of its parameter says of what: a class of `milepost.events`, a union of them, or nothing
        for everything. A plain function is called on the event loop, so it has to be quick. An `async` one gets
        its events one after the other and delays nobody; when 10,000 wait for it, or 8 MiB, it misses further
        ones. What a listener raises is logged and changes nothing. One that is declared while the program runs
        listens from its next start on, or when the first consumer of a subscription comes.
        """
        return self._listeners.add(function)

    def instrument(self, instrument: Instrument) -> None:
        """Lets an object see appends and calls of handlers from inside, as tracing has to. Call it before running.

        `milepost.contrib.opentelemetry` has one. What it raises is logged and changes nothing.
        """
        self._instruments.append(instrument)

    def declared(self) -> list[Subscription]:
        """The subscriptions of this program, ready to run; refuses what is missing for that."""
        self._subscriptions.check()
        return list(self._subscriptions)

    def declared_subscription(self, name: str) -> Subscription:
        """Return a subscription of this program, ready to run; it needs no database.

        Raises what `declared` raises, and `UnknownSubscription` with a suggestion.

        This is for Milepost's own parts.
        """
        self._subscriptions.check()
        return self._subscriptions[name]

    def check_handlers(self) -> None:
        """Make the handlers that are declared so far ready; refuse what nobody provides. It needs no database.

        This is for Milepost's own parts.
        """
        self._subscriptions.check_handlers()

    def leave_schema(self, source: str) -> None:
        """Check the schema when this opens, where `migrate` is "auto", and change nothing. Call it before opening.

        `source` is the origin of that, as `milepost config` shows it.

        This is for Milepost's own parts.
        """
        if self.settings["migrate"].value == "auto":
            self.settings["migrate"] = Setting("migrate", "check", source)

    async def create_declared(self) -> list[DeclaredSubscription]:
        """Create the declared subscriptions that are not there yet, without running them.

        A worker that starts does that by itself. Called before, it fixes where `start="now"` is, and one with
        `paused=True` waits until somebody resumes it. What is there already stays as it is: a worker brings a
        changed definition into force when it starts.
        """
        async with self:
            declared, runtime = self.declared(), self.runtime()
            return await SubscriptionRegistrar(runtime, MessageLoader(runtime.log)).create(declared)

    async def run(self, *, grace: float = 25) -> None:
        """Works for this program's subscriptions until SIGINT or SIGTERM.

        The first signal lets handlers that run end, for at most `grace` seconds. Only the main thread can receive
        signals: elsewhere use `running()`.
        """
        if threading.current_thread() is not threading.main_thread():
            raise MilepostError(NOT_MAIN_THREAD)
        async with self:
            await self.program().run(grace)

    @asynccontextmanager
    async def running(self, *, only: Names | None = None, grace: float = 25) -> AsyncIterator[None]:
        """Work for this program's subscriptions, or `only` for some, inside another program.

        A `def` handler whose thread does not return within `grace` seconds after its time-out ends the workers.
        The block goes on and they start again, at most three times; after that `health` fails.
        """
        async with self:
            supervisor = self.program().supervisor(only, grace)
            self._supervisors = [other for other in self._supervisors if not other.is_over]
            self._supervisors.append(supervisor)
            async with supervisor.running():
                yield
            self._supervisors.remove(supervisor)

    def health(self) -> None:
        """Raise `Unhealthy` if only a new process helps: for the probe of a program that others watch over.

        That is so when this `Milepost` is not open, when the workers of `running` have given up after handlers
        that hung, or ended with an error, and while a handler blocks their event loop. It asks no database: an
        outage passes, and no restart mends it.
        """
        if self._log is None:
            raise Unhealthy(NOT_OPEN)
        for supervisor in list(self._supervisors):
            if (failure := supervisor.failure()) is not None:
                raise Unhealthy(failure)

    async def run_until_idle(
        self, *, errors: ErrorsOption = "raise", only: Names | None = None
    ) -> dict[str, RunTally]:
        """Works until nothing that was appended by now, or by handlers meanwhile, can run.

        The first error of a handler is raised; with `errors="park"` its message is parked instead.
        """
        async with self:
            return await self.program().run_until_idle(errors, only)

    async def subscriptions(self) -> list[SubscriptionInfo]:
        """How each subscription of every group stands: status, lag, what needs attention, lanes and their owners.

        It can be asked from any process, and costs the same however long the log is.
        """
        return await SubscriptionOverview(self.runtime()).all()

    async def nodes(self) -> list[Node]:
        """The servers on this database that clients can connect to, the first that came first."""
        return await self.runtime().services.nodes.all()

    async def trace(
        self,
        target: str | UUID,
        *,
        group: str | None = None,
        subscription: str | None = None,
        limit: int = DEFAULT_TRACED_MESSAGES,
        before_version: int | None = None,
    ) -> Trace:
        """Where messages are: for each one of a stream, and each subscription of every group, what became of it.

        It is exact, from what is stored and with the definition that was in force when a message was passed, and
        costs the same however long the log is. Only a subscription that orders by a function needs the program
        that has it: this `Milepost`, if it declares the subscription, else the answer may be `unsure`.

        Args:
            target: A stream, or the id of a message. A search by id walks through an index, some 20 ms for each
                million messages.
            group: Only the subscriptions of this group.
            subscription: Only those of this name, or the one of this address, `group/name`.
            limit: At most so many messages, the newest ones; 1 to 1,000. Defaults to 100.
            before_version: Only older versions than this: `before_version` of the page before.
        """
        of, slash, name = (subscription or "").rpartition("/")
        return await Tracer(self.runtime()).trace(
            target,
            group=of if slash else group,
            subscription=name or None,
            limit=limit,
            before_version=before_version,
        )

    async def create_subscription(
        self, /, name: str, *, if_exists: IfExists = "update", **options: Any
    ) -> ManagedSubscription:
        """Creates a durable subscription for consumers, or for pulling with `tracking="all"`.

        Its options are those of `milepost.engine.declare.consumer_options.ConsumerSubscriptionOptions`. They are
        stored, and `manage(…).update` changes them while consumers run. Returns what `manage` gives.

        Args:
            name: `group/name`, or the name alone for one of the own group.
            if_exists: "update" (the default) changes its settings to these, "error" raises `AlreadyExists`,
                "ignore" leaves it as it is.
        """
        group, own_name = self.address(name)
        await create_subscription(
            self.runtime(), group, ConsumerSubscriptionOptions.of(own_name, options), if_exists
        )
        return self.manage(name)

    def consumer(
        self,
        subscription: str,
        *,
        where: str | None = None,
        priority: int | None = None,
        capacity: int | None = None,
        capacity_bytes: int | None = None,
        routes: Sequence[Route] | None = None,
    ) -> Consumer:
        """A consumer of a subscription that was created: `async with mp.consumer("shipping") as consumer`.

        Args:
            subscription: `group/name`, or the name alone for one of the own group.
            where: A filter over the messages' properties; without it everything is taken.
            priority: A message goes to the highest priority that matches. Defaults to 0.
            capacity: The most messages that are open at a time; 0 pauses. Defaults to 1,000.
            capacity_bytes: No more messages while those that are open have this size. Defaults to 32 MiB.
            routes: Several of the above, instead.
        """
        options = {"where": where, "priority": priority, "capacity": capacity, "capacity_bytes": capacity_bytes}
        return self.consumer_registry.consumer(*self.address(subscription), routes_of(routes, options))

    async def pull(
        self,
        subscription: str,
        *,
        limit: int = 100,
        wait: float = 0,
        timeout: float | None = None,
        connection: object | None = None,
    ) -> PulledDeliveries:
        """Claims deliveries of a subscription that was created with `tracking="all"`, to be settled with `settle`.

        Any number of processes may pull at once. What is tried again comes first. What is not settled in time goes
        to others; that counts as an attempt, and after the last one the message is parked.

        Args:
            subscription: `group/name`, or the name alone for one of the own group.
            limit: At most so many, 1 to 10,000. Defaults to 100. Their messages have at most 8 MiB together.
            wait: Seconds to wait for the first one, if there is none. Defaults to 0, at most an hour.
            timeout: Seconds to settle them in. Defaults to the subscription's own.
            connection: The caller's own connection, to the database that progress is kept in: the claims are part
                of its transaction. Only what is ready is claimed then; somebody else has to look at the log.
        """
        group, name = self.address(subscription)
        if connection is None:
            return await self.puller.pull(group, name, limit=limit, wait=wait, timeout=timeout)
        claimer = await self.puller.claim(connection, group, name, limit=limit, wait=wait, timeout=timeout)
        return await self.puller.deliveries_of(claimer, connection)

    def address(self, subscription: str) -> tuple[str, str]:
        """Return group and name of `group/name`, or of a name alone, which is one of the own group.

        This is for Milepost's own parts.
        """
        return address_of(subscription, self.settings["group"].value)

    async def settle(
        self,
        *,
        ack: DeliveriesOrTokens = (),
        retry: DeliveriesOrTokens = (),
        park: DeliveriesOrTokens = (),
        skip: DeliveriesOrTokens = (),
        extend: DeliveriesOrTokens = (),
        reason: SettleReason = "",
        after: float | None = None,
        timeout: float | None = None,
        id: UUID | None = None,
        connection: object | None = None,
    ) -> PullSettleResult:
        """Settles deliveries that were pulled, in one transaction: each whose claim still holds.

        Each outcome takes one delivery or several, or their tokens, or a mapping of them to reasons. The result
        says which were moved and which refused.

        Args:
            ack: They are done.
            retry: They failed: they come again when the subscription's policy says, and are parked at its limit.
            park: They are given up until a person decides.
            skip: They are not wanted, and done.
            extend: They take longer, and are kept for `timeout` seconds from now on.
            reason: Why, for those that failed: a text, or an exception, which is stored with its traceback.
            after: Seconds after which those of `retry` come again. Defaults to what the policy says.
            timeout: Seconds for those of `extend`. Defaults to the subscription's own.
            id: Of this request, if you want to repeat it when its answer gets lost: within five minutes it is done
                once, and answered the same. Defaults to none.
            connection: The caller's own connection, to the database that progress is kept in: it is part of its
                transaction.
        """
        return await self.puller.settle(
            {"ack": ack, "retry": retry, "park": park, "skip": skip, "extend": extend},
            reason=reason,
            after=after,
            timeout=timeout,
            id=id,
            connection=connection,
        )

    def manage(self, address: str) -> ManagedSubscription:
        """A subscription to look at and to operate: `group/name`, or the name alone for one of the own group."""
        return ManagedSubscription(*self.address(address), self.runtime)

    def dry_run(self, subscription: Subscription) -> DryRun:
        """Return a dry run of a subscription's handlers: real messages, in a transaction that is rolled back.

        This is for Milepost's own parts.
        """
        return DryRun(self.runtime(), self._appender, subscription)

    def runtime(self) -> Runtime:
        """Return what the parts of an open `Milepost` share. It is for Milepost's own parts."""
        return Runtime(
            log=self.log,
            services=self.services,
            subscriptions=self._subscriptions,
            suspect_isolation=self._suspect_isolation,
            group=self.settings["group"].value,
            node=self.node,
        )

    def program(self) -> Program:
        """Return what runs the subscriptions of this open `Milepost`. It is for Milepost's own parts."""
        return Program(
            self.runtime(),
            self._appender,
            concurrency=self.settings["concurrency"].value,
            listeners=self._listeners,
        )

    async def _check_writer(self, connection: object | None) -> None:
        """Refuse a connection to another database than the log's."""
        if connection is not None and self._services is not None:
            await self._services.check_connection(connection)


def _started_url(url: str) -> str:
    """The address of a PostgreSQL; an embedded one runs from now on."""
    return embedded.start(url) if embedded.is_embedded(url) else url
