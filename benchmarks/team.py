"""Processes that share a drain."""

import asyncio
from collections.abc import Mapping
from multiprocessing.connection import Connection
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

from benchmarks.counting import LOOK, Counter, rate_of
from benchmarks.logs import Log
from benchmarks.messages import TYPE, stream_name
from benchmarks.processes import PATIENCE, Processes
from benchmarks.raw_loop import RawLoop
from milepost import Message, Milepost

LANES = 16

Declared = Mapping[str, Mapping[str, Any]]
"""Subscriptions that do nothing with a message: their names and options."""
ALONE: Declared = {"drain": {}}

_SHARES = """
select count(*) from {schema}.lanes l join {schema}.subscriptions s on s.id = l.subscription
where s."group" = %s and l.owner is not null group by l.owner
"""
_WAKE = "select {schema}.append(%s, %s, '{{}}')"


def milepost_rate(
    log: Log, size: int, versions: int, declared: Declared = ALONE, *, deliveries_of_each: int = 1
) -> float:
    """Deliveries a second, from the first message that any process handles to the last.

    The processes are at rest at the head of the log and share its lanes evenly. Then one transaction brings the
    backlog: so many versions for each stream. A last append wakes whoever sleeps.
    """
    group = uuid4().hex
    count = (log.streams * versions + 1) * deliveries_of_each
    with (
        Processes(size, _work, log, group, declared) as processes,
        psycopg.connect(log.url, autocommit=True) as connection,
    ):
        _wait_for_shares(connection, log, group, [LANES * len(declared) // size] * size)
        bring(connection, log, versions)
        return rate_of(processes, count)


def bring(connection: psycopg.Connection, log: Log, versions: int) -> None:
    """A backlog in one transaction, so many versions for each stream; and a message that wakes whoever sleeps."""
    log.grow(versions)
    wake = sql.SQL(_WAKE).format(schema=sql.Identifier(log.schema))
    connection.execute(wake, [stream_name(0), TYPE])


def _wait_for_shares(connection: psycopg.Connection, log: Log, group: str, shares: list[int]) -> None:
    statement = sql.SQL(_SHARES).format(schema=sql.Identifier(log.schema))
    deadline = monotonic() + PATIENCE
    while [share for (share,) in connection.execute(statement, [group])] != shares:
        if monotonic() > deadline:
            raise TimeoutError(f"{len(shares)} processes did not share their lanes evenly within {PATIENCE:.0f} s")
        sleep(LOOK)


async def _work(pipe: Connection, number: int, log: Log, group: str, declared: Declared) -> None:
    mp, counter = Milepost(log.url, schema=log.schema, group=group), Counter()

    async def handle(message: Message[Any]) -> None:
        counter.note()

    for name, options in declared.items():
        mp.subscription(name, start="now", lanes=LANES, **options)(handle)

    async with mp.running():
        pipe.send("ready")
        while await asyncio.to_thread(pipe.recv) is not None:
            pipe.send(counter)


def raw_rate(log: Log, size: int) -> float:
    """Rows a second of raw loops, each of which has an equal part of the positions."""
    with RawLoop(log) as raw:
        head = raw.head()
    with Processes(size, _raw_work, log, size, head) as processes:
        start = monotonic()
        processes.send("go")
        ends: list[tuple[int, float]] = processes.receive(PATIENCE)
    return sum(count for count, _ in ends) / (max(ended for _, ended in ends) - start)


async def _raw_work(pipe: Connection, number: int, log: Log, size: int, head: int) -> None:
    with RawLoop(log, number) as raw:
        raw.drain()
        pipe.send("ready")
        while pipe.recv() is not None:
            count = raw.drain(after=head * number // size, until=head * (number + 1) // size)
            pipe.send((count, monotonic()))
