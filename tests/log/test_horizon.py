"""The horizon: one test for each interleaving that breaks the obvious version.

A random load finds few of them, so each is forced: a transaction is opened, the step under test is taken, and
the transaction ends.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from psycopg import sql

from milepost import NOW, Milepost, NewMessage, SchemaMismatch
from milepost.log.postgres.horizon import Horizon
from support import Connection, MakeMilepost, following, positions, qualified

M = NewMessage("happened")


@pytest.fixture(params=["embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
def database_url(request: pytest.FixtureRequest) -> str:
    """Both servers: what is tested here rests on what each of them does."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[Connection]:
    """A connection of somebody else's, in a transaction from its first statement on."""
    async with await Connection.connect(database_url) as connection:
        yield connection
        await connection.rollback()


def after_statement(horizon: Horizon, part: str, act: Callable[[], Awaitable[Any]]) -> None:
    """Does something once, right after the horizon's next statement that contains `part`."""
    original = horizon._fetch
    done = False

    async def fetch(statement: Any, parameters: Any) -> Any:
        nonlocal done
        rows = await original(statement, parameters)
        if part in statement and not done:
            done = True
            await act()
        return rows

    horizon._fetch = fetch  # type: ignore[method-assign]


async def test_an_append_between_the_two_halves_of_a_sample(mp: Milepost, other: Connection) -> None:
    await mp.append("a-1", M)
    await mp.log.horizon.sample()
    after_statement(mp.log.horizon, "messages_position_seq", lambda: mp.append("a-2", M, connection=other))
    await mp.log.horizon.sample()
    assert mp.log.horizon.position == 1

    await mp.append("a-3", M)
    assert await mp.head() == 1
    await other.commit()
    assert await mp.head() == 3
    assert await positions(mp) == [1, 2, 3]


async def test_an_append_after_both_halves_of_a_sample(mp: Milepost, other: Connection) -> None:
    """Were the transactions looked for first, and then how far the sequence is, it would count as final."""
    await mp.append("a-1", M)
    await mp.log.horizon.sample()
    after_statement(mp.log.horizon, "pg_locks", lambda: mp.append("a-2", M, connection=other))
    await mp.log.horizon.sample()
    assert mp.log.horizon.position == 1
    await other.commit()
    assert await mp.head() == 2


async def test_a_commit_between_the_two_halves_of_a_sample(mp: Milepost, other: Connection) -> None:
    await mp.log.horizon.sample()
    await mp.append("a-1", M, connection=other)
    after_statement(mp.log.horizon, "messages_position_seq", other.commit)
    await mp.log.horizon.sample()
    assert mp.log.horizon.position == 1
    assert await positions(mp) == [1]


async def test_appends_between_sample_and_page(mp: Milepost, other: Connection) -> None:
    """The page shows a message above a gap that opened after the sample: it is held back."""

    async def open_a_gap() -> None:
        await mp.append("a-1", M, connection=other)
        await mp.append("a-2", M)

    async with following(mp) as follower:
        await mp.append("a-0", M)
        await follower.until(1)
        after_statement(mp.log.horizon, "pg_locks", open_a_gap)
        while await mp.last("a-2") == 0:
            await mp.log.horizon.sample()
        await mp.append("a-3", M)
        assert await mp.head() == 1
        assert follower.seen == [1]
        await other.commit()
        assert await follower.until(4) == [1, 2, 3, 4]


async def test_sample_and_page_are_statements_of_their_own(mp: Milepost) -> None:
    """Lockers and page in one statement share a snapshot that is older than the set of lockers."""
    await mp.log.horizon.sample()
    seen: list[str] = []
    original = mp.log.horizon._fetch

    async def fetch(statement: Any, parameters: Any) -> Any:
        rows = await original(statement, parameters)
        connection = mp.log.horizon._connection
        assert connection is not None
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        parts = {"drawn": "messages_position_seq", "lockers": "pg_locks", "page": 'order by m."position"'}
        seen.append("+".join(name for name, part in parts.items() if part in statement))
        return rows

    mp.log.horizon._fetch = fetch  # type: ignore[method-assign]
    async with following(mp) as follower:
        for number in range(1, 4):
            await mp.append("a-1", M)
            await follower.until(number)
    steps = [step for step in seen if step]
    assert set(steps) == {"drawn", "lockers", "page"}
    assert all(after == "lockers" for before, after in pairwise(steps) if before == "drawn")


