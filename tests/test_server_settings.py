"""Settings that users give to roles in PostgreSQL: everything works under each of them."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest
import sqlalchemy
from psycopg import sql
from psycopg.conninfo import make_conninfo

from conftest import absent
from milepost import AdvisoryLeases, Message, Milepost, NewMessage, Park, Transaction, WrongVersion
from milepost.cli.checks import examine
from milepost.cli.checks.finding import ExaminedDatabase
from milepost.server import create_app
from milepost.testing import MilepostDB
from servers import PGBOUNCER, PgBouncer, Server, embedded_binaries, pooler_before
from support import MakeMilepost, following, qualified

SETTINGS = {
    "repeatable_read": ("default_transaction_isolation", "repeatable read"),
    "serializable": ("default_transaction_isolation", "serializable"),
    "german_dates": ("DateStyle", "German"),
    "empty_search_path": ("search_path", ""),
    "escaped_bytes": ("bytea_output", "escape"),
    "idle_sessions_end": ("idle_session_timeout", "300ms"),
}


@contextmanager
def role_with(url: str, setting: str, value: str) -> Iterator[str]:
    """The address for a role with this setting."""
    role = sql.Identifier(f"role_{uuid4().hex[:12]}")
    with closing(psycopg.connect(url, autocommit=True)) as admin:
        admin.execute(sql.SQL("create role {} login superuser").format(role))
        admin.execute(sql.SQL("alter role {} set {} = {}").format(role, sql.SQL(setting), value))
        try:
            yield make_conninfo(url, user=role.as_string().strip('"'))
        finally:
            admin.execute(
                "select pg_terminate_backend(pid, 20000) from pg_stat_activity where usename = %s",
                [role.as_string().strip('"')],
            )
            admin.execute(sql.SQL("drop owned by {0}; drop role {0}").format(role))


@pytest.fixture(params=SETTINGS.values(), ids=list(SETTINGS))
def role_url(request: pytest.FixtureRequest, database_url: str) -> Iterator[str]:
    """The address for a role with one of the settings."""
    with role_with(database_url, *request.param) as url:
        yield url


@pytest.fixture
def strict_pooler() -> Iterator[PgBouncer]:
    """A pooler before a server where transactions are serializable."""
    if not PGBOUNCER.exists():
        absent("pgbouncer")
    server = Server(embedded_binaries(), settings={"default_transaction_isolation": "serializable"}).create()
    try:
        with pooler_before(server) as pooler:
            yield pooler
    finally:
        server.remove()


@dataclass
class Placed:
    order: int
    amount: int


class Shop:
    """A program that uses most of what there is."""

    def __init__(self, mp: Milepost) -> None:
        self.mp = mp
        self.is_lucky = False
        self.seen: list[int] = []
        mp.message("placed", properties=["amount"])(Placed)
        table = qualified("{}.totals", mp)

        @mp.subscription("invoices", category="order", where="amount > 1")
        async def invoice(event: Placed) -> None:
            if event.order == 32 and not self.is_lucky:
                raise Park("unlucky")
            self.seen.append(event.order)

        @mp.subscription("totals", category="order", lanes=4)
        async def total(event: Placed, tx: Transaction) -> None:
            await tx.execute(f"insert into {table} values (%s, now())", [event.order])
            await tx.append(f"receipt-{event.order}", NewMessage("receipt", event.order))

        @mp.subscription("batches", category="order", batch=10, tracking="all")
        def batch(messages: list[Message[Any]]) -> None:
            self.seen.extend(-message.data.order for message in messages)


async def append_in_transactions(mp: Milepost, url: str) -> None:
    """Append in the caller's own transactions."""
    sync = mp.sync
    with psycopg.connect(url) as connection:
        assert sync.append("own-1", NewMessage("a", 1), connection=connection).version == 1
        assert [m.data for m in sync.read("own-1", connection=connection)] == [1]
        assert [m.time.tzinfo for m in sync.read("own-1", connection=connection)] == [UTC]
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await mp.append("own-1", NewMessage("a", 2), connection=connection, expected=1)
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    with engine.begin() as alchemy:
        sync.append_many({"own-1": [NewMessage("a", 3)], "own-2": [NewMessage("a", 4)]}, connection=alchemy)
        assert [m.data for m in sync.read("own-1", connection=alchemy)] == [1, 2, 3]
    engine.dispose()
    with psycopg.connect(url) as connection:
        text = "select outcome from {}.append('own-1', 'a', '4', id => %s)"
        assert connection.execute(qualified(text, mp).encode(), [uuid4()]).fetchone() == ("appended",)


