"""The fixture `milepost_db` as tests use it."""

import asyncio
import re
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from time import monotonic
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from milepost import Context, Message, Milepost, MilepostError, NewMessage, NoDatabase, Retry, Transaction
from milepost.engine.declare.handler import CallEnd
from milepost.engine.observe.events import Handled
from milepost.testing import MilepostDB, SyncMilepostDB


@dataclass
class Placed:
    order: int
    amount: int = 0


class Mailer:
    """What a program sends mail with."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def send(self, order: int) -> None:
        self.sent.append(order)


class Shop:
    """A program, and what its handlers saw."""

    def __init__(self) -> None:
        self.mp = mp = Milepost(
            "postgresql://nowhere.invalid/", group="shop", concurrency=3, progress="postgresql://x/"
        )
        self.placed: list[int] = []
        self.attempts: list[int] = []
        self.events: list[Handled] = []
        self.mailer = Mailer()
        self.fails = 0
        mp.message("placed", properties=["amount"], version=2)(Placed)

        @mp.upcast("placed", from_version=1)
        def add_amount(data: dict[str, Any]) -> dict[str, Any]:
            return {**data, "amount": 1000}

        @mp.provide
        def mailer() -> Mailer:
            return self.mailer

        @mp.subscription(
            "invoices", category="order", where="amount >= 100", retry=Retry(delay=3600, max_delay=3600, jitter=0)
        )
        async def invoice(event: Placed, context: Context) -> None:
            self.attempts.append(context.attempt)
            if len(self.attempts) <= self.fails:
                raise ValueError(f"order {event.order}")
            self.placed.append(event.order)

        @mp.subscription("mails", category="order")
        def mail(event: Placed, mailer: Mailer) -> None:
            mailer.send(event.order)

        @mp.on_event
        def note(event: Handled) -> None:
            self.events.append(event)


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def test_a_copy_has_all_that_the_program_declares(milepost_db: MilepostDB, shop: Shop) -> None:
    mp = milepost_db.use(shop.mp)
    await mp.append("order-1", Placed(1, 500))
    await mp.append("order-2", NewMessage("placed", {"order": 2}, properties={"amount": 0}))
    report = await mp.run_until_idle()
    assert (report["invoices"].handled, report["mails"].handled) == (1, 2)
    assert shop.placed == [1]
    assert sorted(shop.mailer.sent) == [1, 2]
    assert len(shop.events) == 3
    assert [message.data async for message in mp.read("order-2")] == [Placed(2, 1000)]
    assert mp.settings["group"].value == "shop"
    assert mp.settings["concurrency"].value == 3
    assert [info.name for info in await mp.subscriptions()] == ["invoices", "mails"]


def test_a_copy_pulls_in_code_that_is_not_async(milepost_db: MilepostDB, shop: Shop) -> None:
    sync = milepost_db.use(shop.mp).sync
    sync.create_subscription("tasks", tracking="all", category="order")
    sync.append("order-1", Placed(1, 1000))
    pulled = sync.pull("tasks")
    assert [delivery.message.data for delivery in pulled] == [Placed(1, 1000)]
    assert sync.settle(ack=pulled).moved


async def test_the_program_stays_as_it_was(milepost_db: MilepostDB, shop: Shop) -> None:
    mp = milepost_db.use(shop.mp)

    @mp.message()
    @dataclass
    class Returned:
        order: int

    @mp.subscription("returns")
    async def returned(event: Returned) -> None: ...

    @mp.on_event
    def ignore(event: Handled) -> None: ...

    @mp.provide
    def number() -> int:
        return 1

    assert [subscription.name for subscription in shop.mp.declared()] == ["invoices", "mails"]
    assert shop.mp.settings["url"].value == "postgresql://nowhere.invalid/"
    with pytest.raises(MilepostError, match="not open"):
        await shop.mp.append("order-1", Placed(1))
    again = milepost_db.use(shop.mp)
    assert [subscription.name for subscription in again.declared()] == ["invoices", "mails"]
    assert [subscription.name for subscription in milepost_db.use(mp).declared()] == [
        "invoices",
        "mails",
        "returns",
    ]
    await mp.append("order-1", Returned(1))
    with pytest.raises(MilepostError, match="Returned is not a registered class"):
        await again.append("order-1", Returned(1))


async def test_the_environment_says_nothing_to_a_copy(
    milepost_db: MilepostDB, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("URL", "PROGRESS"):
        monkeypatch.setenv(f"MILEPOST_{name}", "postgresql://nowhere.invalid/")
    monkeypatch.setenv("MILEPOST_SCHEMA", "nowhere")
    mp = milepost_db.use(shop.mp)
    await mp.append("order-1", Placed(1, 500))
    assert (await mp.run_until_idle())["invoices"].handled == 1


async def test_instruments_come_along(milepost_db: MilepostDB, shop: Shop) -> None:
    seen: list[int] = []

    class Counting:
        def handling(self, messages: Sequence[Message[Any]], context: Context, *, batch: bool) -> CallEnd | None:
            seen.extend(message.position for message in messages)
            return None

        def appending(self, *args: Any, **options: Any) -> Any:
            return None

    shop.mp.instrument(Counting())
    mp = milepost_db.use(shop.mp)
    await mp.append("order-1", Placed(1, 1))
    await mp.run_until_idle()
    assert seen == [1]


async def test_objects_in_place_of_what_is_provided(milepost_db: MilepostDB, shop: Shop) -> None:
    class FakeMailer:
        def __init__(self) -> None:
            self.sent: list[int] = []

        def send(self, order: int) -> None:
            self.sent.append(order)

    fake = FakeMailer()
    mp = milepost_db.use(shop.mp, provide={Mailer: fake})
    await mp.append("order-1", Placed(7, 500))
    await mp.run_until_idle()
    assert (fake.sent, shop.mailer.sent) == ([7], [])
    with pytest.raises(ValueError, match="nobody provides .*FakeMailer that could be replaced .*Mailer"):
        milepost_db.use(shop.mp, provide={FakeMailer: fake})


async def test_two_programs_on_one_schema(milepost_db: MilepostDB, shop: Shop) -> None:
    other = Milepost("embedded", group="billing")
    seen: list[int] = []

    @other.subscription("invoices")
    async def see(message: Message[Any]) -> None:
        seen.append(message.position)

    first, twin, second = (milepost_db.use(each) for each in (shop.mp, shop.mp, other))
    await first.append("order-1", Placed(1, 500))
    await first.run_until_idle()
    assert (await twin.run_until_idle())["invoices"].handled == 0
    assert (await second.run_until_idle())["invoices"].handled == 1
    assert (shop.placed, seen) == ([1], [1])
    assert [f"{info.group}/{info.name}" for info in await second.subscriptions()] == [
        "billing/invoices",
        "shop/invoices",
        "shop/mails",
    ]


async def test_each_test_has_a_log_of_its_own(milepost_url: str, shop: Shop) -> None:
    with MilepostDB.fresh(milepost_url) as one, MilepostDB.fresh(milepost_url) as other:
        assert one.schema != other.schema
        await one.use(shop.mp).append("order-1", Placed(1))
        assert [message async for message in other.use(shop.mp).read()] == []
    for gone in (one, other):
        assert not schemas(milepost_url, gone.schema)


def schemas(url: str, name: str) -> list[str]:
    with psycopg.connect(url) as connection:
        found = connection.execute("select nspname from pg_namespace where starts_with(nspname, %s)", [name])
        return sorted(row[0] for row in found)


def test_only_a_program_can_be_copied(milepost_db: MilepostDB) -> None:
    with pytest.raises(TypeError, match="a Milepost is wanted, such as shop.mp, not <module 'asyncio'"):
        milepost_db.use(asyncio)  # type: ignore[arg-type]


# Errors and retries


async def test_a_handlers_own_error_is_raised(milepost_db: MilepostDB, shop: Shop) -> None:
    shop.fails = 1
    mp = milepost_db.use(shop.mp)
    await mp.append("order-1", Placed(1, 500))
    with pytest.raises(ValueError, match="order 1") as raised:
        await mp.run_until_idle()
    assert raised.traceback[-1].name == "invoice"
    assert shop.attempts == [1]


async def test_or_its_message_is_parked(milepost_db: MilepostDB, shop: Shop) -> None:
    shop.fails = 1
    mp = milepost_db.use(shop.mp)
    await mp.append("order-1", Placed(1, 500))
    report = await mp.run_until_idle(errors="park")
    assert (report["invoices"].handled, report["invoices"].failed, report["invoices"].parked) == (0, 1, 1)
    [delivery] = [each async for each in mp.manage("invoices").deliveries(state="parked")]
    assert (delivery.position, delivery.reason) == (1, "ValueError: order 1")
    await milepost_db.advance(7200)
    assert (await mp.run_until_idle())["invoices"].handled == 0
    await mp.manage("invoices").retry(all=True)
    assert (await mp.run_until_idle())["invoices"].handled == 1


async def test_what_is_due_runs_after_an_advance(milepost_db: MilepostDB, shop: Shop) -> None:
    shop.fails = 1
    mp = milepost_db.use(shop.mp)
    await mp.append("order-1", Placed(1, 500))
    with pytest.raises(ValueError, match="order 1"):
        await mp.run_until_idle()
    await milepost_db.advance(1800)
    assert (await mp.run_until_idle())["invoices"].handled == 0
    await milepost_db.advance(1800.5)
    assert (await mp.run_until_idle())["invoices"].handled == 1
    assert shop.attempts == [1, 2]


async def test_messages_have_the_time_that_was_moved(milepost_db: MilepostDB, shop: Shop) -> None:
    mp = milepost_db.use(shop.mp)
    began = monotonic()
    await mp.append("order-1", Placed(1))
    await milepost_db.advance(86_400)
    await mp.append("order-1", Placed(1))
    # However long that took.
    passed = monotonic() - began
    first, second = [message.time async for message in mp.read("order-1")]
    assert 86_400 <= (second - first).total_seconds() < 86_400 + passed + 60


async def test_an_advance_while_a_program_runs(milepost_db: MilepostDB, shop: Shop) -> None:
    """Retries run at once, the worker keeps its lanes, and what is appended then comes at once too."""
    shop.fails = 2
    handled = asyncio.Event()
    mp = milepost_db.use(shop.mp)

    @mp.on_event
    def tell(event: Handled) -> None:
        if event.subscription == "invoices":
            handled.set()

    async with mp.running(), asyncio.timeout(40):
        await mp.append("order-1", Placed(1, 500))
        for attempts in (1, 2):
            await until(lambda attempts=attempts: shop.attempts == [*range(1, attempts + 1)])
            await until_retrying(mp)
            owned = await ownership(mp)
            # Longer than a lease, too.
            await milepost_db.advance(3601)
        await handled.wait()
        assert await ownership(mp) == owned
        handled.clear()
        await mp.append("order-2", Placed(2, 500))
        await handled.wait()
    assert shop.attempts == [1, 2, 3, 1]


async def ownership(mp: Milepost) -> set[Any]:
    """Who has which lane since when."""
    return {(lane.number, lane.owner, lane.since) for lane in (await mp.manage("invoices").info()).lanes}


async def until(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(0.01)


async def until_retrying(mp: Milepost) -> None:
    while (await mp.manage("invoices").info()).retrying != 1:
        await asyncio.sleep(0.01)


async def test_a_follower_goes_on_after_an_advance(
    milepost_db: MilepostDB, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milepost.log.postgres.wakeups.PROBE_TIMEOUT_SECONDS", 40.0)
    mp = milepost_db.use(shop.mp)
    async with mp, asyncio.timeout(40):
        # Without a word the feed would sleep on, by marks of a time that is over.
        mp.log.feed.poll = None
        following = mp.follow()
        waiting = asyncio.ensure_future(anext(following))
        await until(lambda: mp.log.wakeups.asleep)
        await milepost_db.advance(3600)
        await until(lambda: mp.log.wakeups.asleep)
        await mp.append("order-1", Placed(1))
        assert (await waiting).position == 1
        await following.aclose()


@pytest.mark.shard("variants", fast=["-1"])
@pytest.mark.parametrize("seconds", [-1, float("nan"), "60"])
async def test_only_forwards(milepost_db: MilepostDB, seconds: Any) -> None:
    with pytest.raises(ValueError, match="advance: a number of seconds"):
        await milepost_db.advance(seconds)


# Opening


async def test_calls_at_the_same_time(milepost_db: MilepostDB, shop: Shop) -> None:
    mp = milepost_db.use(shop.mp)
    await asyncio.gather(*(mp.append(f"order-{number}", Placed(number)) for number in range(20)))
    assert len([message async for message in mp.read()]) == 20
    async with mp:
        await mp.append("order-1", Placed(1))
        async for message in mp.read():
            await mp.append("copy-1", NewMessage("copy", message.position))
    assert await mp.last("copy-1") == 21


def test_without_asyncio(milepost_db: MilepostDB, shop: Shop) -> None:
    shop.fails = 1
    mp = milepost_db.use(shop.mp)
    mp.sync.append("order-1", Placed(1, 500))
    with pytest.raises(ValueError, match="order 1"):
        mp.sync.run_until_idle()
    milepost_db.sync.advance(3601)
    assert mp.sync.run_until_idle()["invoices"].handled == 1
    assert isinstance(milepost_db.sync, SyncMilepostDB)


def test_no_thread_is_left(milepost_url: str, shop: Shop) -> None:
    before = set(threading.enumerate())
    with MilepostDB.fresh(milepost_url) as database:
        database.use(shop.mp).sync.append("order-1", Placed(1))
        started = set(threading.enumerate()) - before
        assert started
    assert not [thread for thread in started if thread.is_alive()]


async def test_blocking_calls_in_an_async_test(milepost_db: MilepostDB, shop: Shop) -> None:
    mp = milepost_db.use(shop.mp)
    mp.sync.append("order-1", Placed(1, 500))
    await asyncio.to_thread(mp.sync.append, "order-1", Placed(1, 500))
    await mp.append("order-1", Placed(1, 500))
    assert (await mp.run_until_idle())["invoices"].handled == 3
    assert mp.sync.last("order-1") == 3


def test_several_event_loops(milepost_db: MilepostDB, shop: Shop) -> None:
    mp = milepost_db.use(shop.mp)
    for _ in range(2):
        asyncio.run(mp.append("order-1", Placed(1)))
    assert asyncio.run(mp.last("order-1")) == 2


# Tables of one's own


async def test_tables_of_the_tests_own(milepost_url: str) -> None:
    with MilepostDB.fresh(milepost_url) as database:
        mp = database.use(Milepost())

        @mp.subscription("balances")
        async def add(message: Message[Any], tx: Transaction) -> None:
            await tx.execute("update balances set amount = amount + %s", [message.data])

        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("create table balances (amount integer)")
            connection.execute("insert into balances values (0)")
            await mp.append("payment-1", [NewMessage("paid", 5), NewMessage("paid", 7)])
            await mp.run_until_idle()
            assert connection.execute("select amount from balances").fetchone() == (12,)
        with psycopg.connect(milepost_url) as connection:
            assert connection.execute("select to_regclass('balances')").fetchone() == (None,)
        assert len(schemas(milepost_url, database.schema)) == 2
    assert not schemas(milepost_url, database.schema)


def test_what_a_test_leaves_open_keeps_nobody_waiting(milepost_url: str) -> None:
    with MilepostDB.fresh(milepost_url) as database:
        left = psycopg.connect(database.url)
        left.execute(sql.SQL("lock table {}.messages").format(sql.Identifier(database.schema)))
    assert not schemas(milepost_url, database.schema)
    left.close()


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a drop look at once for who holds it up."""
    monkeypatch.setattr("milepost.testing.database.LOCK_WAIT_SECONDS", 0.05)


