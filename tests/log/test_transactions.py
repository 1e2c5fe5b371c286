"""Appending and reading in the caller's own transaction, through whatever connection the caller has."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, cast
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest
from psycopg import IsolationLevel, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from milepost import NO_STREAM, Appended, IdReused, Message, Milepost, NewMessage, WrongVersion

PLACED = NewMessage("order.placed", {"amount": 3}, properties={"amount": 3, "region": "EU", "express": True})
PAID = NewMessage("order.paid", [1.5, None, "ü%:x"], metadata={"correlation_id": "a"})

Psycopg = psycopg.Connection[tuple[Any, ...]]


# -- The kinds of connections


class Caller(Protocol):
    """Somebody with a connection: every call is part of its transaction."""

    def append(self, stream: str, messages: Any, **options: Any) -> Appended: ...
    def append_many(self, messages: dict[str, Any], **options: Any) -> dict[str, Appended]: ...
    def read(self, stream: str, **options: Any) -> list[Message[Any]]: ...
    def last(self, stream: str) -> int: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class BlockingCaller:
    """Uses `mp.sync` and a blocking connection."""

    def __init__(self, mp: Milepost, connection: Any) -> None:
        self._mp, self.connection = mp.sync, connection

    def append(self, stream: str, messages: Any, **options: Any) -> Appended:
        return self._mp.append(stream, messages, connection=self.connection, **options)

    def append_many(self, messages: dict[str, Any], **options: Any) -> dict[str, Appended]:
        return self._mp.append_many(messages, connection=self.connection, **options)

    def read(self, stream: str, **options: Any) -> list[Message[Any]]:
        return list(self._mp.read(stream, connection=self.connection, **options))

    def last(self, stream: str) -> int:
        return self._mp.last(stream, connection=self.connection)

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()


class AsyncCaller:
    """Uses `mp` and an async connection, in an event loop that runs while a call lasts."""

    def __init__(self, mp: Milepost, connection: Any, runner: asyncio.Runner) -> None:
        self._mp, self._connection, self._run = mp, connection, runner.run

    def append(self, stream: str, messages: Any, **options: Any) -> Appended:
        return self._run(self._mp.append(stream, messages, connection=self._connection, **options))

    def append_many(self, messages: dict[str, Any], **options: Any) -> dict[str, Appended]:
        return self._run(self._mp.append_many(messages, connection=self._connection, **options))

    def read(self, stream: str, **options: Any) -> list[Message[Any]]:
        async def every() -> list[Message[Any]]:
            return [m async for m in self._mp.read(stream, connection=self._connection, **options)]

        return self._run(every())

    def last(self, stream: str) -> int:
        return self._run(self._mp.last(stream, connection=self._connection))

    def commit(self) -> None:
        self._run(self._connection.commit())

    def rollback(self) -> None:
        self._run(self._connection.rollback())


@contextmanager
def sqlalchemy_connection(url: str) -> Iterator[Any]:
    with create_engine(make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool).connect() as c:
        yield c


@contextmanager
def sqlalchemy_session(url: str) -> Iterator[Any]:
    with sqlalchemy_connection(url) as connection, Session(connection.engine) as session:
        yield session


@contextmanager
def sqlalchemy_scoped_session(url: str) -> Iterator[Any]:
    with sqlalchemy_connection(url) as connection:
        session = scoped_session(sessionmaker(connection.engine))
        yield session
        session.remove()


@asynccontextmanager
async def sqlalchemy_async_connection(url: str, driver: str) -> Any:
    engine = create_async_engine(make_url(url).set(drivername=f"postgresql+{driver}"), poolclass=NullPool)
    async with engine.connect() as connection:
        yield connection


@asynccontextmanager
async def sqlalchemy_async_session(url: str, driver: str) -> Any:
    async with sqlalchemy_async_connection(url, driver) as connection, AsyncSession(connection.engine) as session:
        yield session


@asynccontextmanager
async def sqlalchemy_async_scoped_session(url: str, driver: str) -> Any:
    async with sqlalchemy_async_connection(url, driver) as connection:
        session = async_scoped_session(async_sessionmaker(connection.engine), asyncio.get_running_loop)
        yield session
        await session.remove()


@contextmanager
def django_connections(url: str, **options: Any) -> Iterator[Any]:
    """What `django.db.connections` is, for an address of the test's own."""
    import django
    from django.conf import settings
    from django.db.utils import ConnectionHandler

    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    parts = conninfo_to_dict(url)
    default = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.get("dbname"),
        "USER": parts.get("user"),
        "PASSWORD": parts.get("password") or "",
        "HOST": parts.get("host"),
        "PORT": parts.get("port") or "",
        "OPTIONS": options,
    }
    connections = ConnectionHandler({"default": default})
    yield connections
    connections.close_all()