async def append_and_read(mp: Milepost) -> None:
    """Append and read on Milepost's own connections."""
    before = datetime.now(UTC) - timedelta(minutes=1)
    first = NewMessage("placed", {"order": 1, "amount": 5}, properties={"amount": 5}, id=uuid4())
    await mp.append("order-1", first)
    assert (await mp.append("order-1", first)).duplicate
    with pytest.raises(WrongVersion):
        await mp.append("order-1", Placed(2, 5), expected=7)
    # Several at once, on one stream and on many.
    await asyncio.gather(*(mp.append(f"order-{n % 3}", Placed(n, n)) for n in range(2, 22)))
    await mp.append_many({f"order-{n}": [Placed(100 + n, 7)] for n in range(5)})
    found = [m async for m in mp.read(category="order", types="placed", where="amount > 4", since=before)]
    assert {type(m.data) for m in found} == {Placed}
    assert abs(found[0].time - datetime.now(UTC)) < timedelta(minutes=5)
    assert [m async for m in mp.read(since=datetime.now(UTC) + timedelta(hours=1))] == []
    assert await mp.last("order-1") > 1


async def run_handlers(shop: Shop, other: Shop) -> None:
    """Handle the same subscriptions in two processes, and look at what became of each message."""
    mp = shop.mp
    async with shop.mp.running(), other.mp.running():
        appended = [await mp.append(f"order-{n}", Placed(n, n)) for n in range(31, 34)]
        for name in ("totals", "batches"):
            await mp.manage(name).caught_up(appended[-1], timeout=60)
        async with asyncio.timeout(60):
            while (await mp.manage("invoices").info()).parked != 1:
                await asyncio.sleep(0.01)
    [parked] = [d async for d in mp.manage("invoices").deliveries(state="parked")]
    assert parked.message is not None
    assert (parked.reason, parked.message.data.order) == ("unlucky", 32)
    shop.is_lucky = True
    assert await mp.manage("invoices").retry(all=True)
    await mp.run_until_idle()
    count = qualified("select count(*), count(distinct n) from {}.totals", mp)
    assert (await mp.log.database.execute(count, {}))[0][0] == len([m async for m in mp.read(category="order")])
    assert len([m async for m in mp.read(category="receipt")]) > 20
    assert sorted(set(chain(shop.seen, other.seen))).count(32) == 1


async def operate(mp: Milepost, position: int) -> None:
    """Look at subscriptions, and do to them what people do."""
    sub = mp.manage("invoices")
    assert {info.name for info in await mp.subscriptions()} >= {"invoices", "totals", "batches"}
    assert (await sub.info()).lag.positions == 0
    await sub.pause()
    await sub.resume()
    await sub.replay("beginning", position)
    await mp.run_until_idle()
    await sub.move(datetime.now(UTC) - timedelta(hours=1))
    await mp.run_until_idle()
    await sub.move("now")
    assert await mp.trace("order-1")
    assert (await sub.progress("order-1")).handled > 0
    await mp.nodes()


async def consume(mp: Milepost) -> None:
    """Take with a consumer, and pull."""
    created = await mp.create_subscription("shipping", category="order", start="beginning")
    async with mp.consumer("shipping", where="amount >= 0") as consumer:
        taken = [await anext(consumer) for _ in range(5)]
        await taken[0].ack()
        await taken[1].retry(after=0)
        await taken[2].park("no")
        await taken[3].skip()
        await taken[4].extend(30)
        await consumer.settle(ack=[taken[4]])
    assert (await created.info()).parked == 1
    await mp.create_subscription("mails", category="order", tracking="all", keep_done=3600)
    tasks = await mp.pull("mails", limit=5)
    assert len(tasks) == 5
    result = await mp.settle(ack=tasks[:3], retry=tasks[3:])
    assert (len(result.moved), len(result.refused)) == (5, 0)
    await created.delete()