async def test_an_early_append_that_commits_late_delays_and_is_not_skipped(
    mp: Milepost, other: Connection
) -> None:
    async with following(mp) as follower:
        await mp.append("a-1", M)
        await follower.until(1)
        await mp.append("late-1", M, connection=other)
        for number in range(5):
            await mp.append(f"b-{number}", M)
        assert await mp.head() == 1
        assert await positions(mp) == [1]
        assert follower.seen == [1]
        await other.commit()
        assert await follower.until(7) == [1, 2, 3, 4, 5, 6, 7]


async def test_a_long_transaction_delays_only_what_was_drawn_after_it_came(
    mp: Milepost, make_mp: MakeMilepost, database_url: str, other: Connection
) -> None:
    """It holds the log's lock without a gap of its own below what others committed before it."""
    async with await Connection.connect(database_url) as first:
        await mp.append("first-1", M, connection=first)
        await mp.log.horizon.sample()
        assert mp.log.horizon.position == 0
        await mp.append("long-1", M, connection=other)
        await first.commit()
    await mp.log.horizon.sample()
    assert mp.log.horizon.position == 1


async def test_a_run_of_visible_positions_moves_the_horizon(mp: Milepost, other: Connection) -> None:
    """A transaction that holds the log's lock without having drawn a position delays nobody."""
    await other.execute(qualified('delete from {}.messages where "position" = 0', mp))
    await mp.append("a-1", M)
    await mp.append("a-2", M)
    assert await mp.head() == 2
    async with following(mp) as follower:
        await follower.until(2)
        await mp.append("a-3", M)
        assert await follower.until(3) == [1, 2, 3]


async def test_a_rollback_at_the_head_leaves_a_gap_that_is_passed(mp: Milepost, other: Connection) -> None:
    async with following(mp) as follower:
        await mp.append("a-1", M)
        await follower.until(1)
        await mp.append("gone-1", M, connection=other)
        await other.rollback()
        assert await mp.head() == 2
        await mp.append("a-2", M)
        assert await follower.until(2) == [1, 3]


async def test_a_savepoint_rolled_back_leaves_nothing(mp: Milepost, other: Connection) -> None:
    async with other.transaction():
        await mp.append("kept-1", M, connection=other)
        with pytest.raises(ZeroDivisionError):
            async with other.transaction():
                await mp.append("gone-1", M, connection=other)
                raise ZeroDivisionError
        await mp.append("kept-2", M, connection=other)
        assert await mp.head() == 0
    assert await positions(mp) == [1, 3]


@pytest.mark.usefixtures("prepared_transactions")
async def test_a_prepared_transaction_holds_the_horizon(mp: Milepost, other: Connection, schema: str) -> None:
    await mp.append("a-1", M)
    await mp.append("prepared-1", M, connection=other, wake=False)
    await mp.append("a-2", M)
    await mp.log.horizon.sample()
    await other.execute(sql.SQL("prepare transaction {}").format(sql.Literal(schema)))
    assert await mp.head() == 1
    await other.rollback()
    await other.set_autocommit(True)
    await other.execute(sql.SQL("commit prepared {}").format(sql.Literal(schema)))
    assert await mp.head() == 3
    assert await positions(mp) == [1, 2, 3]


async def test_a_gap_whose_revealing_row_is_deleted(mp: Milepost, other: Connection) -> None:
    """Retention may remove the message that showed the gap; the gap is waited for all the same."""
    async with following(mp) as follower:
        await mp.append("a-1", M)
        await follower.until(1)
        await mp.append("late-1", M, connection=other)
        await mp.append("reveals-1", M)
        await mp.log.database.execute(qualified('delete from {}.messages where "position" = 3', mp), {})
        assert await mp.head() == 1
        await other.commit()
        await mp.append("a-2", M)
        assert await follower.until(3) == [1, 2, 4]


async def test_a_write_to_another_table_delays_nobody(mp: Milepost, other: Connection) -> None:
    await other.execute(qualified("create table {}.orders (id int)", mp))
    await other.execute(qualified("insert into {}.orders values (1)", mp))
    await mp.append("a-1", M)
    await mp.log.horizon.sample()
    assert mp.log.horizon.position == 1
    assert mp.log.horizon.is_settled


async def test_an_append_in_another_database_delays_nobody(database_url: str, schema: str) -> None:
    """Not even in a copy of the database, where the log's table has the same number."""
    one, copy = f"{schema}_1", f"{schema}_2"
    urls = [psycopg.conninfo.make_conninfo(database_url, dbname=name) for name in (one, copy)]
    async with await Connection.connect(database_url, autocommit=True) as admin:
        await admin.execute(sql.SQL("create database {}").format(sql.Identifier(one)))
        try:
            async with Milepost(urls[0], schema=schema):
                pass
            text = "create database {} template {} strategy file_copy"
            await admin.execute(sql.SQL(text).format(sql.Identifier(copy), sql.Identifier(one)))
            async with Milepost(urls[0], schema=schema) as mp, Milepost(urls[1], schema=schema) as elsewhere:
                async with await Connection.connect(urls[1]) as open_there:
                    await elsewhere.append("a-1", M, connection=open_there)
                    await mp.append("a-1", M)
                    await mp.log.horizon.sample()
                    assert mp.log.horizon.is_settled
                    assert mp.log.horizon.position == 1
                    assert await elsewhere.head() == 0
        finally:
            for name in (one, copy):
                text = "drop database if exists {} with (force)"
                await admin.execute(sql.SQL(text).format(sql.Identifier(name)))


