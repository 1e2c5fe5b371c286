"""A fresh schema for a test: made and dropped, its clock moved, and the copies of programs that run on it."""

import asyncio
import inspect
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, wraps
from typing import Any, TypeVar
from urllib.parse import quote, urlencode
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from milepost.app import Milepost
from milepost.engine.checks import checked, seconds
from milepost.engine.operate.manage import ManagedSubscription
from milepost.errors import MilepostError, NoDatabase
from milepost.postgres import schema
from milepost.postgres.statements import Statements
from milepost.sync import SyncMilepost

OpenedClass = TypeVar("OpenedClass", bound=type)

_COPIED_OPTIONS = ("group", "concurrency", "pool_size", "max_message_bytes")


def opens_for_each_call(cls: OpenedClass) -> OpenedClass:
    """Let every public async method that a class inherits be called while nothing is open: each call opens it.

    A test has no place of its own for `async with mp`, and its event loop may end before its fixtures do.
    """
    for name in dir(cls):
        if not name.startswith("_") and name not in vars(cls):
            method = inspect.getattr_static(cls, name)
            if inspect.iscoroutinefunction(method):
                setattr(cls, name, _opening_coroutine(method))
            elif inspect.isasyncgenfunction(method):
                setattr(cls, name, _opening_generator(method))
    return cls