async def serve(mp: Milepost) -> None:
    """Ask a server."""
    transport = httpx.ASGITransport(create_app(mp, access="local"))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/v1/streams/order-1", "/v1/messages", "/v1/subscriptions", "/v1/trace/order-1", "/metrics"):
            answer = await client.get(path)
            assert answer.status_code == 200, answer.text


@pytest.mark.shard("oldest", fast=["serializable"])
async def test_everything_works(make_mp: MakeMilepost, role_url: str, unused_schema: str) -> None:
    shop, other = (Shop(make_mp(url=role_url, schema=unused_schema)) for _ in range(2))
    mp = shop.mp
    # The test's own connections may be idle as long as they like.
    own_url = make_conninfo(role_url, options="-c idle_session_timeout=0")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(mp)
        await mp.log.database.execute(qualified("create table {}.totals (n bigint, at timestamptz)", mp), {})
        await stack.enter_async_context(other.mp)
        follower = await stack.enter_async_context(following(mp, category="order"))
        await append_and_read(mp)
        await append_in_transactions(mp, own_url)
        await run_handlers(shop, other)
        await operate(mp, await mp.head())
        await consume(mp)
        await serve(mp)
        await follower.until(len([m async for m in mp.read(category="order")]))
        findings = await examine(ExaminedDatabase(own_url, await connect(stack, own_url), unused_schema))
        assert [finding for finding in findings if finding.verdict == "problem"] == []


async def connect(stack: AsyncExitStack, url: str) -> psycopg.AsyncConnection[Any]:
    return await stack.enter_async_context(await psycopg.AsyncConnection.connect(url, autocommit=True))


@pytest.mark.shard("oldest", fast=["empty_search_path"])
def test_the_fixture_of_users_tests(role_url: str) -> None:
    with MilepostDB.fresh(role_url) as database:
        shop = Shop(database.use(Milepost("embedded")))
        with psycopg.connect(database.url) as connection:
            connection.execute(qualified("create table {}.totals (n bigint, at timestamptz)", shop.mp).encode())
        shop.mp.sync.append("order-1", Placed(1, 5))
        assert shop.mp.sync.run_until_idle()["totals"].handled == 1
        database.sync.advance(60)


@pytest.mark.parametrize("leases", ["rows", "advisory"])
async def test_idle_sessions_of_milepost_live_on(
    make_mp: MakeMilepost, database_url: str, leases: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept = {"leases": AdvisoryLeases()} if leases == "advisory" else {}
    with role_with(database_url, *SETTINGS["idle_sessions_end"]) as url:
        mp = make_mp(url=url, **kept)
        seen: asyncio.Queue[int] = asyncio.Queue()

        @mp.subscription("all")
        async def see(message: Message[Any]) -> None:
            seen.put_nowait(message.position)

        async with mp, mp.running(), asyncio.timeout(60):
            await mp.append("order-1", NewMessage("a"))
            assert await seen.get() == 1
            # Whoever is as idle as those of Milepost, and began later, has been ended.
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as idle:
                with pytest.raises(psycopg.OperationalError):
                    async for _ in idle.notifies():
                        pass
            assert (await mp.append("order-1", NewMessage("a"))).version == 2
            assert await seen.get() == 2
    assert [record for record in caplog.records if record.name == "milepost.log.database"] == []


async def test_sessions_that_ended_in_the_pool_are_handed_to_nobody(
    mp: Milepost, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As a server that was restarted does it, a pooler or a firewall."""
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(mp.log.database.connection()) for _ in range(3)]
        pids = [connection.info.backend_pid for connection in connections]
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as admin:
        for pid in pids:
            await admin.execute("select pg_terminate_backend(%s, 20000)", [pid])
    for _ in range(5):
        await mp.append("order-1", NewMessage("a"))
    assert [record for record in caplog.records if record.name == "milepost.log.database"] == []


async def test_strict_isolation_behind_a_pooler(strict_pooler: PgBouncer) -> None:
    """There a session's settings would be those of others as well: each statement says what it needs."""
    mp = Milepost(strict_pooler.url)
    mp.message("placed", properties=["amount"])(Placed)
    async with mp:
        await append_and_read(mp)
        async with mp.log.database.connection() as connection, connection.transaction():
            cursor = await connection.execute("select current_setting('transaction_isolation')")
            assert await cursor.fetchone() == ("read committed",)