@contextmanager
def django_connection(url: str, **options: Any) -> Iterator[Any]:
    """What `connections["default"]` is, with a transaction by hand."""
    with django_connections(url, **options) as connections:
        connections["default"].set_autocommit(False)
        yield connections["default"]


@contextmanager
def django_proxy(url: str) -> Iterator[Any]:
    """What `django.db.connection` is."""
    from django.utils.connection import ConnectionProxy

    with django_connections(url) as connections:
        connections["default"].set_autocommit(False)
        yield ConnectionProxy(connections, "default")


@contextmanager
def django_without_time_zones(url: str) -> Iterator[Any]:
    from django.test import override_settings

    with django_connections(url) as connections, override_settings(USE_TZ=False, TIME_ZONE="America/Chicago"):
        connections["default"].set_autocommit(False)
        yield connections["default"]


@asynccontextmanager
async def psycopg_async(url: str, **options: Any) -> Any:
    async with await psycopg.AsyncConnection.connect(url, **options) as connection:
        yield connection


BLOCKING: dict[str, Callable[[str], AbstractContextManager[Any]]] = {
    "psycopg": psycopg.connect,
    "psycopg-dict_row": partial(psycopg.connect, row_factory=dict_row),
    "psycopg-raw_cursor": partial(psycopg.connect, cursor_factory=psycopg.RawCursor),
    "psycopg-client_cursor": partial(psycopg.connect, cursor_factory=psycopg.ClientCursor),
    "sqlalchemy-Connection": sqlalchemy_connection,
    "sqlalchemy-Session": sqlalchemy_session,
    "sqlalchemy-scoped_session": sqlalchemy_scoped_session,
    "django-connection": django_proxy,
    "django-connections": django_connection,
    "django-server_side_binding": partial(django_connection, server_side_binding=True),
    "django-without_time_zones": django_without_time_zones,
}
ASYNC: dict[str, Callable[[str], AbstractAsyncContextManager[Any]]] = {
    "psycopg-async": psycopg_async,
    "psycopg-async-dict_row": partial(psycopg_async, row_factory=dict_row),
    "psycopg-async-raw_cursor": partial(psycopg_async, cursor_factory=psycopg.AsyncRawCursor),
    "sqlalchemy-AsyncConnection-psycopg": partial(sqlalchemy_async_connection, driver="psycopg"),
    "sqlalchemy-AsyncConnection-asyncpg": partial(sqlalchemy_async_connection, driver="asyncpg"),
    "sqlalchemy-AsyncSession-psycopg": partial(sqlalchemy_async_session, driver="psycopg"),
    "sqlalchemy-AsyncSession-asyncpg": partial(sqlalchemy_async_session, driver="asyncpg"),
    "sqlalchemy-async_scoped_session": partial(sqlalchemy_async_scoped_session, driver="asyncpg"),
}