async def test_the_backend_that_holds_the_gap_is_killed(mp: Milepost, database_url: str) -> None:
    async with following(mp) as follower:
        holder = await Connection.connect(database_url)
        await mp.append("gone-1", M, connection=holder)
        await mp.append("a-1", M)
        assert await mp.head() == 0
        pid = holder.info.backend_pid
        await mp.log.database.execute("select pg_terminate_backend(%(pid)s)", {"pid": pid})
        assert await follower.until(1) == [2]
        await holder.close()


async def append_under_repeatable_read(mp: Milepost) -> None:
    async with mp.log.database.connection() as connection, connection.transaction():
        await connection.execute("set transaction isolation level repeatable read")
        await mp.append("a-2", M, connection=connection)


@pytest.mark.parametrize(
    "append",
    [
        lambda mp: mp.append("a-2", M),
        lambda mp: mp.append("a-2", [M, M, M]),
        lambda mp: mp.append_many({"a-2": M, "a-3": [M, M]}),
        append_under_repeatable_read,
    ],
    ids=["one", "several", "many streams", "repeatable read"],
)
async def test_the_position_is_drawn_under_the_lock_of_the_insert(
    mp: Milepost, other: Connection, append: Callable[[Milepost], Any]
) -> None:
    """Drawn before it, the position is behind the horizon before its transaction is known to hold it."""
    await mp.append("a-1", M)
    await other.execute(qualified("lock table {}.messages in share mode", mp))
    blocked = asyncio.create_task(append(mp))
    waiting = (
        "select 1 from pg_locks where not granted and mode = 'RowExclusiveLock' "
        "and relation = to_regclass(%(name)s)"
    )
    name = {"name": f"{mp.settings['schema'].value}.messages"}
    async with asyncio.timeout(60):
        while not await mp.log.database.execute(waiting, name):
            assert not blocked.done()
    await mp.log.horizon.sample()
    assert mp.log.horizon.position == 1
    await other.commit()
    await blocked
    assert await mp.last("a-2") >= 1
    assert (await positions(mp))[:2] == [1, 2]


async def test_a_sequence_that_draws_ahead_is_refused(mp: Milepost, make_mp: MakeMilepost) -> None:
    await mp.log.database.execute(qualified("alter sequence {}.messages_position_seq cache 10", mp), {})
    with pytest.raises(SchemaMismatch, match="CACHE 10"):
        await make_mp().__aenter__()
    with pytest.raises(SchemaMismatch, match="cache 1"):
        await make_mp(migrate="check").__aenter__()


async def test_a_position_that_is_not_the_columns_own_is_refused(mp: Milepost, make_mp: MakeMilepost) -> None:
    await mp.log.database.execute(
        qualified('alter table {}.messages alter "position" set generated by default', mp), {}
    )
    with pytest.raises(SchemaMismatch, match="inside the INSERT"):
        await make_mp().__aenter__()


async def test_a_lost_connection_repeats_and_skips_nothing(mp: Milepost) -> None:
    """The server is the same when it is reached again: what was known is still true."""
    await mp.append("a-1", [M] * 5)
    async with following(mp) as follower:
        await follower.until(5)
        for number in range(6, 10):
            connection = mp.log.horizon._connection
            assert connection is not None
            pid = {"pid": connection.info.backend_pid}
            await mp.log.database.execute("select pg_terminate_backend(%(pid)s)", pid)
            await mp.append("a-1", M)
            assert await follower.until(number) == list(range(1, number + 1))


async def test_the_horizon_is_not_stored_into_another_life(mp: Milepost) -> None:
    """After a crash the same positions may be other messages, and a stored horizon only goes up."""
    await mp.append("a-1", [M] * 5)
    assert await mp.head() == 5
    await mp.log.database.execute(qualified("update {}.server_life set token = gen_random_uuid()", mp), {})
    mp.log.horizon.stored = 0
    await mp.log.database.execute(qualified('update {}.horizon set "position" = 0', mp), {})
    await mp.log.horizon.close()
    stored = await mp.log.database.execute(qualified('select "position" from {}.horizon', mp), {})
    assert stored == [(0,)]


