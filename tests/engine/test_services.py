"""Who keeps progress and leases can be chosen: each choice works from end to end."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import psycopg
import pytest
from psycopg import sql

from milepost import (
    AdvisoryLeases,
    Checkpoint,
    Context,
    Leases,
    LogMismatch,
    MemoryLeases,
    MemoryProgress,
    Message,
    Milepost,
    MilepostError,
    NewMessage,
    Park,
    PostgresLeases,
    Progress,
    Retry,
    SchemaMismatch,
    Transaction,
)
from milepost.engine.declare.context import ProgressLocation
from milepost.engine.lanes import balancer
from milepost.engine.lanes.heartbeat import Heartbeat
from patience import looked_at, within
from support import MakeMilepost, qualified

LEASES: dict[str, Callable[[], Leases | None]] = {
    "default": lambda: None,
    "rows": PostgresLeases,
    "advisory": AdvisoryLeases,
    "memory": MemoryLeases,
}


@pytest.fixture
def progress(request: pytest.FixtureRequest) -> str | Progress | None:
    """A way to keep progress."""
    if request.param == "other database":
        return str(request.getfixturevalue("second_url"))
    return MemoryProgress() if request.param == "memory" else None


@pytest.fixture(params=list(LEASES))
def leases(request: pytest.FixtureRequest) -> Leases | None:
    """Each way to keep leases."""
    return LEASES[request.param]()


def choices() -> Iterator[Any]:
    """Each way to keep progress with each way to keep leases; in the fast shard each of them once."""
    fast = {("log", "default"), ("other database", "advisory"), ("memory", "memory")}
    for progress in ("log", "other database", "memory"):
        for leases in LEASES:
            marks = [] if (progress, leases) in fast else [pytest.mark.shard("processes")]
            yield pytest.param(progress, leases, marks=marks, id=f"{progress}-{leases}")


every_choice = pytest.mark.parametrize(("progress", "leases"), list(choices()), indirect=True)


async def fill(mp: Milepost, count: int, streams: int = 10) -> None:
    for number in range(count):
        await mp.append(f"order-{number % streams}", NewMessage("placed", number))


async def rows_in(url: str, mp: Milepost, text: str) -> list[tuple[Any, ...]]:
    """What a statement gives in a database; the schema's name stands for `{}`."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        statement: Any = qualified(text, mp)
        cursor = await connection.execute(statement)
        return await cursor.fetchall() if cursor.description else []


async def until(condition: Callable[[], bool]) -> None:
    async with within(60, lambda: looked_at(condition)):
        while not condition():
            await asyncio.sleep(0.01)


@every_choice
async def test_every_choice_handles_each_message_once_and_goes_on_where_it_was(
    make_mp: MakeMilepost, progress: str | Progress | None, leases: Leases | None
) -> None:
    seen: dict[int, int] = defaultdict(int)

    def program() -> Milepost:
        mp = make_mp(progress=progress, leases=leases)

        @mp.subscription("all", category="order", lanes=4)
        async def handle(message: Message[Any]) -> None:
            if message.data == 7:
                raise Park("seven")
            seen[message.data] += 1

        return mp

    async with program() as mp:
        await fill(mp, 50)
        report = await mp.run_until_idle()
        assert (report["all"].handled, report["all"].parked) == (45, 1)
    async with program() as mp:
        await mp.append("order-1", NewMessage("placed", 100))
        assert (await mp.run_until_idle())["all"].handled == 1
        (info,) = await mp.subscriptions()
        assert (info.name, info.parked, info.waiting, info.lag.positions) == ("all", 1, 4, 0)
    behind_seven = {17, 27, 37, 47}
    assert seen == dict.fromkeys({*range(50), 100} - behind_seven - {7}, 1)


@every_choice
async def test_every_choice_tries_again(
    make_mp: MakeMilepost, progress: str | Progress | None, leases: Leases | None
) -> None:
    mp = make_mp(progress=progress, leases=leases)
    attempts: dict[int, list[int]] = defaultdict(list)

    @mp.subscription("all", category="order", retry=Retry(delay=0.01, jitter=0))
    async def handle(message: Message[Any], context: Context) -> None:
        attempts[message.data].append(context.attempt)
        if context.attempt < 3:
            raise ValueError

    async with mp.running():
        await fill(mp, 5, streams=5)
        await until(lambda: [len(attempts[number]) for number in range(5)] == [3] * 5)
    assert all(numbers == [1, 2, 3] for numbers in attempts.values())