@pytest.fixture(
    scope="module", params=["embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))]
)
def database_url(request: pytest.FixtureRequest) -> str:
    """Each of the servers in turn, for all tests of this file."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(scope="module")
def mp(database_url: str) -> Iterator[Milepost]:
    """A `Milepost` for all tests of this file; its own calls, without a connection, see what is committed."""
    schema = f"t_{uuid4().hex[:12]}"
    mp = Milepost(database_url, schema=schema)
    with mp.sync:
        yield mp
    with psycopg.connect(database_url) as connection:
        connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(schema)))


@pytest.fixture
def stream() -> str:
    """A stream that no other test uses; others of the test's own begin with its name."""
    return f"order-{uuid4()}"


@pytest.fixture(params=[*BLOCKING, *ASYNC])
def caller(request: pytest.FixtureRequest, mp: Milepost, database_url: str) -> Iterator[Caller]:
    """Somebody with each kind of connection."""
    if request.param in BLOCKING:
        with BLOCKING[request.param](database_url) as connection:
            yield BlockingCaller(mp, connection)
        return
    with asyncio.Runner() as runner:
        opened = ASYNC[request.param](database_url)
        yield AsyncCaller(mp, runner.run(cast(Any, opened.__aenter__())), runner)
        runner.run(cast(Any, opened.__aexit__(None, None, None)))


# -- What holds for every kind


def test_rollback_leaves_nothing_and_commit_shows_all(mp: Milepost, caller: Caller, stream: str) -> None:
    streams = [stream, f"{stream}-2", f"{stream}-3"]
    for end, left in ((caller.rollback, 0), (caller.commit, 1)):
        assert caller.append(stream, PLACED).version == 1
        appended = caller.append_many({streams[1]: [PLACED], streams[2]: PAID})
        assert {stream: result.version for stream, result in appended.items()} == {streams[1]: 1, streams[2]: 1}
        assert mp.sync.last(stream) == 0
        end()
        assert [mp.sync.last(stream) for stream in streams] == [left] * 3


def test_refusals_leave_the_transaction_usable(mp: Milepost, caller: Caller, stream: str) -> None:
    other = f"{stream}-other"
    known = NewMessage("order.placed", 1, id=uuid4())
    first = caller.append(stream, known)
    with pytest.raises(WrongVersion) as wrong:
        caller.append(stream, PLACED, expected=7)
    assert (wrong.value.stream, wrong.value.expected, wrong.value.actual) == (stream, 7, 1)
    with pytest.raises(WrongVersion):
        caller.append_many({stream: PAID, other: PAID}, expected={other: 5})
    with pytest.raises(IdReused) as reused:
        caller.append(stream, NewMessage("order.placed", 2, id=known.id))
    assert reused.value.id == str(known.id)
    assert caller.append(stream, known, expected=NO_STREAM) == replace(first, duplicate=True)
    assert caller.append(stream, PAID, expected=1).version == 2
    caller.commit()
    assert [message.type for message in mp.sync.read(stream)] == ["order.placed", "order.paid"]
    assert mp.sync.last(other) == 0


def test_a_transaction_reads_its_own_messages(mp: Milepost, caller: Caller, stream: str) -> None:
    caller.append(stream, [PLACED, PAID, NewMessage("order.sent"), NewMessage("note")])
    assert caller.last(stream) == 4
    own = caller.read(stream)
    assert list(mp.sync.read(stream)) == []

    past, future = datetime(2024, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
    latest = caller.read(stream, types=["order.*"], backwards=True, limit=2, since=past)
    assert [message.version for message in latest] == [3, 2]
    assert [message.version for message in caller.read(stream, types="note", after_version=1)] == [4]
    assert caller.read(stream, category="invoice") == caller.read(stream, since=future) == []

    caller.commit()
    assert [content(message) for message in own] == [content(message) for message in mp.sync.read(stream)]
    assert (own[1].type, own[1].data, own[1].metadata) == (PAID.type, PAID.data, PAID.metadata)
    assert own[0].properties == PLACED.properties


def content(message: Message[Any]) -> tuple[object, ...]:
    """All of a message; fails unless its values have the types they always have."""
    assert message.time.utcoffset() is not None
    assert msgspec.json.encode(message.id) == f'"{message.id}"'.encode()
    return (
        *(message.position, message.stream, message.version, UUID(str(message.id)), message.type, message.time),
        *(message.data, message.properties, message.metadata),
    )


# -- The wrong connection


def calls(mp: Any) -> list[Callable[[Any], Any]]:
    """Every method of `mp` or `mp.sync` that takes a connection."""
    return [
        lambda connection: mp.append("order-1", PLACED, connection=connection),
        lambda connection: mp.append_many({"order-1": PLACED}, connection=connection),
        lambda connection: mp.last("order-1", connection=connection),
        lambda connection: mp.read("order-1", connection=connection),
    ]


@pytest.mark.parametrize("kind", ["psycopg-async", "sqlalchemy-AsyncSession-asyncpg"])
async def test_an_async_connection_is_not_for_sync(mp: Milepost, database_url: str, kind: str) -> None:
    async with ASYNC[kind](database_url) as connection:
        for call in calls(mp.sync):
            with pytest.raises(TypeError, match=r"it is an async one; await the method of mp itself"):
                call(connection)


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy-Session"])
async def test_a_blocking_connection_is_not_for_the_event_loop(mp: Milepost, database_url: str, kind: str) -> None:
    with BLOCKING[kind](database_url) as connection:
        for call in calls(mp):
            with pytest.raises(TypeError, match=r"it would block the event loop; use mp\.sync"):
                await finished(call(connection))


def unknown_connections(url: str) -> Iterator[Any]:
    """Things that are easily mistaken for a connection."""
    yield object()
    yield create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    with django_connections(url):
        from django.core.cache import cache
        from django.db.utils import ConnectionHandler

        yield cache
        yield ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})[
            "default"
        ]


