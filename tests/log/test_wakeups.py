"""Wake-ups: none is lost, and nobody pays for them while nobody sleeps."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from psycopg import sql

from milepost import Milepost, MilepostError, NewMessage
from milepost.log.postgres import feed, wakeups
from milepost.log.query import PAGE_MESSAGES
from milepost.postgres.pool import translate_errors
from support import Connection, Follower, MakeMilepost, following, qualified, until_listening

M = NewMessage("happened")


@pytest.fixture(params=["embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
def database_url(request: pytest.FixtureRequest) -> str:
    """Both servers: what is tested here rests on what each of them does."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(autouse=True)
def listening_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it does, however long a word to oneself takes."""
    monkeypatch.setattr(wakeups, "PROBE_TIMEOUT_SECONDS", 40.0)


@pytest.fixture
async def sleeper(mp: Milepost) -> AsyncIterator[Follower]:
    """A follower at the head that is woken or sleeps for ever: it does not poll."""
    mp.log.feed.poll = None
    async with following(mp) as follower:
        await until_listening(mp)
        yield follower


async def asleep(mp: Milepost) -> None:
    """Waits until the feed sleeps."""
    async with asyncio.timeout(40):
        while not mp.log.wakeups.asleep:
            await asyncio.sleep(0)


async def marks(mp: Milepost) -> Any:
    return await mp.log.database.execute(qualified("select until from {}.sleeps", mp), {})


async def test_a_sleeping_reader_is_woken(mp: Milepost, sleeper: Follower) -> None:
    for number in range(1, 21):
        await asleep(mp)
        await mp.append("a-1", M)
        await sleeper.until(number)


async def test_an_append_in_the_callers_transaction_wakes_at_its_commit(
    mp: Milepost, sleeper: Follower, database_url: str
) -> None:
    async with await Connection.connect(database_url) as connection:
        for number in range(1, 21):
            await asleep(mp)
            await mp.append("a-1", M, connection=connection)
            await connection.commit()
            await sleeper.until(number)


async def test_the_end_of_a_transaction_that_holds_all_up_is_heard(
    mp: Milepost, sleeper: Follower, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the pause between two looks has become meanwhile."""
    paused = asyncio.Event()

    async def heard(seconds: float | None) -> bool:
        paused.set()
        return await is_heard(seconds)

    await asleep(mp)
    is_heard = mp.log.wakeups.wait_heard
    monkeypatch.setattr(feed, "STALLED_PAUSE_SECONDS", (3600, 3600))
    monkeypatch.setattr(feed, "DEAF_SHARE", 0)
    async with await Connection.connect(database_url) as connection:
        await mp.append("a-1", M, connection=connection)
        monkeypatch.setattr(mp.log.wakeups, "wait_heard", heard)
        await mp.append("b-1", M)
        await paused.wait()
        assert sleeper.seen == []
        await connection.commit()
        await sleeper.until(2)


async def test_none_is_lost_at_any_moment(mp: Milepost, sleeper: Follower, make_mp: MakeMilepost) -> None:
    """Appends at moments spread over the whole cycle of looking, marking and falling asleep."""
    async with make_mp() as appender:
        for number in range(1, 101):
            await appender.append("a-1", M)
            await sleeper.until(number)
            for _ in range(number % 50):
                await asyncio.sleep(0)


async def test_an_append_between_the_look_and_the_sleep(
    mp: Milepost, sleeper: Follower, make_mp: MakeMilepost
) -> None:
    async with make_mp() as appender:
        wait = mp.log.wakeups.wait
        appended = 0

        async def append_first(seconds: float | None) -> None:
            nonlocal appended
            if appended < 20:
                appended += 1
                await appender.append("a-1", M)
            await wait(seconds)

        mp.log.wakeups.wait = append_first  # type: ignore[method-assign]
        await appender.append("a-1", M)
        await sleeper.until(21)


