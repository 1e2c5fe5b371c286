"""How long a trace takes on a long log with many deliveries, beside one a hundred times shorter."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.contest import Scores
from benchmarks.logs import Log, fresh_log
from benchmarks.messages import STREAMS, stream_name
from benchmarks.results import Result
from milepost import Message, Milepost

SUBSCRIPTIONS = 10
OF_EACH = 10
"""The newest messages of so many streams in a row have deliveries: one is parked, the others wait behind it."""
SHORTER = 100
TRACED = 20
"""The messages of one trace."""
REPEATED = 20
"""Calls of one turn: each by itself takes milliseconds."""
GOAL = 0.1
"""Seconds."""

SHORT, LONG = "a short log", "milepost"

_ROWS = """
insert into {schema}.deliveries
    (subscription, "position", lane, attempts, total, size, revision, since, state, key, reason, error)
select s.id, m."position", m.bucket %% s.lanes, 11, 11, m.size, 1, now(),
       case when m.version = l.version - {of_each} + 1 then 'parked' else 'waiting' end, l.name,
       'ValueError: no tax rate', repeat('  File "shop.py", line 7, in invoice' || chr(10), 20)
from {schema}.subscriptions s
cross join (
    select t.stream_id, t.name, max(m.version) as version
    from {schema}.streams t join {schema}.messages m on m.stream_id = t.stream_id
    group by t.stream_id, t.name
) l
join {schema}.messages m on m.stream_id = l.stream_id and m.version > l.version - {of_each}
"""

Ask = Callable[[Milepost, str], Awaitable[object]]


def measure(bench: Bench) -> list[Result]:
    """A stream, a message by its id, and how far one subscription is with a stream."""
    count = bench.sizes.memory_messages
    work = f"trace: {count:,} messages, {STREAMS * OF_EACH * SUBSCRIPTIONS:,} deliveries"
    asks: dict[str, Ask] = {
        f"{TRACED} messages of a stream, {SUBSCRIPTIONS} subscriptions": _trace,
        "a message by its id": _trace_id,
        "the progress with a stream": _progress,
    }
    rounds = bench.sizes.rounds
    with ExitStack() as stack, bench.steps(work, 2 + rounds * 2 * len(asks)) as step:
        logs = {}
        for name, streams in ((SHORT, STREAMS // SHORTER), (LONG, STREAMS)):
            made = fresh_log(bench.url, f"trace_{streams}", streams=streams, versions=count // STREAMS)
            logs[name] = stack.enter_context(made)
            asyncio.run(_declare(logs[name]))
            _fill(logs[name])
            step()
        scores = {what: Scores(unit="s", fewer_is_better=True) for what in asks}
        for _ in range(rounds):
            for what, ask in asks.items():
                for name, log in logs.items():
                    scores[what].add(name, asyncio.run(_seconds(log, ask)))
                    step()
    return [
        scores[what].result(f"{work}: {what}", name, of=SHORT if name == LONG else None, below=GOAL)
        for what in asks
        for name in logs
    ]


async def _declare(log: Log) -> None:
    """Subscriptions at the head of the log."""
    mp = Milepost(log.url, schema=log.schema)
    for number in range(SUBSCRIPTIONS):

        @mp.subscription(f"s{number}", where='region == "EU"', start="now")
        async def handle(message: Message[Any]) -> None: ...

    await mp.run_until_idle()


def _fill(log: Log) -> None:
    with psycopg.connect(log.url, autocommit=True) as connection:
        names = {"schema": sql.Identifier(log.schema), "of_each": sql.Literal(OF_EACH)}
        connection.execute(sql.SQL(_ROWS).format(**names), {})
        connection.execute(sql.SQL("vacuum analyze {}").format(log.name("deliveries")))


async def _seconds(log: Log, ask: Ask) -> float:
    """Of one call, once the connections are there."""
    async with Milepost(log.url, schema=log.schema) as mp:
        await ask(mp, stream_name(0))
        begun = perf_counter()
        for number in range(REPEATED):
            await ask(mp, stream_name(number % log.streams))
        return (perf_counter() - begun) / REPEATED


async def _trace(mp: Milepost, stream: str) -> None:
    traced = await mp.trace(stream, limit=TRACED)
    states = {each.state for each in traced}
    if len(traced) != TRACED * SUBSCRIPTIONS or not states >= {"parked", "waiting"}:
        raise RuntimeError(f"the trace has overlooked something: {sorted(states)}")


async def _trace_id(mp: Milepost, stream: str) -> None:
    async for message in mp.read(stream, backwards=True, limit=1):
        if len(await mp.trace(message.id)) != SUBSCRIPTIONS:
            raise RuntimeError("the message was not found")


async def _progress(mp: Milepost, stream: str) -> None:
    if not (await mp.manage("s3").progress(stream)).lagging:
        raise RuntimeError("what is parked was overlooked")