def _opening_coroutine(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        async with self.opened():
            return await method(self, *args, **kwargs)

    return call


def _opening_generator(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        async with self.opened(), aclosing(method(self, *args, **kwargs)) as values:
            async for value in values:
                yield value

    return call


@opens_for_each_call
class BoundSubscription(ManagedSubscription):
    """What `manage` gives for a copy."""

    def __init__(self, milepost: "BoundMilepost", managed: ManagedSubscription) -> None:
        super().__init__(managed.group, managed.name, milepost.runtime)
        self._milepost = milepost

    def opened(self) -> AbstractAsyncContextManager[Milepost]:
        """Open from the beginning of the block to its end."""
        return self._milepost


@opens_for_each_call
class BoundMilepost(Milepost):
    """A copy of a program that keeps everything, its progress too, in one schema, and opens by itself.

    Its blocking methods are those of a twin, so that a test can use both in whatever order.
    """

    def __init__(self, original: Milepost, *, url: str, schema: str, provide: Mapping[Any, Any]) -> None:
        options = {name: original.settings[name].value for name in _COPIED_OPTIONS}
        super().__init__(url, schema=schema, progress=url, migrate="off", **options)
        self.adopt(original, provide)

    def opened(self) -> AbstractAsyncContextManager[Milepost]:
        """Open from the beginning of the block to its end."""
        return self

    def manage(self, address: str) -> ManagedSubscription:
        """A subscription to look at and to operate: `group/name`, or the name alone for one of the own group."""
        return BoundSubscription(self, super().manage(address))

    @cached_property
    def sync(self) -> SyncMilepost:
        """The same methods for code that is not async."""
        return SyncMilepost(self.twin())

    def end(self) -> None:
        """Closes what `sync` has opened."""
        if "sync" in vars(self):
            self.sync.close()


LOCK_WAIT_SECONDS = 3.0
"""How long a drop waits for others before they are ended. More than PostgreSQL's `deadlock_timeout`, after which
autovacuum gives way by itself."""
MAX_LOCK_WAITS = 5
"""How many such waits a drop has, when whoever holds it up cannot be ended."""
MAX_DEADLOCKS = 3
"""How often a drop that PostgreSQL chose to break a deadlock is tried again."""
MAX_STATEMENT_CHARACTERS = 120

BlockingConnection = psycopg.Connection[Any]
ConnectBlocking = Callable[[], AbstractContextManager[BlockingConnection]]


@dataclass(frozen=True)
class DropBlocker:
    """A session or a prepared transaction that holds what a drop waits for."""

    pid: int | None
    gid: str | None
    """The name of a prepared transaction, which has no process."""
    application: str
    role: str
    state: str
    seconds: float | None
    """The age of the transaction; None if the role may not see it."""
    statement: str

    def __str__(self) -> str:
        age = "" if self.seconds is None else f" for {self.seconds:.0f} s"
        if self.pid is None:
            return f"transaction {self.gid!r}, prepared by role {self.role}{age}"
        words = [f"pid {self.pid}", f"application {self.application!r}", f"role {self.role}"]
        if self.state:
            words.append(f"{self.state}{age}")
        if statement := " ".join(self.statement.split()):
            words.append(f"last statement: {statement[:MAX_STATEMENT_CHARACTERS]}")
        return ", ".join(words)

    def end(self, connection: BlockingConnection, statements: Statements) -> None:
        """End the session, or roll the prepared transaction back."""
        if self.pid is None:
            connection.execute(sql.SQL("rollback prepared {}").format(self.gid))
        else:
            connection.execute(statements.get("end"), {"pid": self.pid})


@dataclass
class SchemaDropper:
    """Drops schemas. Whoever keeps one from being dropped is ended, and named in a warning."""

    connect: ConnectBlocking
    statements: Statements
    ended: dict[int | str | None, DropBlocker] = field(default_factory=dict)
    """Who was ended, by pid or name."""

    def drop(self, *schemas: Statements) -> None:
        """Drop each; raise `MilepostError` if one is held by somebody who cannot be ended."""
        with self.connect() as connection:
            # Whoever holds it up is looked for: a time-out of the user's own would end the drop instead.
            connection.execute("set lock_timeout = 0; set statement_timeout = 0")
            for each in schemas:
                self._execute(connection, each)
        if self.ended:
            who = "; ".join(map(str, self.ended.values()))
            warnings.warn(
                f"milepost_db: what was left open beside the test kept schema {schemas[0].schema} from being "
                f"dropped for {LOCK_WAIT_SECONDS:g} s. Ended: {who}. Commit or roll back before the test ends.",
                stacklevel=2,
            )

    def _execute(self, connection: BlockingConnection, schema: Statements) -> None:
        # The statement waits in a thread: only while it waits does the server know for whom.
        with ThreadPoolExecutor(1, "milepost-drop") as thread:
            for attempt in range(MAX_DEADLOCKS + 1):
                dropping = thread.submit(connection.execute, schema.get("drop"))
                try:
                    self._end_blockers(schema.schema, connection, dropping)
                    dropping.result()
                except psycopg.errors.DeadlockDetected:
                    if attempt == MAX_DEADLOCKS:
                        raise
                except BaseException:
                    # Giving up, or Ctrl-C. The thread is waited for, so its statement has to end.
                    with suppress(psycopg.Error):
                        connection.cancel_safe()
                    raise
                else:
                    return

    def _end_blockers(self, schema: str, waiting: BlockingConnection, dropping: "Future[Any]") -> None:
        waits = 0
        while not wait([dropping], LOCK_WAIT_SECONDS).done:
            waits += 1
            spared = self._end_current(waiting.info.backend_pid)
            if spared and waits >= MAX_LOCK_WAITS:
                raise MilepostError(
                    f"milepost_db: schema {schema} cannot be dropped, it is held by {'; '.join(spared)}"
                )

    def _end_current(self, waiting: int) -> list[str]:
        """End all that a process waits for; return who could not be ended, and why."""
        spared = []
        with self.connect() as connection:
            for row in connection.execute(self.statements.get("blockers"), {"pid": waiting}).fetchall():
                blocker = DropBlocker(*row)
                try:
                    blocker.end(connection, self.statements)
                except psycopg.Error as error:
                    spared.append(f"{blocker} ({str(error).strip().splitlines()[0]})")
                else:
                    self.ended.setdefault(blocker.pid or blocker.gid, blocker)
        return spared


_seconds_option = seconds()


class MilepostDB:
    """What the fixture `milepost_db` gives: a schema with an empty log, dropped when the test has ended."""

    url: str
    """The address of its database. What is made there without a schema's name is dropped with the log."""
    schema: str
    """The schema that holds the log."""

    def __init__(self, url: str, schema: str) -> None:
        self.url = url
        self.schema = schema
        self.sync = SyncMilepostDB(url, schema)
        """The same for tests that are not async."""
        self._used: list[BoundMilepost] = []

    @classmethod
    @contextmanager
    def fresh(cls, url: str) -> "Iterator[MilepostDB]":
        """A new one in this PostgreSQL, from the beginning of the block to its end; for fixtures of your own."""
        name = f"test_{uuid4().hex[:12]}"
        log, own = (Statements(each, "milepost.testing") for each in (name, f"{name}_own"))
        database = cls(_test_url(url, name, own.schema), name)
        with _connect(url) as connection:
            connection.execute(schema.printable_sql(name).encode())
            connection.execute(log.get("prepare"))
            connection.execute(own.get("create"))
        try:
            yield database
        finally:
            database._end()
            with _connect(url) as connection:
                connection.execute(log.get("cut"))
            SchemaDropper(lambda: _connect(url), log).drop(log, own)

    def use(self, milepost: Milepost, *, provide: Mapping[Any, Any] | None = None) -> Milepost:
        """A copy of a program on this schema: its messages, subscriptions, providers and listeners.

        The original stays as it was, and what is declared on the copy is the copy's alone. The copy needs no
        `async with`: it is open while a call of it runs.

        Args:
            milepost: The program, or any other `Milepost`.
            provide: Objects that handlers get in place of what the program provides, by its type:
                `{Mailer: FakeMailer()}`.
        """
        if not isinstance(milepost, Milepost):
            raise TypeError(f"use: a Milepost is wanted, such as shop.mp, not {milepost!r}")
        copy = BoundMilepost(milepost, url=self.url, schema=self.schema, provide=provide or {})
        self._used.append(copy)
        return copy

    async def advance(self, seconds: float) -> None:
        """Moves the schema's clock forwards: what is due by then is due now. Nothing waits for it."""
        await asyncio.to_thread(self.sync.advance, seconds)

    def _end(self) -> None:
        for used in self._used:
            used.end()

    def __repr__(self) -> str:
        return f"MilepostDB({self.schema!r})"


class SyncMilepostDB:
    """What `milepost_db.sync` gives, for tests that are not async."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._statements = Statements(schema, "milepost.testing")

    def advance(self, seconds: float) -> None:
        """Moves the schema's clock forwards: what is due by then is due now."""
        by = timedelta(seconds=checked("advance", _seconds_option, seconds))
        # Workers that live here would have gone on beating; of those elsewhere nobody knows.
        own = f"{socket.gethostname()}-{os.getpid()}-"
        with _connect(self._url) as connection, connection.transaction():
            connection.execute(self._statements.get("advance"), {"by": by, "own": own})
            connection.execute(self._statements.get("look_again"))


@contextmanager
def _connect(url: str) -> Iterator[psycopg.Connection[Any]]:
    try:
        connection = psycopg.connect(url, autocommit=True)
    except psycopg.Error as error:
        reason = str(error).strip().partition("\n")[0]
        raise NoDatabase(f"there is no PostgreSQL to run tests on: {reason}") from error
    with connection:
        yield connection


def _test_url(url: str, name: str, own: str) -> str:
    """The address with a schema for tables of the test's own, and a name by which its connections are known."""
    options = conninfo_to_dict(url).get("options", "")
    more = {"options": f"{options} -c search_path={own},public".strip(), "application_name": name}
    if "://" not in url:
        return make_conninfo(url, **more)
    return f"{url}{'&' if '?' in url else '?'}{urlencode(more, quote_via=quote)}"
