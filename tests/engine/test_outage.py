"""A server that cannot be reached, or does not answer: work goes on as soon as it does."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lossy import until_available
from milepost import Context, Message, Milepost, NewMessage, Transaction, Unavailable
from milepost.log.postgres import feed
from milepost.postgres import pool as database_module
from milepost.postgres.pool import Database, Outage, outage_of
from patience import until
from servers import Server, embedded_binaries

M = NewMessage("happened")


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of the test's own."""
    server = Server(embedded_binaries()).create()
    yield server
    server.remove()


def processes_of(server: Server) -> list[int]:
    """The server's processes, the first one included."""
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    return [postmaster, *children(postmaster)]


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _words(task / "children")]


def _words(path: Path) -> list[str]:
    return path.read_text().split()


class Frozen:
    """A server that stands still: connections stay, and nothing is answered."""

    def __init__(self, server: Server) -> None:
        self._pids = processes_of(server)

    def __enter__(self) -> None:
        self._send(signal.SIGSTOP)

    def __exit__(self, *error: object) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        for pid in self._pids:
            os.kill(pid, number)


def failing(mp: Milepost, count: int) -> Callable[[], bool]:
    """Whether so many attempts at the server have failed from now on."""
    outage = outage_of(mp.log.database.conninfo)
    before = outage.failures
    return lambda: outage.failures >= before + count


