"""`Milepost`: the object that a program is written around."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar
from uuid import UUID

from milepost import embedded
from milepost.dispatch import Route
from milepost.engine.consuming.consumer import Consumer
from milepost.engine.consuming.created import IfExists, create
from milepost.engine.consuming.desks import Desks
from milepost.engine.consuming.options import Created
from milepost.engine.consuming.routing import routes_of
from milepost.engine.declaration import address_of
from milepost.engine.declaring import DeclaredSubscription, Declaring
from milepost.engine.info import Overview, SubscriptionInfo
from milepost.engine.instrument import Instrument
from milepost.engine.kept import Kept
from milepost.engine.listeners import Listeners
from milepost.engine.managed import ManagedSubscription
from milepost.engine.place import Place
from milepost.engine.program import Errors, Program
from milepost.engine.pulling.claims import Claims
from milepost.engine.pulling.pulled import Pulled
from milepost.engine.pulling.puller import Puller
from milepost.engine.pulling.settling import Reason, Settled, Several
from milepost.engine.query import query_of
from milepost.engine.report import Tally
from milepost.engine.rows import Rows
from milepost.engine.services import Services, in_another_database, outside, with_log
from milepost.engine.solitude import Solitude
from milepost.engine.subscription import Subscription, Subscriptions
from milepost.engine.supervisor import Supervisor
from milepost.engine.trace.traced import Trace
from milepost.engine.trace.tracer import LIMIT, Tracer
from milepost.errors import InvalidMessage, MilepostError, NoDatabase, Unhealthy
from milepost.filter import compile_filter
from milepost.log.appender import Appender, batches_of, several
from milepost.log.codec import Codec, check_stream
from milepost.log.connections import Executor, executor_of
from milepost.log.database import Database
from milepost.log.feed import Now, check_after
from milepost.log.log import Log
from milepost.log.message import ANY, Appended, Message
from milepost.log.reader import END, Page, Query, Reader, check_bounds, one_ahead
from milepost.log.registering import Registering
from milepost.log.schema import Migrate
from milepost.log.selection import Selection
from milepost.log.since import Since
from milepost.log.statements import Statements
from milepost.options import resolve
from milepost.progress.nodes import Node, PostgresNodes
from milepost.progress.protocol import Leases, Progress

if TYPE_CHECKING:
    from milepost.sync import SyncMilepost

F = TypeVar("F", bound=Callable[..., Any])

Names = str | Sequence[str]

SLOW_MESSAGES_PER_SECOND = 1000
"""Messages that a slow server writes in a second; a large append gets that much more time."""
NOT_OPEN = "not open: use it inside `async with mp:`, or through mp.sync"
NOT_MAIN_THREAD = (
    "run() waits for SIGINT and SIGTERM, which only the main thread receives: in another thread use "
    "`async with mp.running():`, or `with mp.sync.running():` in code that is not async, and end its block to stop"
)
OTHER_LOOP = "this Milepost is open in another event loop: use a second one, or mp.sync"


class Milepost(Registering):
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
        migrate: Migrate | None = None,
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
        self._statements = Statements(self.settings["schema"].value)
        self._codec = Codec(self.settings["max_message_bytes"].value)
        self._instruments: list[Instrument] = []
        self._appender = Appender(self._statements, self._codec, self._instruments)
        self._reader = Reader(self._statements, self._codec)
        self._kept = Kept.of(self.settings["url"].value, self.settings["progress"].value)
        self._subscriptions = Subscriptions(
            self._codec.registered, self._kept, group=self.settings["group"].value, instruments=self._instruments
        )
        self._listeners = Listeners()
        self._solitude = Solitude()
        self.desks = Desks(self._place, self._listeners)
        """The subscriptions with consumers in this process; for the server."""
        self.node: str | None = None
        """The address at which this process serves consumers elsewhere; the server sets it."""
        self._puller = Puller(self._statements.schema, self._kept, self._reader, self._place, self._listeners)
        self._log: Log | None = None
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
        return _started(url)

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
                self._subscriptions.check_handlers()
                (self._log, self._services), self._loop = await self._open(), loop
        self._entered += 1
        return self

    async def _open(self) -> tuple[Log, Services]:
        url = await asyncio.to_thread(lambda: self.url)
        database = Database(url, pool_size=self.settings["pool_size"].value)
        log = Log(database, self._statements, self._reader)
        await log.open(self.settings["migrate"].value)
        try:
            return log, await self._open_services(log)
        except BaseException:
            await log.close()
            raise

    async def _open_services(self, log: Log) -> Services:
        progress, leases = self.settings["progress"].value, self.settings["leases"].value
        match self._kept:
            case Kept.WITH_THE_LOG:
                return with_log(log, self.url, leases)
            case Kept.OUTSIDE:
                return outside(log, self.url, progress, leases)
            case Kept.IN_ANOTHER_DATABASE:
                return await in_another_database(
                    log,
                    await asyncio.to_thread(_started, progress),
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
            await self.desks.close()
            await self._puller.close()
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

    @property
    def log(self) -> Log:
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

        Its options are those of `milepost.engine.declaration.Declaration`.
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

    async def create_declared(self) -> list[DeclaredSubscription]:
        """Create the declared subscriptions that are not there yet, without running them.

        A worker that starts does that by itself. Called before, it fixes where `start="now"` is, and one with
        `paused=True` waits until somebody resumes it. What is there already stays as it is: a worker brings a
        changed definition into force when it starts.
        """
        async with self:
            declared, place = self.declared(), self._place()
            return await Declaring(place, Rows(place.log.database, place.reader)).create(declared)

    async def run(self, *, grace: float = 25) -> None:
        """Works for this program's subscriptions until SIGINT or SIGTERM.

        The first signal lets handlers that run end, for at most `grace` seconds. Only the main thread can receive
        signals: elsewhere use `running()`.
        """
        if threading.current_thread() is not threading.main_thread():
            raise MilepostError(NOT_MAIN_THREAD)
        async with self:
            await self._program().run(grace)

    @asynccontextmanager
    async def running(self, *, only: Names | None = None, grace: float = 25) -> AsyncIterator[None]:
        """Work for this program's subscriptions, or `only` for some, inside another program.

        A `def` handler whose thread does not return within `grace` seconds after its time-out ends the workers.
        The block goes on and they start again, at most three times; after that `health` fails.
        """
        async with self:
            supervisor = self._program().supervisor(only, grace)
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

    async def run_until_idle(self, *, errors: Errors = "raise", only: Names | None = None) -> dict[str, Tally]:
        """Works until nothing that was appended by now, or by handlers meanwhile, can run.

        The first error of a handler is raised; with `errors="park"` its message is parked instead.
        """
        async with self:
            return await self._program().run_until_idle(errors, only)

    async def subscriptions(self) -> list[SubscriptionInfo]:
        """How each subscription of every group stands: status, lag, what needs attention, lanes and their owners.

        It can be asked from any process, and costs the same however long the log is.
        """
        return await Overview(self._place()).all()

    async def nodes(self) -> list[Node]:
        """The servers on this database that clients can connect to, the first that came first."""
        place = self._place()
        return await PostgresNodes(place.services.database or place.log.database, self._statements.schema).all()

    async def trace(
        self,
        target: str | UUID,
        *,
        group: str | None = None,
        subscription: str | None = None,
        limit: int = LIMIT,
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
        return await Tracer(self._place()).trace(
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

        Its options are those of `milepost.engine.consuming.options.Created`; they are stored, and
        `manage(…).update` changes them while consumers run. What `manage` gives is returned.

        Args:
            name: `group/name`, or the name alone for one of the own group.
            if_exists: "update" (the default) changes its settings to these, "error" raises `AlreadyExists`,
                "ignore" leaves it as it is.
        """
        group, own_name = self._address(name)
        await create(self._place(), group, Created.of(own_name, options), if_exists)
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
        return self.desks.consumer(*self._address(subscription), routes_of(routes, options))

    async def pull(
        self,
        subscription: str,
        *,
        limit: int = 100,
        wait: float = 0,
        timeout: float | None = None,
        connection: object | None = None,
    ) -> Pulled:
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
        if connection is None:
            group, name = self._address(subscription)
            return await self._puller.pull(group, name, limit=limit, wait=wait, timeout=timeout)
        executor = self._executor(connection)
        claims = await self._claim(subscription, executor, limit=limit, wait=wait, timeout=timeout)
        return await self._puller.brought(claims, executor)

    async def _claim(
        self, subscription: str, executor: Executor, *, limit: int, wait: float, timeout: float | None
    ) -> Claims:
        """What a pull in a caller's transaction claims; its messages are to be brought."""
        if wait:
            raise ValueError("wait: a pull in your transaction does not wait")
        group, name = self._address(subscription)
        return await self._puller.claim(executor, group, name, limit=limit, timeout=timeout)

    def _address(self, subscription: str) -> tuple[str, str]:
        return address_of(subscription, self.settings["group"].value)

    async def settle(
        self,
        *,
        ack: Several = (),
        retry: Several = (),
        park: Several = (),
        skip: Several = (),
        extend: Several = (),
        reason: Reason = "",
        after: float | None = None,
        timeout: float | None = None,
        id: UUID | None = None,
        connection: object | None = None,
    ) -> Settled:
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
        return await self._puller.settle(
            {"ack": ack, "retry": retry, "park": park, "skip": skip, "extend": extend},
            reason=reason,
            after=after,
            timeout=timeout,
            id=id,
            executor=None if connection is None else self._executor(connection),
        )

    def manage(self, address: str) -> ManagedSubscription:
        """A subscription to look at and to operate: `group/name`, or the name alone for one of the own group."""
        return ManagedSubscription(*self._address(address), self._place)

    def _place(self) -> Place:
        return Place(
            log=self.log,
            reader=self._reader,
            services=self.services,
            subscriptions=self._subscriptions,
            solitude=self._solitude,
            group=self.settings["group"].value,
            node=self.node,
        )

    def _program(self) -> Program:
        return Program(
            self._place(),
            self._appender,
            concurrency=self.settings["concurrency"].value,
            listeners=self._listeners,
        )

    @property
    def codec(self) -> Codec:
        """How messages become JSON, and JSON messages. It is for Milepost's own parts."""
        return self._codec

    async def append(
        self,
        stream: str,
        messages: Any,
        *,
        expected: int = ANY,
        connection: object | None = None,
        wake: bool = True,
    ) -> Appended:
        """Appends one message, or several atomically, to a stream named `category-id`.

        Args:
            stream: The stream; a new one begins with its first message.
            messages: An instance of a registered class or a `NewMessage`, or a list of them.
            expected: The version that the stream must have, `NO_STREAM`, `STREAM_EXISTS` or `ANY` (the default).
                Another version raises `WrongVersion`; nothing is written and the transaction stays usable.
            connection: The caller's own connection: the append is part of its transaction.
            wake: False for a transaction that will be PREPAREd, which may not notify.
        """
        executor = await self._writer(connection)
        return await self._appender.append(executor, stream, several(messages), expected=expected, wake=wake)

    async def append_many(
        self,
        messages: Mapping[str, Any],
        *,
        expected: Mapping[str, int] | None = None,
        connection: object | None = None,
        wake: bool = True,
    ) -> dict[str, Appended]:
        """Append to several streams: all or nothing. The result has them in the order given.

        `expected` has a version for each stream that needs one.
        """
        batches = batches_of(messages)
        executor = await self._writer(connection)
        if isinstance(executor, Database):
            count = sum(map(len, batches.values()))
            executor = executor.within(executor.statement_seconds + count / SLOW_MESSAGES_PER_SECOND)
        return await self._appender.append_many(executor, batches, expected=expected or {}, wake=wake)

    async def read(
        self,
        stream: Names | None = None,
        *,
        category: Names | None = None,
        types: Names | None = None,
        where: str | None = None,
        after: int = 0,
        after_version: int = 0,
        before: int | None = None,
        before_version: int | None = None,
        since: datetime | None = None,
        backwards: bool = False,
        limit: int | None = None,
        connection: object | None = None,
    ) -> AsyncGenerator[Message[Any], None]:
        """Messages that are there now, in order, in pages; it never waits.

        One stream is read by version to its last committed message. Anything else is read by position to the
        horizon, behind which no message can appear any more.

        Args:
            stream: One stream, or any of several.
            category: One category, or any of several.
            types: One type, or any of several; `*` is one dotted part and `>` is the rest.
            where: A filter over the messages' properties, such as `amount >= 100 && region == "EU"`.
            after: Only messages with a higher position.
            after_version: Only messages with a higher version; for one stream.
            before: Only messages with a lower position; not for one stream.
            before_version: Only messages with a lower version; for one stream.
            since: Only messages of this time or later.
            backwards: The newest first.
            limit: At most so many.
            connection: The caller's own connection, whose transaction is read in; for one stream.
        """
        pages = self.read_pages(
            stream,
            category=category,
            types=types,
            where=where,
            after=after,
            after_version=after_version,
            before=before,
            before_version=before_version,
            since=since,
            backwards=backwards,
            limit=limit,
            connection=connection,
        )
        async with aclosing(pages):
            async for page in pages:
                for message in page:
                    yield message

    async def read_pages(
        self,
        stream: Names | None = None,
        *,
        category: Names | None = None,
        types: Names | None = None,
        where: str | None = None,
        after: int = 0,
        after_version: int = 0,
        before: int | None = None,
        before_version: int | None = None,
        since: datetime | None = None,
        backwards: bool = False,
        limit: int | None = None,
        connection: object | None = None,
        looked: Callable[[int], None] = lambda _: None,
    ) -> AsyncGenerator[Page, None]:
        """What `read` gives, in the lists it is fetched in.

        As long as nothing was found, `looked` is told from which position, or version of one stream, to go on.
        """
        check_bounds(
            stream,
            limit=limit,
            after=after,
            after_version=after_version,
            before=before,
            before_version=before_version,
            since=since,
        )
        selection = Selection.of(category=category, stream=stream, types=types)
        query = _query(selection, where, since=since, backwards=backwards)
        if isinstance(stream, str):
            pages = self._reader.stream_pages(
                self._executor(connection),
                stream,
                query,
                after=after,
                after_version=after_version,
                before_version=END + 1 if before_version is None else before_version,
                limit=limit,
                looked=looked,
            )
        elif connection is not None:
            raise InvalidMessage("stream", "connection is for reading one stream")
        else:
            horizon = self.log.horizon
            high = await horizon.look()
            high = high if before is None else min(high, before - 1)
            pages = one_ahead(
                self._reader.log_pages(
                    self.log.database,
                    query,
                    low=after,
                    high=high,
                    limit=limit,
                    life=horizon.life,
                    looked=looked,
                )
            )
        async with aclosing(pages):
            async for page in pages:
                yield page

    async def follow(
        self,
        stream: Names | None = None,
        *,
        category: Names | None = None,
        types: Names | None = None,
        where: str | None = None,
        after: int | Now = 0,
    ) -> AsyncGenerator[Message[Any], None]:
        """Messages in order, for ever: those there now, then each new one once it is final.

        All followers of a process share one feed. Leaving the loop ends the following.

        Args:
            stream: One stream, or any of several.
            category: One category, or any of several.
            types: One type, or any of several; `*` is one dotted part and `>` is the rest.
            where: A filter over the messages' properties, such as `amount >= 100 && region == "EU"`.
            after: Only messages with a higher position, or `NOW` for those not there yet when the loop begins.
        """
        pages = self.follow_pages(stream, category=category, types=types, where=where, after=after)
        async with aclosing(pages):
            async for page in pages:
                for message in page:
                    yield message

    async def follow_pages(
        self,
        stream: Names | None = None,
        *,
        category: Names | None = None,
        types: Names | None = None,
        where: str | None = None,
        after: int | Now = 0,
    ) -> AsyncGenerator[Page, None]:
        """What `follow` gives, in lists."""
        check_after(after)
        query = _query(Selection.of(category=category, stream=stream, types=types), where)
        async with aclosing(self.log.feed.follow(query, after)) as pages:
            async for page in pages:
                yield page

    async def head(self) -> int:
        """The horizon: the position up to which `read` goes now. It never waits."""
        return await self.log.horizon.look()

    async def last(self, stream: str, *, connection: object | None = None) -> int:
        """The version of a stream's last message; 0 if it has none."""
        check_stream(stream)
        executor = self._executor(connection)
        rows = await executor.execute(self._statements.get("last_version"), {"stream": stream})
        return int(rows[0][0])

    async def _writer(self, connection: object | None) -> Executor:
        executor = self._executor(connection)
        following = self._services.following if self._services else None
        if connection is not None and following is not None:
            await following.refuse_another_log(executor)
        return executor

    def _executor(self, connection: object | None) -> Executor:
        if connection is None:
            return self.log.database
        executor = executor_of(connection)
        if executor.blocking and in_event_loop():
            raise TypeError("connection: it would block the event loop; use mp.sync, or an async connection")
        return executor


def _query(
    selection: Selection, where: str | None, *, since: datetime | None = None, backwards: bool = False
) -> Query:
    compiled = None if where is None else compile_filter(where)
    wanted = None if since is None else Since(since)
    return query_of(selection, compiled, since=wanted, backwards=backwards)


def _started(url: str) -> str:
    """The address of a PostgreSQL; an embedded one runs from now on."""
    return embedded.start(url) if embedded.is_embedded(url) else url


def in_event_loop() -> bool:
    """Whether this thread runs an event loop now."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