async def test_anything_else_is_refused(mp: Milepost, database_url: str) -> None:
    for unknown in unknown_connections(database_url):
        name = type(unknown).__qualname__
        for call in calls(mp):
            with pytest.raises(TypeError, match=rf"{name} is not known to Milepost; give a psycopg connection"):
                await finished(call(unknown))
        for call in calls(mp.sync):
            with pytest.raises(TypeError, match=rf"{name} is not known to Milepost; give a psycopg connection"):
                call(unknown)


async def finished(called: Any) -> None:
    """Awaits what a method gives, be it a coroutine or an iterator."""
    if hasattr(called, "__anext__"):
        await anext(called)
    else:
        await called


async def test_sync_with_a_blocking_connection_beside_an_event_loop(
    mp: Milepost, database_url: str, stream: str
) -> None:
    """As in a notebook: the caller blocks its own event loop and knows it."""
    with psycopg.connect(database_url) as connection:
        mp.sync.append(stream, PLACED, connection=connection)
        assert [message.version for message in mp.sync.read(stream, connection=connection)] == [1]


async def test_sync_in_the_blocking_part_of_an_async_session(mp: Milepost, database_url: str, stream: str) -> None:
    def append_in(session: Session) -> Appended:
        return mp.sync.append(stream, PLACED, connection=session)

    async with sqlalchemy_async_session(database_url, "asyncpg") as session:
        assert (await session.run_sync(append_in)).version == 1
        assert await mp.last(stream, connection=session) == 1


def test_a_block_of_django_ends_with_its_error(mp: Milepost, database_url: str, stream: str) -> None:
    """`transaction.atomic()` is what a Django program writes."""
    from django.db.transaction import Atomic

    with django_connections(database_url) as connections:
        connection = connections["default"]

        def atomic() -> Any:
            # transaction.atomic() looks its connection up in the global settings, which these tests do not have.
            return Atomic(using="default", savepoint=True, durable=False)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("django.db.transaction.connections", connections)
            with atomic():
                mp.sync.append(stream, PLACED, connection=connection)
                with pytest.raises(ZeroDivisionError), atomic():
                    mp.sync.append(stream, PAID, connection=connection)
                    _ = 1 / 0
                assert mp.sync.last(stream) == 0
            assert mp.sync.last(stream) == 1


def test_savepoints(mp: Milepost, database_url: str, stream: str) -> None:
    with psycopg.connect(database_url) as connection:
        mp.sync.append(stream, PLACED, connection=connection)
        with connection.transaction(force_rollback=True):
            assert mp.sync.append(stream, PAID, connection=connection).version == 2
        assert mp.sync.append(stream, PAID, connection=connection, expected=1).version == 2
    assert mp.sync.last(stream) == 2


# -- Isolation