LOCK = sql.SQL("lock table {}.messages")


@pytest.mark.usefixtures("short_wait")
def test_an_open_transaction_beside_the_test_is_named_and_ended(milepost_url: str) -> None:
    with closing(psycopg.connect(milepost_url, application_name="forgotten")) as beside:
        with pytest.warns(UserWarning, match="kept schema test_.* from being dropped") as warned:
            with MilepostDB.fresh(milepost_url) as database:
                beside.execute(LOCK.format(sql.Identifier(database.schema)))
                (pid,) = beside.execute("select pg_backend_pid()").fetchone() or ()
                beside.execute("select 1,\n 2")
        [warning] = warned
        assert re.search(
            f"Ended: pid {pid}, application 'forgotten', role .*, idle in transaction for \\d+ s, "
            r"last statement: select 1, 2\. Commit or roll back",
            str(warning.message),
        )
        with pytest.raises(psycopg.OperationalError):
            beside.execute("select 1")
    assert not schemas(milepost_url, database.schema)


@pytest.mark.usefixtures("short_wait")
def test_several_transactions_beside_the_test_and_its_own_tables(milepost_url: str) -> None:
    with closing(psycopg.connect(milepost_url)) as one, closing(psycopg.connect(milepost_url)) as other:
        with pytest.warns(UserWarning, match=r"Ended: pid .*; pid .*\. Commit"):
            with MilepostDB.fresh(milepost_url) as database:
                one.execute(LOCK.format(sql.Identifier(database.schema)))
                other.execute(
                    sql.SQL("create table {}.t (n integer)").format(sql.Identifier(f"{database.schema}_own"))
                )
    assert not schemas(milepost_url, database.schema)


