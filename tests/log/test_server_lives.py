"""Crashes, restarts, standbys and poolers: what a process knew has to be forgotten, and nothing is skipped."""

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from conftest import absent
from lossy import lossy
from milepost import Milepost, NewMessage, Unavailable
from milepost.log.postgres import feed, wakeups
from milepost.log.query import Query
from milepost.postgres import pool
from patience import until
from servers import DEBIAN_15, PGBOUNCER, PgBouncer, Server, embedded_binaries, pooler_before
from support import Connection, Follower, MakeMilepost, following, positions, until_listening

M = NewMessage("happened")

# Commits answer before they are on disk, and stay off it until somebody asks: a crash loses them.
FORGETFUL = {"synchronous_commit": "off", "wal_writer_delay": "10000", "max_prepared_transactions": "10"}


@pytest.fixture(params=["embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
def binaries(request: pytest.FixtureRequest) -> Path:
    if request.param == "embedded":
        return embedded_binaries()
    if not (DEBIAN_15 / "postgres").exists():
        absent("PostgreSQL 15")
    return DEBIAN_15


@pytest.fixture
def server(binaries: Path) -> Iterator[Server]:
    """A server that a test may crash."""
    server = Server(binaries, settings=FORGETFUL).create()
    yield server
    server.remove()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a server looks for it more often."""
    monkeypatch.setattr(feed, "FEED_OUTAGE_PAUSE_SECONDS", (0.02, 0.1))
    monkeypatch.setattr(pool, "CONNECT_RETRY_SECONDS", 0.1)


@pytest.fixture
def pooler(server: Server) -> Iterator[PgBouncer]:
    """PgBouncer in transaction mode before it."""
    if not PGBOUNCER.exists():
        absent("pgbouncer")
    with pooler_before(server) as pooler:
        yield pooler


async def flush(mp: Milepost) -> None:
    """Brings to disk what was committed so far."""
    await mp.log.database.execute("set local synchronous_commit = on", {})
    async with mp.log.database.connection() as connection, connection.transaction():
        await connection.execute("set local synchronous_commit = on")
        await connection.execute("select pg_current_xact_id()")
        await connection.execute("create temporary table flushed () on commit drop")


async def until_available(mp: Milepost) -> None:
    """Waits until the pool has connections again."""
    async with asyncio.timeout(60):
        while True:
            try:
                await mp.log.database.execute("select 1", {})
            except Unavailable:
                continue
            return


async def hold_writers(mp: Milepost) -> None:
    """Stops the processes of the server that bring commits to disk by themselves; the crash ends them."""
    kinds = {"kinds": ["walwriter", "background writer"]}
    statement = "select pid from pg_stat_activity where backend_type = any(%(kinds)s)"
    for (pid,) in await mp.log.database.execute(statement, kinds):
        os.kill(pid, signal.SIGSTOP)


async def crash_that_takes_positions_back(mp: Milepost, server: Server, follower: Follower) -> list[int]:
    """Crashes until committed messages were lost and their positions drawn again; what a follower has to see.

    The server may have written everything to disk by itself, and then the crash proves nothing.
    """
    expected: list[int] = []
    for attempt in range(8):
        expected += [(await mp.append(f"kept-{attempt}-{number}", M)).position for number in range(40)]
        # Whoever begins to follow only after these knows nothing that survives, and is told everything again.
        assert await follower.until(len(expected)) == expected
        await flush(mp)
        await hold_writers(mp)
        expected += [(await mp.append(f"lost-{attempt}-{number}", M)).position for number in range(60)]
        assert await follower.until(len(expected)) == expected
        await asyncio.to_thread(server.crash)
        async with Milepost(server.url()) as direct:
            after = [(await direct.append(f"new-{attempt}-{number}", M)).position for number in range(80)]
        taken_back = after[0] <= expected[-1]
        expected += after
        if taken_back:
            return expected
        await until_available(mp)
        assert await follower.until(len(expected)) == expected
    raise AssertionError("no crash took positions back: the test proves nothing")


async def test_positions_that_go_backwards_after_a_crash(server: Server) -> None:
    """A follower saw messages that the crash lost; their positions are drawn again, and it sees the new ones."""
    async with Milepost(server.url()) as mp, following(mp) as follower:
        expected = await crash_that_takes_positions_back(mp, server, follower)
        assert await follower.until(len(expected)) == expected


class Lagging(Follower):
    """Reads the backlog too: names of streams are remembered there."""

    def __init__(self, mp: Milepost) -> None:
        super().__init__(mp)
        self._mp = mp

    async def until(self, count: int) -> list[int]:
        seen = await super().until(count)
        await self.streams()
        return seen

    async def streams(self) -> list[str]:
        """The stream of each message that lies behind the head."""
        await self._mp.log.horizon.look()
        history = self._mp.log.feed.history.after(Query(), 0)
        return [message.stream async for segment in history for message in segment.messages]


@pytest.mark.shard("faults")
async def test_numbers_of_streams_that_go_backwards_after_a_crash(server: Server) -> None:
    """A backlog was read with streams that the crash lost; their numbers are drawn again, for other streams."""
    async with Milepost(server.url()) as mp:
        follower = Lagging(mp)
        expected = await crash_that_takes_positions_back(mp, server, follower)
        await follower.until(len(expected))
        assert await follower.streams() == [message.stream async for message in mp.read()]
        await follower.stop()


@pytest.mark.shard("faults")
async def test_a_crash_behind_a_pooler_is_noticed(server: Server, pooler: PgBouncer) -> None:
    """No connection of the process is lost; the token in an unlogged table tells."""
    async with Milepost(pooler.url) as mp, following(mp) as follower:
        generation = mp.log.horizon.generation
        expected = await crash_that_takes_positions_back(mp, server, follower)
        assert await follower.until(len(expected)) == expected
        assert mp.log.horizon.generation > generation


async def test_everything_works_behind_a_pooler(pooler: PgBouncer, caplog: pytest.LogCaptureFixture) -> None:
    """Notifications do not arrive there, so a follower polls; it writes no marks that appends would pay for."""
    caplog.set_level(logging.INFO, "milepost.log.wakeups")
    async with Milepost(pooler.url) as mp:
        async with following(mp, category="order") as follower:
            await until(lambda: "notifications do not arrive" in caplog.text, 40)
            assert not mp.log.wakeups.listening
            for number in range(10):
                await mp.append(f"order-{number}", M)
                await mp.append_many({"other-1": [M], f"order-{number}": [M]})
                await follower.until(2 * (number + 1))
            assert await positions(mp, category="order") == follower.seen
            assert await mp.log.database.execute('select * from "milepost".sleeps', {}) == []
        assert await mp.head() == 30


@pytest.mark.parametrize("how", ["crash", pytest.param("restart", marks=pytest.mark.shard("faults"))])
async def test_a_prepared_transaction_over_a_restart(server: Server, how: str) -> None:
    """It changes its name in the list of locks, and holds the horizon all the same."""
    async with Milepost(server.url()) as mp:
        await mp.append("a-1", M)
        async with following(mp) as follower:
            await follower.until(1)
            async with await Connection.connect(server.url()) as other:
                await mp.append("prepared-1", M, connection=other, wake=False)
                await other.execute("prepare transaction 'held'")
                await other.rollback()
            await mp.append("a-2", M)
            assert await mp.head() == 1
            await flush(mp)
            if how == "crash":
                await asyncio.to_thread(server.crash)
            else:
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)
            await until_available(mp)
            await mp.append("a-3", M)
            assert await mp.head() == 1
            assert follower.seen == [1]
            await mp.log.database.execute("commit prepared 'held'", {})
            assert await follower.until(4) == await positions(mp)


@pytest.mark.shard("faults")
async def test_a_clean_restart_behind_a_pooler(server: Server, pooler: PgBouncer) -> None:
    """The token survives a clean stop; the start time tells, and the prepared transaction is waited for."""
    async with Milepost(pooler.url) as mp:
        await mp.append("a-1", M)
        async with await Connection.connect(server.url()) as other:
            await mp.append("prepared-1", M, connection=other, wake=False)
            await mp.append("a-2", M)
            assert await mp.head() == 1
            await other.execute("prepare transaction 'held'")
            await other.rollback()
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        await until_available(mp)
        assert await mp.head() == 1
        await mp.log.database.execute("commit prepared 'held'", {})
        assert await mp.head() == 3


@pytest.mark.shard("faults")
async def test_a_standby_is_refused(server: Server) -> None:
    async with Milepost(server.url()) as mp:
        await mp.append("a-1", M)
    standby = await asyncio.to_thread(server.copy)
    try:
        with pytest.raises(Unavailable, match="read-only|hot standby|recovery"):
            await Milepost(standby.url(), migrate="off").__aenter__()
        both = f"postgresql://postgres@/postgres?host={standby.folder},{server.folder}"
        async with Milepost(both) as mp:
            assert (await mp.append("a-2", M)).position == 2
    finally:
        await asyncio.to_thread(standby.remove)


@pytest.mark.shard("faults")
async def test_a_server_that_becomes_a_standby_is_noticed(server: Server) -> None:
    """Behind a pooler the connection stays; the sample asks."""
    async with Milepost(server.url()) as mp:
        await mp.append("a-1", M)
    standby = await asyncio.to_thread(server.copy)
    try:
        async with Milepost(server.url()) as mp:
            mp.log.database.conninfo = psycopg.conninfo.make_conninfo(standby.url())
            with pytest.raises(Unavailable, match="in recovery"):
                await mp.head()
    finally:
        await asyncio.to_thread(standby.remove)


async def test_a_promoted_standby_is_another_life(server: Server) -> None:
    """The address moves to the promoted standby: what the standby had not received is drawn again."""
    async with Milepost(server.url()) as mp:
        await mp.append("a-1", M)
        await mp.head()
        life = mp.log.horizon.life
        await flush(mp)
        standby = await asyncio.to_thread(server.copy)
        try:
            with pytest.raises(Unavailable, match="read-only|hot standby|recovery"):
                await Milepost(standby.url(), migrate="off").__aenter__()
            await asyncio.to_thread(server.stop, "immediate")
            await asyncio.to_thread(standby.promote)
            async with Milepost(standby.url()) as promoted:
                await promoted.append("a-2", M)
                assert await positions(promoted) == [1, await promoted.head()]
                assert promoted.log.horizon.life != life
        finally:
            await asyncio.to_thread(standby.remove)
            await asyncio.to_thread(server.start)


async def test_a_lost_listener_reconnects(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "PROBE_TIMEOUT_SECONDS", 40.0)
    mp.log.feed.poll = None
    async with following(mp) as follower:
        await until_listening(mp)
        for number in range(1, 4):
            await mp.append("a-1", M)
            await follower.until(number)
            await end_listeners(mp)
    assert follower.seen == [1, 2, 3]


async def end_listeners(mp: Milepost) -> None:
    """Ends the connections that listen, and waits until one listens again."""
    ended: Any = await mp.log.database.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where query ilike %(listens)s",
        {"listens": f"listen%{mp.settings['schema'].value}%"},
    )
    assert ended
    async with asyncio.timeout(60):
        while mp.log.wakeups.listening:
            await asyncio.sleep(0)
        while not mp.log.wakeups.listening:
            await asyncio.sleep(0.01)


@pytest.mark.shard("faults")
async def test_a_follower_outlives_an_outage(server: Server) -> None:
    async with Milepost(server.url()) as mp:
        follower = Follower(mp)
        await mp.append("a-1", M)
        await follower.until(1)
        await flush(mp)
        await asyncio.to_thread(server.stop)
        with pytest.raises(Unavailable) as failure:
            await mp.append("a-2", M)
        assert failure.value.transient
        await asyncio.to_thread(server.start)
        await until_available(mp)
        await mp.append("a-2", M)
        assert len(await follower.until(2)) == 2
        await follower.stop()


async def test_a_message_that_is_appended_again_is_not_the_one_that_was_lost(
    database_url: str, schema: str, make_mp: MakeMilepost
) -> None:
    """Its producer has tried again with the same id, and it got the same position: nothing before survived."""
    again = uuid4()
    async with lossy(database_url, schema) as server, make_mp() as mp:
        await mp.append("order-1", M)
        await server.flush()
        async with following(mp) as follower:
            await follower.until(1)
            await mp.append("order-1", M)
            await mp.append("order-1", NewMessage("again", id=again))
            assert await follower.until(3) == [1, 2, 3]
            sample, can_sample = mp.log.horizon.sample, asyncio.Event()

            async def wait_and_sample() -> None:
                await can_sample.wait()
                await sample()

            mp.log.horizon.sample = wait_and_sample  # type: ignore[method-assign]
            await server.crash()
            await until_available(mp)
            async with make_mp() as another:
                await another.append("order-2", M)
                await another.append("order-1", NewMessage("again", id=again))
            can_sample.set()
            assert await follower.until(5) == [1, 2, 3, 2, 3]