@pytest.fixture
def connect(database_url: str) -> Iterator[Callable[[], Psycopg]]:
    """Makes connections of users' own, which end with the test."""
    opened: list[Psycopg] = []

    def connect() -> Psycopg:
        opened.append(psycopg.connect(database_url, options="-c statement_timeout=60s"))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture(params=[IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE], ids=lambda level: level.name)
def strict(request: pytest.FixtureRequest, connect: Callable[[], Psycopg]) -> Psycopg:
    """A connection whose transaction has its snapshot already."""
    connection = connect()
    connection.isolation_level = request.param
    connection.execute("select 1")
    return connection


@pytest.mark.parametrize("before", [0, 2], ids=["new", "existing"])
def test_a_stream_that_changed_after_the_snapshot(mp: Milepost, strict: Psycopg, stream: str, before: int) -> None:
    for _ in range(before):
        mp.sync.append(stream, PLACED)
    strict.rollback()
    strict.execute("select 1")
    mp.sync.append(stream, PLACED)

    with pytest.raises(psycopg.errors.SerializationFailure):
        mp.sync.append(stream, PAID, connection=strict, expected=before)
    strict.rollback()
    assert mp.sync.append(stream, PAID, connection=strict, expected=before + 1).version == before + 2


def test_an_id_that_came_after_the_snapshot(mp: Milepost, strict: Psycopg, stream: str) -> None:
    mp.sync.append(stream, PLACED)
    strict.rollback()
    strict.execute("select 1")
    known = NewMessage("order.paid", id=uuid4())
    mp.sync.append(stream, known)

    with pytest.raises(psycopg.errors.SerializationFailure, match=f"'{stream}' changed after"):
        mp.sync.append(stream, known, connection=strict)
    strict.rollback()
    assert mp.sync.append(stream, known, connection=strict).duplicate


def test_strict_isolation_without_a_conflict(mp: Milepost, strict: Psycopg, stream: str) -> None:
    assert mp.sync.append(stream, [PLACED, PAID], connection=strict).version == 2
    with pytest.raises(WrongVersion):
        mp.sync.append(stream, PLACED, connection=strict, expected=1)
    assert mp.sync.append(stream, PLACED, connection=strict, expected=2).version == 3
    strict.commit()
    assert mp.sync.last(stream) == 3


def test_a_repeated_append_is_a_duplicate_before_it_is_a_wrong_version(
    mp: Milepost, connect: Callable[[], Psycopg], stream: str
) -> None:
    first = [NewMessage("order.placed", id=uuid4()), NewMessage("order.paid", id=uuid4())]
    done = mp.sync.append(stream, first, expected=NO_STREAM)
    mp.sync.append(stream, PLACED)

    connection = connect()
    repeated = mp.sync.append(stream, first, expected=NO_STREAM, connection=connection)
    assert repeated == replace(done, duplicate=True)
    with pytest.raises(WrongVersion):
        mp.sync.append(stream, NewMessage("order.placed", id=uuid4()), expected=NO_STREAM, connection=connection)
    assert mp.sync.last(stream) == 3


# -- Two at once


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


def until_blocked(connection: Psycopg, observer: Psycopg) -> None:
    """Waits until a connection waits for another's lock."""
    pid = connection.info.backend_pid
    end = time.monotonic() + 60
    while time.monotonic() < end:
        row = observer.execute("select cardinality(pg_blocking_pids(%s)) > 0", [pid]).fetchone()
        observer.rollback()
        if row == (True,):
            return
        time.sleep(0.002)
    raise AssertionError("nothing blocks it")


