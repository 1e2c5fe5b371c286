"""Pulling and settling in the caller's transaction: asynchronous, blocking, SQLAlchemy, and plain SQL."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from engine.pulling import PATIENCE, Jobs, Waiting, positions
from milepost import Milepost, MilepostError, Unavailable
from milepost.engine.pull import claims, puller
from milepost.log.postgres import wakeups
from milepost.progress.postgres.deliveries import PostgresClaims
from patience import until
from support import Connection, MakeMilepost, qualified, until_somebody_waits_for


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        yield connection
        await connection.rollback()


@pytest.fixture
async def ready(mp: Milepost) -> Jobs:
    """Four rows that wait to be claimed."""
    jobs = await Jobs.create(mp)
    await jobs.append(4)
    await jobs.settle(retry=await jobs.pull(), after=0)
    return jobs


class TestPulling:
    async def test_a_rollback_takes_the_claims_back(self, ready: Jobs, connection: Connection) -> None:
        tasks = await ready.pull(connection=connection)
        assert positions(tasks) == [1, 2, 3, 4]
        assert [task.attempt for task in tasks] == [2] * 4
        await connection.rollback()
        assert positions(await ready.pull()) == [1, 2, 3, 4]
        assert (await ready.settle(ack=tasks)).refused == tuple(tasks)

    async def test_others_pass_over_what_is_claimed_there(self, ready: Jobs, connection: Connection) -> None:
        first = await ready.pull(limit=2, connection=connection)
        second = await ready.pull()
        assert (positions(first), positions(second)) == ([1, 2], [3, 4])
        await connection.commit()
        assert len((await ready.settle(ack=[*first, *second])).moved) == 4

    async def test_the_log_is_not_looked_at(self, mp: Milepost, connection: Connection) -> None:
        jobs = await Jobs.create(mp)
        await jobs.append(3)
        nothing = await jobs.pull(connection=connection)
        assert (nothing, nothing.more) == ((), True)
        await jobs.settle(retry=await jobs.pull(), after=0)
        tasks = await jobs.pull(connection=connection)
        assert (positions(tasks), tasks.more) == ([1, 2, 3], False)

    async def test_a_long_transaction_holds_up_nobody(self, mp: Milepost, connection: Connection) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream")
        await jobs.append(3, "job-a")
        await jobs.settle(retry=await jobs.pull(), after=0)
        [held] = await jobs.pull(connection=connection)
        assert held.position == 1
        await jobs.append(2, "job-b")
        await jobs.append(1, "job-a")
        assert await jobs.drain() == [4, 5]
        await jobs.settle(ack=held, connection=connection)
        await jobs.append(1, "job-a")
        await jobs.append(1, "job-c")
        assert await jobs.drain() == [8]
        await connection.commit()
        assert await jobs.drain() == [2, 3, 6, 7]

    async def test_it_does_not_wait(self, ready: Jobs, connection: Connection) -> None:
        with pytest.raises(ValueError, match="does not wait"):
            await ready.pull(connection=connection, wait=1)

    async def test_a_blocking_connection_is_for_sync(self, ready: Jobs, database_url: str) -> None:
        with psycopg.connect(database_url) as blocking, pytest.raises(TypeError, match=r"mp\.sync"):
            await ready.pull(connection=blocking)


class TestSettling:
    async def test_it_commits_with_the_callers_own_work(self, ready: Jobs, connection: Connection) -> None:
        await connection.execute("create temp table sent (job bigint)")
        await connection.commit()
        tasks = await ready.pull()
        await connection.execute("insert into sent values (1)")
        await ready.settle(ack=tasks[:1], connection=connection)
        await connection.rollback()
        assert len(await ready.rows(state="running")) == 4
        await connection.execute("insert into sent values (1)")
        result = await ready.settle(ack=tasks, connection=connection)
        assert result.moved == tuple(tasks)
        await connection.commit()
        assert await ready.rows() == []
        cursor = await connection.execute("select count(*) from sent")
        assert await cursor.fetchone() == (1,)

    async def test_who_lost_a_claim_is_told_in_time_to_roll_back(
        self, ready: Jobs, connection: Connection
    ) -> None:
        tasks = await ready.pull(limit=1)
        await ready.settle(retry=tasks)
        assert (await ready.settle(ack=tasks, connection=connection)).refused == tuple(tasks)

    async def test_two_who_settle_the_same_wait_for_each_other(self, ready: Jobs, connection: Connection) -> None:
        tasks = await ready.pull(limit=2)
        await ready.settle(ack=tasks, connection=connection)
        second = asyncio.create_task(ready.settle(retry=tasks))
        await until_somebody_waits_for(connection)
        await connection.commit()
        assert (await second).refused == tuple(tasks)

    async def test_what_is_changed_meanwhile_keeps_its_claim(self, mp: Milepost, connection: Connection) -> None:
        jobs = await Jobs.create(mp)
        await jobs.append(2)
        tasks = await jobs.pull()
        await jobs.settle(extend=tasks, connection=connection)
        second = asyncio.create_task(jobs.settle(ack=tasks))
        await until_somebody_waits_for(connection)
        await connection.commit()
        assert (await second).moved == tuple(tasks)

    async def test_a_settlement_that_a_deadlock_has_ended_is_tried_again(
        self, mp: Milepost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        jobs = await Jobs.create(mp)
        await jobs.append(2)
        tasks = await jobs.pull()
        settle = PostgresClaims._settle
        errors: list[Exception] = [psycopg.errors.DeadlockDetected(), psycopg.errors.DeadlockDetected()]

        async def ended_twice(*args: Any, **options: Any) -> Any:
            if errors:
                raise Unavailable("ended") from errors.pop()
            return await settle(*args, **options)

        monkeypatch.setattr(PostgresClaims, "_settle", ended_twice)
        assert (await jobs.settle(ack=tasks)).moved == tuple(tasks)

    @pytest.mark.shard("faults")
    async def test_who_gets_into_a_deadlock_tries_again(
        self,
        make_mp: MakeMilepost,
        mp: Milepost,
        connection: Connection,
        database_url: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # The server ends the one whose time-out passes first, and looks only once for each wait.
        jobs = await Jobs.create(mp)
        settling = make_mp(url=make_conninfo(database_url, options="-c deadlock_timeout=10s"))
        await connection.execute("set deadlock_timeout = '1min'")
        await jobs.append(2)
        tasks = await jobs.pull()
        calls = 0
        settle = PostgresClaims._settle

        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            return await settle(*args, **options)

        monkeypatch.setattr(PostgresClaims, "_settle", counted)
        lock = qualified('select from {}.deliveries where "position" = %s for update', mp).encode()
        await connection.execute(lock, [2])
        async with settling:
            second = asyncio.create_task(Jobs(settling).settle(ack=tasks))
            await until_somebody_waits_for(connection)
            await connection.execute(lock, [1])
            await connection.rollback()
            assert (await second).moved == tuple(tasks)
        # More than one try again, where it was faster than who waited for the row that it had let go.
        assert calls >= 2


class TestBlocking:
    def test_pull_and_settle(self, make_mp: MakeMilepost) -> None:
        mp = make_mp()
        with mp.sync as sync:
            sync._run(lambda: mp.create_subscription("emails", category="job", tracking="all"))
            sync._run(lambda: Jobs(mp).append(3))
            tasks = sync.pull("emails", wait=5)
            assert positions(tasks) == [1, 2, 3]
            assert sync.settle(ack=tasks[:2], retry=tasks[2:], after=0).refused == ()
            assert positions(sync.pull("emails")) == [3]

    async def test_in_the_callers_transaction(self, ready: Jobs, make_mp: MakeMilepost, database_url: str) -> None:
        def work() -> list[int]:
            # It is never opened: the connection is all that it needs.
            sync = make_mp().sync
            with psycopg.connect(database_url) as connection:
                tasks = sync.pull("emails", limit=3, connection=connection)
                assert sync.settle(ack=tasks, connection=connection).refused == ()
            return positions(tasks)

        assert await asyncio.to_thread(work) == [1, 2, 3]
        assert await ready.states() == {4: "retrying"}

    async def test_with_sqlalchemy(self, ready: Jobs, make_mp: MakeMilepost, database_url: str) -> None:
        def work() -> list[int]:
            sync = make_mp().sync
            engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database_url))
            with engine.begin() as connection:
                connection.execute(text("select 1"))
                tasks = sync.pull("emails", limit=3, connection=connection)
                sync.settle(ack=tasks[:1], park={tasks[1]: "why"}, retry=tasks[2:], connection=connection)
            engine.dispose()
            return positions(tasks)

        assert await asyncio.to_thread(work) == [1, 2, 3]
        assert await ready.states() == {2: "parked", 3: "retrying", 4: "retrying"}

    async def test_with_asynchronous_sqlalchemy(self, ready: Jobs, database_url: str) -> None:
        for driver, connect in (
            ("psycopg", lambda: psycopg.AsyncConnection.connect(database_url)),
            ("asyncpg", lambda: _asyncpg(database_url)),
        ):
            engine = create_async_engine(f"postgresql+{driver}://", async_creator=connect)
            async with engine.begin() as connection:
                tasks = await ready.pull(limit=2, connection=connection)
                result = await ready.settle(ack=tasks[:1], park={tasks[1]: "why"}, connection=connection)
                assert len(result.moved) == 2
            await engine.dispose()
        assert await ready.states() == {2: "parked", 4: "parked"}


async def _asyncpg(url: str) -> Any:
    import asyncpg
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(url)
    return await asyncpg.connect(host=given["host"], user=given["user"], database=given["dbname"])


class TestSql:
    async def test_settling(self, mp: Milepost, connection: Connection) -> None:
        jobs = await Jobs.create(mp)
        await jobs.append(5)
        ack, retry, park, skip, extend = (task.token for task in await jobs.pull())
        cursor = await connection.execute(
            qualified(
                "select moved, refused from {}.settle(ack => array[%s], retry => array[%s, 'x'], "
                "park => array[%s], skip => array[%s], extend => array[%s], "
                "reason => 'why', after => '1 hour', timeout => '1 day')",
                mp,
            ).encode(),
            [ack, retry, park, skip, extend],
        )
        assert await cursor.fetchone() == (5, ["x"])
        await connection.commit()
        assert await jobs.states() == {2: "retrying", 3: "parked", 5: "running"}
        retrying, parked, _ = await jobs.rows()
        assert (retrying.reason, parked.reason) == ("why", "why")
        assert retrying.due is not None
        assert (retrying.due - retrying.since).total_seconds() == pytest.approx(3600, abs=60)
        [[left]] = await jobs.execute('select expires - {0}.clock() from {0}.deliveries where "position" = 5')
        assert 86_000 < left.total_seconds() <= 86_400

    @pytest.mark.shard("hostile", fast=["", "999999999999999999999999999999999999999999999999999999999999"])
    @pytest.mark.parametrize("token", ["", "1", "0-1-" + "0" * 32, "9" * 60, "a-b-c", "1-1-" + "g" * 32])
    async def test_what_is_no_token_is_refused(self, mp: Milepost, connection: Connection, token: str) -> None:
        statement = qualified("select moved, refused from {}.settle(ack => array[%s])", mp).encode()
        cursor = await connection.execute(statement, [token])
        assert await cursor.fetchone() == (0, [token])

    async def test_nothing_at_all(self, mp: Milepost, connection: Connection) -> None:
        cursor = await connection.execute(qualified("select moved, refused from {}.settle()", mp).encode())
        assert await cursor.fetchone() == (0, [])

    @pytest.mark.parametrize(
        ("argument", "problem"),
        [
            (
                "after => '-1 second'",
                "after: an interval from 0 seconds to .* is wanted, not -00:00:01",
            ),
            ("after => '101 years'", "after: .* not 101 years"),
            ("timeout => '0'", "timeout: an interval of more than 0 seconds .* is wanted, not 00:00:00"),
            ("timeout => '101 years'", "timeout: .* not 101 years"),
        ],
    )
    async def test_a_time_that_there_is_not(
        self, mp: Milepost, connection: Connection, argument: str, problem: str
    ) -> None:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=problem):
            await connection.execute(qualified(f"select {{}}.settle({argument})", mp).encode())

    async def test_one_token_with_two_outcomes(self, mp: Milepost, connection: Connection) -> None:
        token = "1-1-" + "0" * 32
        statement = qualified("select {}.settle(ack => array[%s, %s], skip => array[%s])", mp).encode()
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="twice"):
            await connection.execute(statement, [token, token, token])


class TestElsewhere:
    """Progress is in another database than the log."""

    async def test_messages_are_read_there_and_rows_written_here(
        self, make_mp: MakeMilepost, second_url: str
    ) -> None:
        async with make_mp(progress=second_url) as mp, make_mp(progress=second_url) as other:
            jobs = await Jobs.create(mp, ordered_by="stream", where="n >= 1")
            for number in range(6):
                await mp.append(f"job-{number % 2}", [_message(number)])
            first, second = await jobs.pull(), await Jobs(other).pull()
            assert (positions(first), positions(second)) == ([2, 3], [])
            await jobs.settle(ack=first[:1], retry=first[1:], after=0)
            assert await Jobs(other).drain() == [3, 4, 5, 6]

    async def test_waiting(self, make_mp: MakeMilepost, second_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(claims, "PULL_POLL_SECONDS", 1000.0)
        monkeypatch.setattr(puller, "PULL_POLL_WITHOUT_LISTENING_SECONDS", 1000.0)
        monkeypatch.setattr(wakeups, "PROBE_TIMEOUT_SECONDS", PATIENCE)
        async with make_mp(progress=second_url) as mp, make_mp(progress=second_url) as other:
            jobs = await Jobs.create(mp, ordered_by="stream")
            waiting = Waiting(Jobs(other), monkeypatch)
            await waiting.asleep()
            await jobs.append(2)
            assert await waiting.got() == [1]
            waiting = Waiting(Jobs(other), monkeypatch)
            await waiting.asleep()
            await until(lambda: other.services.wakeups.listening, PATIENCE)
            [[token]] = await jobs.execute(
                "select subscription || '-' || \"position\" || '-' || replace(claim::text, '-', '') "
                "from {}.deliveries where claim is not null"
            )
            await jobs.settle(ack=token)
            assert await waiting.got() == [2]

    async def test_in_the_callers_transaction(self, make_mp: MakeMilepost, second_url: str) -> None:
        async with make_mp(progress=second_url) as mp:
            jobs = await Jobs.create(mp)
            await jobs.append(2)
            await jobs.settle(retry=await jobs.pull(), after=0)
            async with await psycopg.AsyncConnection.connect(second_url) as connection:
                tasks = await jobs.pull(connection=connection)
                assert positions(tasks) == [1, 2]
                await jobs.settle(ack=tasks, connection=connection)
            assert await jobs.rows() == []

    async def test_in_a_blocking_callers_transaction(self, make_mp: MakeMilepost, second_url: str) -> None:
        async with make_mp(progress=second_url) as mp:
            jobs = await Jobs.create(mp)
            await jobs.append(2)
            await jobs.settle(retry=await jobs.pull(), after=0)

        def work() -> list[int]:
            with make_mp(progress=second_url).sync as sync, psycopg.connect(second_url) as connection:
                tasks = sync.pull("emails", connection=connection)
                sync.settle(ack=tasks, connection=connection)
                return positions(tasks)

        assert await asyncio.to_thread(work) == [1, 2]

    async def test_a_log_that_went_back_is_noticed(self, make_mp: MakeMilepost, second_url: str) -> None:
        async with make_mp(progress=second_url) as mp:
            jobs = await Jobs.create(mp)
            await jobs.append(3)
            await jobs.pull()
        async with make_mp() as log:
            await log.log.database.execute(qualified("truncate {}.messages restart identity", log), {})
            await log.log.database.execute(qualified('update {}.horizon set "position" = 0', log), {})
        with pytest.raises(MilepostError, match="the log went back"):
            async with make_mp(progress=second_url) as mp:
                await Jobs(mp).pull()


def _message(number: int) -> Any:
    from milepost import NewMessage

    return NewMessage("sent", number, properties={"n": number})