@pytest.mark.shard("variants", fast=["rows", "advisory"])
async def test_programs_share_the_lanes_by_every_kind_of_leases(
    make_mp: MakeMilepost, leases: Leases | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancer, "BALANCE_SECONDS", 0.05)
    seen: dict[int, list[int]] = defaultdict(list)

    def program(number: int) -> Milepost:
        mp = make_mp(leases=leases)

        # Each of four lanes has some of the ten streams; of eight, half have none.
        @mp.subscription("shared", category="order", lanes=4, lease=60)
        async def handle(message: Message[Any]) -> None:
            seen[number].append(message.position)
            if len(seen) < 2:
                await asyncio.sleep(0.01)

        return mp

    one, two = program(1), program(2)
    async with one.running(), two.running():
        async with asyncio.timeout(100):
            while len(seen) < 2:
                await fill(one, 10)
                # What both have to do besides needs its time too.
                await asyncio.sleep(0.05)
        await one.append("order-0", NewMessage("placed", -1))
        head = await one.head()
        await until(lambda: sum(map(len, seen.values())) >= head)
    assert sorted(seen[1] + seen[2]) == list(range(1, head + 1))


class Beats:
    """The beats of a heart, which come soon after each other, and the time that the leases go by."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mp: Milepost, leases: Leases | None) -> None:
        self._mp = mp
        self._offset = 0.0
        self._begun = 0
        is_blocked_within = Heartbeat._is_blocked_within

        async def soon(heart: Heartbeat, seconds: float) -> bool:
            self._begun += 1
            return await is_blocked_within(heart, 0.02)

        monkeypatch.setattr(Heartbeat, "_is_blocked_within", soon)
        if isinstance(leases, MemoryLeases):
            monkeypatch.setattr(leases, "clock", lambda: monotonic() + self._offset)

    def advance(self, seconds: float) -> None:
        """Time passes, and then the heart beats, without the event loop of whoever calls this."""
        self._offset += seconds
        moved = "create or replace function {}.clock() returns timestamptz language sql volatile parallel safe "
        moved += f"as $$ select clock_timestamp() + interval '{self._offset} s' $$"
        with psycopg.connect(self._mp.url) as connection:
            connection.execute(qualified(moved, self._mp).encode())
        # One may have been under way.
        wanted, limit = self._begun + 2, monotonic() + 60
        while self._begun < wanted:
            assert monotonic() < limit, "the heart does not beat"
            time.sleep(0.005)


@pytest.mark.shard("faults", fast=["rows", "memory"])
async def test_a_loop_that_is_blocked_for_longer_than_the_lease_loses_nothing(
    make_mp: MakeMilepost,
    leases: Leases | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mp = make_mp(leases=leases)
    attempts, beats = [], Beats(monkeypatch, mp, leases)

    @mp.subscription("slow", category="order", lanes=2, lease=300, timeout=3600)
    async def handle(message: Message[Any], context: Context) -> None:
        attempts.append(context.attempt)
        if message.data == 0:
            # What a careless handler does: nothing else runs on the loop for three leases.
            for _ in range(5):
                beats.advance(180)

    takes = "select count(*) from {}.cursors where taken is not null"
    async with mp, mp.program().running(grace=60) as worker:
        await mp.append("order-1", NewMessage("placed", 1))
        await until(lambda: len(attempts) == 1)
        before = await rows_in(mp.url, mp, takes)
        await fill(mp, 4, streams=1)
        await until(lambda: len(attempts) == 5)
        # What is balanced after it would be the first to notice.
        for _ in range(2):
            await worker._balancer.balanced()
        assert await rows_in(mp.url, mp, takes) == before
    assert attempts == [1] * 5
    assert not [record for record in caplog.records if "lanes are not shared" in record.message]


# Progress in another database


async def test_all_of_progress_is_in_the_second_database(make_mp: MakeMilepost, second_url: str) -> None:
    mp = make_mp(progress=second_url)

    @mp.subscription("all", category="order", lanes=3)
    async def handle(message: Message[Any]) -> None:
        if message.data == 0:
            raise Park("zero")

    async with mp.running():
        await fill(mp, 10)
        kept = """select (select count(*) from {0}.subscriptions), (select count(*) from {0}.deliveries),
                         (select count(*) from {0}.workers), (select count(distinct lane) from {0}.cursors),
                         (select count(*) from {0}.lanes where owner is not null)"""
        statement = kept.replace("{0}", f'"{mp.settings["schema"].value}"')
        async with asyncio.timeout(60):
            while await rows_in(second_url, mp, statement) != [(1, 1, 1, 3, 3)]:
                await asyncio.sleep(0.01)
        assert await rows_in(mp.url, mp, statement) == [(0, 0, 0, 0, 0)]
        assert await rows_in(second_url, mp, "select count(*) from {}.messages") == [(0,)]


@pytest.mark.shard("variants", fast=["8"])
@pytest.mark.parametrize("pool_size", [1, 8])
async def test_a_transaction_is_the_second_databases(
    make_mp: MakeMilepost, second_url: str, pool_size: int
) -> None:
    mp = make_mp(progress=second_url, pool_size=pool_size)
    insert: Any = qualified("insert into {}.effects values (%s)", mp)

    @mp.subscription("effects", category="order", retry=Retry.never)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.execute(insert, (message.data,))
        if message.data == 7:
            raise ValueError("seven")

    async with mp:
        await rows_in(second_url, mp, "create table {}.effects (n bigint)")
        await fill(mp, 100, streams=20)
        report = await mp.run_until_idle(errors="park")
        assert (report["effects"].handled, report["effects"].failed) == (95, 1)
        assert (await mp.run_until_idle())["effects"].handled == 0
    found = await rows_in(second_url, mp, "select n from {}.effects order by n")
    assert [n for (n,) in found] == [n for n in range(100) if n % 20 != 7]
    states = await rows_in(second_url, mp, "select state, count(*) from {}.deliveries group by 1 order by 1")
    assert states == [("parked", 1), ("waiting", 4)]


async def appends(message: Message[Any], tx: Transaction) -> None:
    await tx.execute("select 1")
    await tx.append("receipt-1", NewMessage("due"))


async def appends_within(message: Message[Any], tx: Transaction) -> None:
    async def append() -> None:
        await tx.append("receipt-1", NewMessage("due"))

    await asyncio.gather(append(), append())


async def appends_each(messages: list[Message[Any]], tx: Transaction) -> None:
    [await tx.append(f"receipt-{m.data}", NewMessage("due")) for m in messages]  # type: ignore[func-returns-value]


@pytest.mark.parametrize("handler", [appends, appends_within, appends_each])
def test_an_append_that_can_be_seen_is_refused_when_declared(make_mp: MakeMilepost, handler: Any) -> None:
    mp = make_mp(progress="postgresql://elsewhere")
    with pytest.raises(ValueError, match=r"subscription 'receipts': .*appends.*tx\.append.*mp\.append"):
        mp.subscription("receipts", category="order")(handler)
    make_mp().subscription("receipts", category="order")(handler)


def test_another_append_is_not_mistaken_for_one(make_mp: MakeMilepost) -> None:
    mp = make_mp(progress="postgresql://elsewhere")

    @mp.subscription("lists", category="order")
    async def handle(message: Message[Any], tx: Transaction) -> None:
        found = [tx]
        found.append(tx)
        await mp.append("receipt-1", NewMessage("due"))

        def other(tx: list[int]) -> None:
            tx.append(1)


@pytest.mark.parametrize("many", [False, True])
async def test_nothing_is_appended_where_progress_is(make_mp: MakeMilepost, second_url: str, many: bool) -> None:
    """Its schema has the tables of a log too, and nobody would read what is there."""
    mp = make_mp(progress=second_url)

    @mp.subscription("receipts", category="order")
    async def handle(message: Message[Any], tx: Transaction) -> None:
        if many:
            await mp.append_many({"receipt-1": [NewMessage("due")]}, connection=tx.connection)
        else:
            await mp.append("receipt-1", NewMessage("due"), connection=tx.connection)

    async with mp:
        await fill(mp, 1)
        with pytest.raises(LogMismatch, match="another database than the log's"):
            await mp.run_until_idle()
        assert await rows_in(second_url, mp, "select * from {}.messages") == []
        async with await psycopg.AsyncConnection.connect(mp.url) as connection:
            await mp.append("receipt-1", NewMessage("due"), connection=connection)
        with psycopg.connect(mp.url) as blocking:
            mp.sync.append("receipt-1", NewMessage("due"), connection=blocking)
        assert await mp.last("receipt-1") == 2


async def test_an_append_that_cannot_be_seen_is_refused_when_called(
    make_mp: MakeMilepost, second_url: str
) -> None:
    mp = make_mp(progress=second_url)
    runs = []

    async def receipt(tx: Transaction) -> None:
        await tx.append("receipt-1", NewMessage("due"))

    @mp.subscription("receipts", category="order")
    async def handle(message: Message[Any], tx: Transaction) -> None:
        runs.append(message.data)
        await receipt(tx)

    async with mp:
        await fill(mp, 1)
        with pytest.raises(MilepostError, match="another database than the log"):
            await mp.run_until_idle()
        assert (await mp.run_until_idle())["receipts"].handled == 0
        assert await mp.last("receipt-1") == 0
        (info,) = await mp.subscriptions()
    assert runs == [0]
    assert (info.parked, info.retrying) == (1, 0)


async def test_the_second_database_is_migrated_as_the_option_says(make_mp: MakeMilepost, empty_url: str) -> None:
    async with make_mp():
        pass
    with pytest.raises(SchemaMismatch, match="the database of progress: .*milepost schema migrate"):
        await make_mp(progress=empty_url, migrate="check").__aenter__()
    async with make_mp(progress=empty_url):
        pass
    async with make_mp(progress=empty_url, migrate="check"):
        pass


@pytest.mark.parametrize("is_second", [True, False])
async def test_a_schema_that_is_missing_is_named_when_nobody_looked_before(
    make_mp: MakeMilepost, unused_schema: str, second_url: str, is_second: bool
) -> None:
    if is_second:
        async with make_mp(schema=unused_schema):
            pass
    mp = idle(make_mp(schema=unused_schema, progress=second_url if is_second else None, migrate="off"))
    with pytest.raises(SchemaMismatch, match="milepost schema migrate"):
        await mp.run_until_idle()


def idle(mp: Milepost) -> Milepost:
    """A program with a subscription."""

    @mp.subscription("all", category="order", lanes=2)
    async def handle(message: Message[Any]) -> None:
        pass

    return mp


async def test_progress_is_of_one_log(make_mp: MakeMilepost, second_url: str, database_url: str) -> None:
    async with make_mp(progress=second_url) as mp:
        await idle(mp).run_until_idle()
    # The second database has a log of its own, and another program wants to follow that.
    with pytest.raises(LogMismatch, match="the progress of another log"):
        await idle(make_mp(url=second_url)).run_until_idle()
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(mp.settings["schema"].value)))
    with pytest.raises(LogMismatch, match="the progress of another log"):
        await make_mp(progress=second_url).__aenter__()


async def test_progress_that_follows_its_own_log_takes_no_other(make_mp: MakeMilepost, second_url: str) -> None:
    await idle(make_mp(url=second_url)).run_until_idle()
    with pytest.raises(LogMismatch, match="the progress of another log"):
        await make_mp(progress=second_url).__aenter__()


async def go_back(mp: Milepost, position: int) -> None:
    """What a restore from an older backup does: what came later is gone, and its positions are drawn again."""
    schema = mp.settings["schema"].value
    for statement in (
        f"delete from {{}}.messages where position > {position}",
        f"select setval('{schema}.messages_position_seq', {position})",
        f"update {{}}.horizon set position = least(position, {position})",
        "delete from {}.server_life",
    ):
        await rows_in(mp.url, mp, statement)


async def test_a_log_that_went_back_is_noticed_at_the_start(make_mp: MakeMilepost, second_url: str) -> None:
    async with make_mp(progress=second_url) as mp:
        await fill(mp, 20)
        await idle(mp).run_until_idle()
    await go_back(mp, 12)
    with pytest.raises(LogMismatch, match="went back: it had come to position 20 and is at 12.*restore"):
        await make_mp(progress=second_url).__aenter__()
    async with make_mp() as without_progress:
        await fill(without_progress, 20)
    with pytest.raises(LogMismatch, match="went back: the message at position 20 is another one"):
        await make_mp(progress=second_url).__aenter__()


async def test_a_log_that_went_back_behind_a_start_is_noticed(make_mp: MakeMilepost, second_url: str) -> None:
    mp = make_mp(progress=second_url)

    @mp.subscription("new", category="order", start="now")
    async def handle(message: Message[Any]) -> None:
        raise AssertionError

    async with make_mp() as log:
        await fill(log, 20)
    await mp.run_until_idle()
    await go_back(mp, 12)
    with pytest.raises(LogMismatch, match="went back"):
        await make_mp(progress=second_url).__aenter__()


async def test_what_was_remembered_of_the_log_long_ago_goes(make_mp: MakeMilepost, second_url: str) -> None:
    horizons = "select f.horizon from {}.followed f order by 1"
    async with make_mp(progress=second_url) as mp:
        await fill(mp, 5)
        await idle(mp).run_until_idle()
        before = await rows_in(second_url, mp, horizons)
        assert len(before) > 1
        await rows_in(second_url, mp, "update {}.followed set at = at - interval '1 hour'")
        await fill(mp, 5)
        await mp.run_until_idle()
        assert not {*await rows_in(second_url, mp, horizons)} & {*before[:-1]}


@pytest.mark.parametrize("appended", [0, 20], ids=["behind", "grown again"])
async def test_a_log_that_went_back_is_noticed_while_a_program_runs(
    make_mp: MakeMilepost, second_url: str, appended: int
) -> None:
    mp = idle(make_mp(progress=second_url))
    with pytest.raises(LogMismatch, match="went back"):
        async with mp, mp.running(grace=1):
            # Nobody tells of it where nothing is appended.
            mp.log.feed.poll = 0.02
            await fill(mp, 20)
            async with asyncio.timeout(60):
                while (await mp.subscriptions())[0].lag.positions:
                    await asyncio.sleep(0.01)
            await go_back(mp, 12)
            await fill(mp, appended)
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
    assert await rows_in(second_url, mp, "select max(position) from {}.cursors") == [(20,)]


async def test_another_life_of_the_server_that_lost_nothing_ends_nothing(
    make_mp: MakeMilepost, second_url: str
) -> None:
    mp = make_mp(progress=second_url)
    seen = []

    @mp.subscription("all", category="order", lanes=2)
    async def handle(message: Message[Any]) -> None:
        seen.append(message.position)

    async with mp.running():
        for count in (20, 40):
            await fill(mp, 20)
            # What was not written down when it happened comes again.
            await until(lambda count=count: len(set(seen)) == count)  # type: ignore[misc]
            await rows_in(mp.url, mp, "delete from {}.server_life")
    assert sorted(set(seen)) == list(range(1, 41))


async def test_no_cursor_is_beyond_what_is_remembered_of_the_log(make_mp: MakeMilepost, second_url: str) -> None:
    mp = make_mp(progress=second_url)
    seen = []

    @mp.subscription("all", category="order", lanes=4, checkpoint=Checkpoint(seconds=0.01))
    async def handle(message: Message[Any]) -> None:
        seen.append(message.position)

    both = """select coalesce(max(c.position), 0) <= max(f.horizon), coalesce(max(c.position), 0)
              from {0}.followed f left join {0}.cursors c on true"""
    statement = both.replace("{0}", f'"{mp.settings["schema"].value}"')
    async with mp.running():
        for number in range(10):
            await fill(mp, 10)
            written = 0
            async with asyncio.timeout(60):
                while written <= 10 * number:
                    [(is_covered, written)] = await rows_in(second_url, mp, statement)
                    assert is_covered
        await until(lambda: len(seen) == 100)
    [*_, (horizon, position)] = await rows_in(
        second_url, mp, "select horizon, position from {}.followed order by 1"
    )
    assert (horizon, position) == (100, 100)


# Options


def test_a_transaction_needs_progress_in_postgresql(make_mp: MakeMilepost) -> None:
    mp = make_mp(progress=MemoryProgress())

    @mp.subscription("effects", category="order")
    async def handle(message: Message[Any], tx: Transaction) -> None:
        pass

    with pytest.raises(ValueError, match="'effects': it takes a Transaction, and progress is kept outside"):
        mp.declared()


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("progress", MemoryProgress, r"an object such as MemoryProgress\(\)"),
        ("progress", MemoryLeases(), r"an object such as MemoryProgress\(\)"),
        ("progress", "", "the address of a database"),
        ("progress", 5, "the address of a database"),
        ("leases", AdvisoryLeases, r"an object such as AdvisoryLeases\(\)"),
        ("leases", "memory", r"an object such as AdvisoryLeases\(\)"),
        ("leases", MemoryProgress(), r"an object such as AdvisoryLeases\(\)"),
    ],
)
def test_a_wrong_service_is_refused_when_made(option: str, value: Any, wanted: str) -> None:
    with pytest.raises(ValueError, match=f"^{option}: .*{wanted}.* is wanted"):
        Milepost("postgresql://nowhere", **{option: value})


def test_the_environment_names_the_database_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_PROGRESS", "postgresql://elsewhere/app")
    mp = Milepost("postgresql://nowhere/log")
    assert mp.settings["progress"].source == "MILEPOST_PROGRESS"
    assert (
        ProgressLocation.of(mp.settings["url"].value, mp.settings["progress"].value)
        is ProgressLocation.IN_ANOTHER_DATABASE
    )
    assert ProgressLocation.of("postgresql://same", "postgresql://same") is ProgressLocation.WITH_THE_LOG


def test_without_an_event_loop(make_mp: MakeMilepost, second_url: str) -> None:
    mp = idle(make_mp(progress=second_url, leases=AdvisoryLeases()))
    with mp.sync:
        mp.sync.append("order-1", NewMessage("placed"))
        assert mp.sync.run_until_idle()["all"].handled == 1
        assert mp.sync.run_until_idle()["all"].handled == 0