@pytest.mark.parametrize("before", [0, 1], ids=["new", "existing"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_second_appender_waits_for_the_first(
    mp: Milepost,
    connect: Callable[[], Psycopg],
    threads: ThreadPoolExecutor,
    stream: str,
    before: int,
    ending: str,
) -> None:
    for _ in range(before):
        mp.sync.append(stream, PLACED)
    first, second, observer = connect(), connect(), connect()
    mp.sync.append(stream, PLACED, connection=first)
    waiting = threads.submit(mp.sync.append, stream, PAID, connection=second)
    until_blocked(second, observer)
    getattr(first, ending)()
    assert waiting.result(60).version == before + (2 if ending == "commit" else 1)


@pytest.mark.parametrize("before", [0, 1], ids=["new", "existing"])
def test_a_second_appender_is_told_what_the_first_made(
    mp: Milepost, connect: Callable[[], Psycopg], threads: ThreadPoolExecutor, stream: str, before: int
) -> None:
    for _ in range(before):
        mp.sync.append(stream, PLACED)
    first, second, observer = connect(), connect(), connect()
    known = NewMessage("order.paid", id=uuid4())
    mp.sync.append(stream, known, connection=first)

    waiting = threads.submit(mp.sync.append, stream, PAID, connection=second, expected=before)
    until_blocked(second, observer)
    first.commit()
    with pytest.raises(WrongVersion) as wrong:
        waiting.result(60)
    assert wrong.value.actual == before + 1
    assert mp.sync.append(stream, PAID, connection=second, expected=before + 1).version == before + 2


def test_a_second_appender_of_the_same_id_finds_it(
    mp: Milepost, connect: Callable[[], Psycopg], threads: ThreadPoolExecutor, stream: str
) -> None:
    first, second, observer = connect(), connect(), connect()
    known = NewMessage("order.paid", id=uuid4())
    done = mp.sync.append(stream, known, connection=first)
    waiting = threads.submit(mp.sync.append, stream, known, connection=second)
    until_blocked(second, observer)
    first.commit()
    assert waiting.result(60) == replace(done, duplicate=True)


def test_append_many_locks_streams_in_one_order(
    mp: Milepost, connect: Callable[[], Psycopg], threads: ThreadPoolExecutor, stream: str
) -> None:
    early, late = f"{stream}-a", f"{stream}-b"
    first, second, observer = connect(), connect(), connect()
    mp.sync.append(early, PLACED, connection=first)
    waiting = threads.submit(mp.sync.append_many, {late: PAID, early: PAID}, connection=second)
    until_blocked(second, observer)
    # Had the other locked in its own order, this would wait for it and it for this.
    assert mp.sync.append_many({late: PLACED, early: PLACED}, connection=first)[late].version == 1
    first.commit()
    assert {name: done.version for name, done in waiting.result(60).items()} == {early: 3, late: 2}


def test_two_appends_in_opposite_order_deadlock(
    mp: Milepost, connect: Callable[[], Psycopg], threads: ThreadPoolExecutor, stream: str
) -> None:
    """PostgreSQL ends one of the two, as the guide says."""
    first, second, observer = connect(), connect(), connect()
    first.execute("set deadlock_timeout = '1h'")
    second.execute("set deadlock_timeout = '5ms'")
    mp.sync.append(f"{stream}-a", PLACED, connection=first)
    mp.sync.append(f"{stream}-b", PLACED, connection=second)
    waiting: Future[Appended] = threads.submit(mp.sync.append, f"{stream}-b", PAID, connection=first)
    until_blocked(first, observer)
    with pytest.raises(psycopg.errors.DeadlockDetected):
        mp.sync.append(f"{stream}-a", PAID, connection=second)
    second.rollback()
    assert waiting.result(60).version == 1


@pytest.mark.usefixtures("prepared_transactions")
def test_a_prepared_transaction_may_not_wake(mp: Milepost, connect: Callable[[], Psycopg], stream: str) -> None:
    connection, schema = connect(), sql.Identifier(mp.settings["schema"].value)
    mark = sql.SQL("insert into {}.sleeps values (now() + interval '1 hour')").format(schema)
    name = sql.Literal(stream)
    connection.execute(mark)
    mp.sync.append(stream, PLACED, connection=connection)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
        connection.execute(sql.SQL("prepare transaction {}").format(name))
    connection.rollback()

    connection.execute(mark)
    mp.sync.append(stream, PLACED, connection=connection, wake=False)
    mp.sync.append_many({f"{stream}-2": PLACED}, connection=connection, wake=False)
    connection.execute(sql.SQL("prepare transaction {}").format(name))
    connection.rollback()
    assert mp.sync.last(stream) == 0
    connection.autocommit = True
    connection.execute(sql.SQL("commit prepared {}").format(name))
    assert mp.sync.last(stream) == mp.sync.last(f"{stream}-2") == 1