async def test_a_reader_that_always_finds_more_keeps_its_mark(
    mp: Milepost, sleeper: Follower, make_mp: MakeMilepost
) -> None:
    """It does not sleep, but what comes while it waits for more is to wake it as well."""
    async with make_mp() as appender:
        heard = mp.log.wakeups.wait_heard
        appended = 0

        async def append_meanwhile(seconds: float | None) -> bool:
            nonlocal appended
            if appended == 20:
                return await heard(seconds)
            appended += 1
            await appender.append("a-1", M)
            return False

        await asleep(mp)
        mp.log.wakeups.wait_heard = append_meanwhile  # type: ignore[method-assign]
        await mp.log.database.execute(qualified("update {}.sleeps set until = until - interval '11 s'", mp), {})
        await appender.append("a-1", M)
        async with asyncio.timeout(40):
            while appended < 20:
                await asyncio.sleep(0)
        covered = "select count(*) from {0}.sleeps where until > {0}.clock() + interval '5 s'"
        assert (await mp.log.database.execute(qualified(covered, mp), {}))[0][0] == 1


async def test_what_is_there_beyond_a_gap_does_not_wait_for_more(
    mp: Milepost, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tells of it when the gap turns out to be empty."""
    monkeypatch.setattr(feed, "FEED_SAMPLE_SECONDS", 3600.0)
    mp.log.feed.poll = None
    async with (
        await Connection.connect(database_url) as one,
        await Connection.connect(database_url) as other,
        following(mp) as follower,
    ):
        await until_listening(mp)
        await asleep(mp)

        async def never(seconds: float) -> bool:
            await asyncio.sleep(seconds)
            return False

        for rest in ("FEED_REST_SECONDS", "FEED_SHORT_REST_SECONDS"):
            monkeypatch.setattr(feed, rest, 3600.0)
        mp.log.wakeups.wait_heard = never  # type: ignore[method-assign, assignment]
        await mp.append("a-1", M, connection=one)
        await mp.append("b-1", M, connection=other)
        await mp.append("a-1", M, connection=one)
        await one.commit()
        await follower.until(1)
        await other.rollback()
        assert await follower.until(2) == [1, 3]


@pytest.mark.parametrize(
    ("count", "is_marked"), [(feed.MAX_UNMARKED_POSITIONS, True), (feed.MAX_UNMARKED_POSITIONS + 1, False)]
)
async def test_a_reader_that_finds_much_whenever_it_looks_makes_nobody_tell_of_it(
    mp: Milepost, make_mp: MakeMilepost, count: int, is_marked: bool
) -> None:
    """It looks anyway. Where it finds only a few, it would rather be told."""
    horizon = mp.log.horizon
    sample = horizon.sample
    marked: list[bool] = []
    """Before each time that it looked, and found messages."""
    async with make_mp() as appender:

        async def append_first() -> None:
            await until_listening(mp)
            if len(marked) < 20:
                marked.append(await marks(mp) != [])
                await appender.append("a-1", [M] * count)
            await sample()

        horizon.sample = append_first  # type: ignore[method-assign]
        async with following(mp) as follower:
            await follower.until(20 * count)
            assert any(marked) is is_marked
            await asleep(mp)
            assert await marks(mp) != []


async def test_an_append_that_looked_for_sleepers_before_there_were_any(mp: Milepost, database_url: str) -> None:
    """It will not notify at its commit, so nobody sleeps while it is open."""
    mp.log.feed.poll = None
    async with await Connection.connect(database_url) as early:
        await mp.append("early-1", M, connection=early)
        async with following(mp) as follower:
            await until_listening(mp)
            async with asyncio.timeout(40):
                while mp.log.feed._generation < 0:
                    await asyncio.sleep(0)
            await mp.log.wakeups.mark()
            for _ in range(20):
                await mp.log.horizon.sample()
                assert not mp.log.wakeups.asleep
            await early.commit()
            await follower.until(1)


async def test_a_cancellation_that_the_driver_swallows_comes_back() -> None:
    async def swallow() -> None:
        with translate_errors(), suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    task = asyncio.create_task(swallow())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_connection_is_not_lost_with_a_cancelled_waiter(make_mp: MakeMilepost) -> None:
    """Cancelled in the moment it is handed one: it goes back to the pool."""
    async with make_mp(pool_size=1) as mp:
        pool = mp.log.database._pool
        original = pool.getconn

        async def handed_and_cancelled(timeout: float | None = None) -> Any:
            connection = await original(timeout)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            return connection

        pool.getconn = handed_and_cancelled  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(mp.append("a-1", M))
        pool.getconn = original  # type: ignore[method-assign]
        async with asyncio.timeout(40):
            assert (await mp.append("a-1", M)).version == 1


async def test_reads_that_are_left_early_lose_no_connections(make_mp: MakeMilepost) -> None:
    """Each ends in its first page, while there is another."""
    async with make_mp(pool_size=2) as mp:
        await mp.append("a-1", [M] * (PAGE_MESSAGES + 10))

        async def first() -> int:
            async for message in mp.read():
                return message.position
            return 0

        for _ in range(3):
            async with asyncio.timeout(60):
                assert await asyncio.gather(*(first() for _ in range(8))) == [1] * 8


async def test_who_comes_while_the_last_one_leaves_is_woken(mp: Milepost) -> None:
    mp.log.feed.poll = None
    for number in range(1, 6):
        leaving = Follower(mp)
        await mp.append("a-1", M)
        await leaving.until(number)
        stopping = asyncio.create_task(leaving.stop())
        await asyncio.sleep(0)
        async with following(mp) as coming:
            await stopping
            await until_listening(mp)
            await coming.until(number)
            await asleep(mp)
            assert mp.log.wakeups.listening


async def test_closing_tells_whoever_still_follows(make_mp: MakeMilepost) -> None:
    mp = make_mp()
    await mp.__aenter__()
    await mp.append("a-1", M)
    followers = [Follower(mp), Follower(mp, after=1)]
    await followers[0].until(1)
    await mp.__aexit__(None, None, None)
    for follower in followers:
        async with asyncio.timeout(40):
            with pytest.raises(MilepostError, match="closed"):
                await follower._task


async def heard(listener: Connection, mp: Milepost) -> list[str]:
    """What a listener has been told by now: it is told in the order of commits, and this one is the last."""
    last = {"channel": mp.settings["schema"].value}
    await mp.log.database.execute("select pg_notify(%(channel)s, 'the last')", last)
    told: list[str] = []
    async for note in listener.notifies(timeout=60):
        if note.payload == "the last":
            return told
        told.append(note.payload)
    raise AssertionError(f"the last notification did not come: {told}")


async def test_under_load_no_append_notifies(mp: Milepost, database_url: str) -> None:
    """No mark, no notification: a listener of the test's own hears nothing."""
    async with await Connection.connect(database_url, autocommit=True) as listener:
        await listener.execute(sql.SQL("listen {}").format(sql.Identifier(mp.settings["schema"].value)))
        for _ in range(5):
            await mp.append("a-1", M)
        assert await heard(listener, mp) == []


async def test_a_mark_makes_an_append_notify_until_it_has_passed(mp: Milepost, database_url: str) -> None:
    """A killed sleeper leaves a mark, which costs nothing once it has passed."""
    async with await Connection.connect(database_url, autocommit=True) as listener:
        await listener.execute(sql.SQL("listen {}").format(sql.Identifier(mp.settings["schema"].value)))
        await mp.log.wakeups.mark()
        await mp.append("a-1", M)
        assert len([note async for note in listener.notifies(timeout=40, stop_after=1)]) == 1
        await move_clock(mp, 16)
        await mp.append("a-1", M)
        assert await heard(listener, mp) == []


async def test_passed_marks_go(mp: Milepost) -> None:
    await mp.log.wakeups.mark()
    await move_clock(mp, 60)
    await mp.log.wakeups.mark()
    assert len(await marks(mp)) == 1


async def move_clock(mp: Milepost, seconds: int) -> None:
    """Moves the schema's clock ahead."""
    text = "create or replace function {}.clock() returns timestamptz language sql volatile parallel safe "
    moved = text + f"as $$ select clock_timestamp() + interval '{seconds} s' $$"
    await mp.log.database.execute(qualified(moved, mp), {})


async def test_one_mark_serves_all_processes(mp: Milepost, make_mp: MakeMilepost) -> None:
    async with make_mp() as second, following(mp):
        await asleep(mp)
        async with following(second):
            await asleep(second)
            assert len(await marks(mp)) == 1


async def test_a_killed_sleeper_costs_nothing_later(mp: Milepost, database_url: str, schema: str) -> None:
    program = (
        "import asyncio, sys\n"
        "from milepost import Milepost\n"
        "async def main():\n"
        f"    async with Milepost({database_url!r}, schema={schema!r}) as mp:\n"
        "        async def follow():\n"
        "            async for message in mp.follow(): pass\n"
        "        task = asyncio.create_task(follow())\n"
        "        while not mp.log.wakeups.asleep: await asyncio.sleep(0.01)\n"
        "        print('asleep', flush=True)\n"
        "        await task\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == b"asleep\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert len(await marks(mp)) == 1
    await move_clock(mp, 16)
    async with await Connection.connect(database_url, autocommit=True) as listener:
        await listener.execute(sql.SQL("listen {}").format(sql.Identifier(schema)))
        await mp.append("a-1", M)
        assert await heard(listener, mp) == []


async def test_sleeps_under_a_held_snapshot(mp: Milepost, database_url: str) -> None:
    """Marks are few and only added to, so that an append does not walk what a snapshot keeps alive.

    The cost is counted in blocks that one append touches, which no other load disturbs.
    """
    await sleep_under_a_held_snapshot(mp, database_url, count=1_500)


@pytest.mark.shard("large")
async def test_20_000_sleeps_under_a_held_snapshot(mp: Milepost, database_url: str) -> None:
    await sleep_under_a_held_snapshot(mp, database_url, count=20_000)


async def sleep_under_a_held_snapshot(mp: Milepost, database_url: str, *, count: int) -> None:
    """Marks `count` sleeps, and the clock moves on by 200 s meanwhile; an append costs the same after that."""
    steps = 20
    async with (
        await Connection.connect(database_url) as holder,
        await Connection.connect(database_url, autocommit=True) as appender,
    ):
        await holder.execute("set transaction isolation level repeatable read")
        await holder.execute("select 1")
        before = await blocks_of_an_append(mp, appender)
        for number in range(count):
            if number % (count // steps) == 0:
                await move_clock(mp, 10 * (number // (count // steps)))
            await mp.log.wakeups.mark()
        assert await blocks_of_an_append(mp, appender) <= before + 5


async def blocks_of_an_append(mp: Milepost, connection: Connection) -> int:
    statement = qualified(
        "explain (analyze, buffers, format json) select {}.write('a-1', '[{{\"type\": \"happened\"}}]', -2, true)",
        mp,
    )
    for _ in range(8):
        row = await (await connection.execute(statement)).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.usefixtures("prepared_transactions")
async def test_a_transaction_that_will_be_prepared(
    mp: Milepost, sleeper: Follower, database_url: str, schema: str
) -> None:
    """It may not notify; without wake=False PostgreSQL would refuse to prepare it. The slow poll finds it."""
    mp.log.feed.poll = 0.05
    await mp.log.wakeups.mark()
    name = sql.Literal(schema)
    async with await Connection.connect(database_url) as connection:
        await mp.append("a-1", M, connection=connection, wake=False)
        await connection.execute(sql.SQL("prepare transaction {}").format(name))
        await connection.rollback()
        await connection.set_autocommit(True)
        await connection.execute(sql.SQL("commit prepared {}").format(name))
        mp.log.wakeups._woken.set()
        await sleeper.until(1)


async def test_a_follower_can_be_cancelled_at_any_moment(mp: Milepost) -> None:
    """The driver's waiting may swallow a cancellation; it must not get lost."""
    for number in range(40):
        follower = Follower(mp)
        for _ in range(number * number):
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await follower.stop()