@pytest.mark.usefixtures("short_wait", "prepared_transactions")
def test_a_prepared_transaction_is_rolled_back(milepost_url: str) -> None:
    name = uuid4().hex
    with pytest.warns(UserWarning, match=f"Ended: transaction '{name}', prepared by role .* for \\d+ s\\."):
        with (
            MilepostDB.fresh(milepost_url) as database,
            psycopg.connect(database.url, autocommit=True) as connection,
        ):
            connection.execute("begin")
            connection.execute(LOCK.format(sql.Identifier(database.schema)))
            connection.execute(sql.SQL("prepare transaction {}").format(name))
    assert not schemas(milepost_url, database.schema)


@pytest.mark.usefixtures("short_wait")
def test_who_cannot_be_ended_is_named(milepost_url: str) -> None:
    role = f"owner_{uuid4().hex[:12]}"
    with closing(psycopg.connect(milepost_url, autocommit=True)) as admin:
        admin.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        admin.execute(
            sql.SQL("grant create on database {} to {}").format(
                sql.Identifier(admin.info.dbname), sql.Identifier(role)
            )
        )
        try:
            with pytest.raises(
                MilepostError, match=r"schema test_\w+ cannot be dropped, it is held by pid .*(permission|must be)"
            ):
                with MilepostDB.fresh(psycopg.conninfo.make_conninfo(milepost_url, user=role)) as database:
                    admin.execute("begin")
                    admin.execute(LOCK.format(sql.Identifier(database.schema)))
        finally:
            admin.execute("rollback")
            admin.execute(sql.SQL("drop owned by {} cascade").format(sql.Identifier(role)))
            admin.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def test_an_address_in_other_words(milepost_url: str) -> None:
    words = psycopg.conninfo.make_conninfo(milepost_url, options="-c statement_timeout=7000")
    with MilepostDB.fresh(words) as database, psycopg.connect(database.url) as connection:
        assert connection.execute("show statement_timeout").fetchone() == ("7s",)
        assert connection.execute("select current_schema()").fetchone() == (f"{database.schema}_own",)


def test_no_server() -> None:
    name = uuid4().hex
    with pytest.raises(NoDatabase, match="there is no PostgreSQL to run tests on"):
        with MilepostDB.fresh(f"postgresql:///{name}?host=/nowhere"):
            pass