async def test_with_no_survivor_a_follower_goes_back_to_where_the_life_began(
    mp: Milepost, make_mp: MakeMilepost
) -> None:
    """And not to a horizon that somebody has stored since: messages before it may be new."""
    # Nothing tells it of another life where nothing is appended.
    mp.log.feed.poll = 0.02
    await mp.append("a-1", [M] * 5)
    async with following(mp) as follower:
        await follower.until(5)
        mp.log.feed._recent.clear()
        await mp.log.database.execute(qualified('update {}.horizon set "position" = 2', mp), {})
        await mp.log.database.execute(qualified("delete from {}.server_life", mp), {})
        async with make_mp() as other:
            assert await other.head() == 5
        assert await follower.until(8) == [1, 2, 3, 4, 5, 3, 4, 5]


async def test_what_was_known_in_another_generation_is_not_taken(mp: Milepost) -> None:
    await mp.append("a-1", [M] * 5)
    await mp.head()
    generation = mp.log.horizon.generation
    await mp.log.database.execute(qualified("update {}.server_life set token = gen_random_uuid()", mp), {})
    await mp.log.horizon.sample()
    assert mp.log.horizon.generation == generation + 1
    mp.log.horizon.passed(100, generation)
    assert await mp.head() == 5


async def test_what_waits_behind_a_gap_is_fetched_once(mp: Milepost, other: Connection) -> None:
    async with following(mp) as follower:
        await mp.append("a-1", M)
        await follower.until(1)
        fetched: list[int] = []
        page = mp.log.feed._reader.log_page

        async def counted(*arguments: Any, **options: Any) -> Any:
            found = await page(*arguments, **options)
            fetched.extend(message.position for message in found)
            return found

        mp.log.feed._reader.log_page = counted  # type: ignore[method-assign]
        await mp.append("late-1", M, connection=other)
        await mp.append("a-1", [M] * 100)
        for _ in range(200):
            await mp.log.horizon.sample()
        assert len(fetched) <= 200
        await other.commit()
        await follower.until(102)
        assert len(fetched) <= 400


async def test_load_and_append_beside_a_foreign_open_append(mp: Milepost, other: Connection) -> None:
    """One stream is read to its last version, whatever the horizon waits for."""
    await mp.append("foreign-1", M, connection=other)
    for version in range(20):
        loaded = [message.version async for message in mp.read("order-1")]
        assert loaded == list(range(1, version + 1))
        assert await mp.last("order-1") == version
        await mp.append("order-1", M, expected=len(loaded))


async def test_now_means_now(mp: Milepost, other: Connection) -> None:
    """What was visible above the horizon when the following began is not new; what commits later is."""
    await mp.append("late-1", M, connection=other)
    await mp.append("old-1", M)
    await mp.append("old-2", M)
    begun = asyncio.Event()
    begin = mp.log.feed._begin

    async def noted(after: Any) -> Any:
        result = await begin(after)
        begun.set()
        return result

    mp.log.feed._begin = noted  # type: ignore[method-assign]
    async with following(mp, after=NOW) as follower:
        await begun.wait()
        await other.commit()
        await mp.append("new-1", M)
        assert await follower.until(2) == [1, 4]


async def test_who_holds_the_horizon_is_named(
    mp: Milepost,
    other: Connection,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("milepost.log.protocol.HOLDER_NAMED_SECONDS", 0.1)
    caplog.set_level(logging.WARNING)
    async with await Connection.connect(database_url, application_name="slow-import") as holder:
        await mp.append("a-1", M, connection=holder)
        pid = holder.info.backend_pid
        async with following(mp), asyncio.timeout(40):
            while "slow-import" not in caplog.text:
                await asyncio.sleep(0.02)
        assert f"pid {pid} (slow-import)" in caplog.text
        assert caplog.text.count("slow-import") == 1
        [holder_seen] = await mp.log.horizon.holders()
        assert (holder_seen.pid, holder_seen.application) == (pid, "slow-import")
        assert holder_seen.age is not None
        assert holder_seen.age >= 0.1


async def test_a_new_process_starts_from_the_stored_horizon(
    make_mp: MakeMilepost, mp: Milepost, other: Connection
) -> None:
    await mp.append("a-1", M)
    await mp.append("gone-1", M, connection=other)
    await other.rollback()
    await mp.append("a-2", M)
    async with make_mp() as first:
        assert await first.head() == 3
    await mp.append("late-1", M, connection=other)
    async with make_mp() as second:
        assert await second.head() == 3
        assert await positions(second) == [1, 3]