@pytest.mark.shard("faults")
async def test_two_lines_are_logged(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many subscriptions, lanes and consumers there are."""
    # By subscription: what was not written yet when the server stopped comes again.
    seen: set[tuple[str | None, int]] = set()
    async with Milepost(server.url()) as mp:
        for name in ("one", "two"):

            @mp.subscription(name)
            async def handle(message: Message[Any], context: Context) -> None:
                seen.add((context.subscription, message.position))

        @mp.subscription("in a transaction")
        async def write(message: Message[Any], tx: Transaction) -> None:
            await tx.execute("select 1")
            seen.add((None, message.position))

        await mp.create_subscription("three")
        async with mp.running(), mp.consumer("three") as consumer:
            await mp.append("a-1", M)
            await until(lambda: len(seen) == 3, 60)
            async for delivery in consumer:
                await delivery.ack()
                break
            with caplog.at_level(logging.INFO):
                await asyncio.to_thread(server.stop)
                await until(failing(mp, 20), 60)
                with monkeypatch.context() as patch, pytest.raises(Unavailable):
                    patch.setattr(database_module, "CONNECT_TIMEOUT_SECONDS", 0.2)
                    await mp.append("a-1", M)
                await asyncio.to_thread(server.start)
                await until_available(mp)
                await mp.append("a-1", M)
                await until(lambda: len(seen) == 6, 60)
                async for delivery in consumer:
                    await delivery.ack()
                    break
    lines = [record.getMessage() for record in caplog.records if record.name.startswith(("milepost", "psycopg"))]
    outage = [line for line in lines if not line.startswith("horizon: starting anew")]
    assert len(outage) == 2, lines
    assert outage[0].startswith("connection lost, trying again: PostgreSQL")
    assert "connected again after" in outage[1]


async def test_work_goes_on_with_the_first_append_that_succeeds(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed does not wait for its own next attempt."""
    monkeypatch.setattr(feed, "FEED_OUTAGE_PAUSE_SECONDS", (600.0, 600.0))
    seen: list[int] = []
    async with Milepost(server.url()) as mp:

        @mp.subscription("lines")
        async def handle(message: Message[Any]) -> None:
            seen.append(message.position)

        async with mp.running():
            await mp.append("a-1", M)
            await until(lambda: len(seen) == 1, 60)
            await asyncio.to_thread(server.stop)
            await until(failing(mp, 3), 60)
            await asyncio.to_thread(server.start)
            await until_available(mp)
            await mp.append("a-1", M)
            await until(lambda: len(set(seen)) == 2, 60)


async def test_a_server_that_stands_still_does_not_hold_up_an_append(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "STATEMENT_SECONDS", 0.5)
    monkeypatch.setattr(database_module, "CONNECT_TIMEOUT_SECONDS", 2)
    async with Milepost(server.url()) as mp:
        await mp.append("a-1", M)
        with Frozen(server):
            with pytest.raises(Unavailable, match=r"no answer within 0\.5 s"):
                await mp.append("a-1", M)
            # And no connection, which another look at the pool would wait for.
            with pytest.raises(Unavailable):
                await mp.append("a-1", M)
        await until_available(mp)
        await mp.append("a-2", M)


@pytest.mark.shard("faults")
@pytest.mark.parametrize("takes_transaction", [False, True])
async def test_a_worker_leaves_a_primary_that_stands_still(
    server: Server, monkeypatch: pytest.MonkeyPatch, takes_transaction: bool
) -> None:
    """Its standby was promoted meanwhile, and is the second host of the address."""
    monkeypatch.setattr(database_module, "STATEMENT_SECONDS", 1.0)
    monkeypatch.setattr(database_module, "CONNECT_TIMEOUT_SECONDS", 1)
    seen: list[tuple[int, str]] = []
    async with Milepost(server.url()) as mp:
        await mp.append("a-1", NewMessage("kept"))
    standby = await asyncio.to_thread(server.copy)
    try:
        address = f"postgresql://postgres@/postgres?host={server.folder},{standby.folder}"
        async with Milepost(address) as mp:
            subscribe(mp, seen, takes_transaction=takes_transaction)
            async with mp.running(grace=1):
                await until(lambda: len(seen) == 1, 60)
                with Frozen(server):
                    await asyncio.to_thread(standby.promote)
                    async with Milepost(standby.url()) as another:
                        new = await another.append("a-1", NewMessage("new"))
                    await until(lambda: (new.position, "new") in seen, 60)
                    assert (await mp.append("a-1", NewMessage("newer"))).position > new.position
    finally:
        await asyncio.to_thread(standby.remove)


def subscribe(mp: Milepost, seen: list[tuple[int, str]], *, takes_transaction: bool) -> None:
    if takes_transaction:

        @mp.subscription("lines", lanes=1)
        async def write(message: Message[Any], tx: Transaction) -> None:
            await tx.execute("select 1")
            seen.append((message.position, message.type))
    else:

        @mp.subscription("lines")
        async def handle(message: Message[Any]) -> None:
            seen.append((message.position, message.type))


async def test_a_loop_that_stood_still_ends_no_connection(database_url: str) -> None:
    """The answer was there before the time was up; only nobody looked."""
    database = Database(database_url, pool_size=1)
    await database.open()
    try:
        [[pid]] = await database.execute("select pg_backend_pid()", {})
        with psycopg.connect(database_url, autocommit=True) as looks:
            state = "select state from pg_stat_activity where pid = %s and query like '%%pg_sleep(0.2)%%'"
            sent = asyncio.create_task(database.within(1.0).execute("select pg_sleep(0.2)", {}))
            while looks.execute(state, [pid]).fetchone() is None:
                await asyncio.sleep(0)
            # From here on the loop stands still, until long after the answer.
            while looks.execute(state, [pid]).fetchone() != ("idle",):
                time.sleep(0.01)  # noqa: ASYNC251
            time.sleep(1.2)  # noqa: ASYNC251
        await sent
        assert await database.execute("select pg_backend_pid()", {}) == [(pid,)]
    finally:
        await database.close()


async def test_a_pool_whose_connections_are_all_lent_is_no_outage(
    database_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "CONNECT_TIMEOUT_SECONDS", 0.2)
    database = Database(database_url, pool_size=1)
    await database.open()
    try:
        async with database.connection():
            with pytest.raises(Unavailable, match="no connection within"):
                await database.execute("select 1", {})
    finally:
        await database.close()
    assert "connection lost" not in caplog.text


def test_the_connection_that_ended_an_outage_may_begin_the_next(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage()
    outage.succeeded()
    before = time.monotonic()
    outage.failed(RuntimeError("one"))
    opened_at = time.monotonic()
    outage.succeeded()
    caplog.clear()
    outage.failed(RuntimeError("of before"), before)
    assert not caplog.records
    outage.failed(RuntimeError("two"), max(opened_at, time.monotonic()))
    assert "connection lost, trying again: two" in caplog.text
