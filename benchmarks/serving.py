"""What `milepost serve` does for programs without a database connection, in processes of their own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from benchmarks import brokers
from benchmarks.bench import Bench
from benchmarks.comparing import Broker, Contender, Trials, make_environment
from benchmarks.consumers import ack, arriving, consumer, counting, counting_in_the_library, hear
from benchmarks.contest import Scores, Turn, contest
from benchmarks.counting import rate_of
from benchmarks.crew import Crew
from benchmarks.following import Arrivals, take_turns, taken
from benchmarks.http_writers import HttpBatchWriter, HttpWriter
from benchmarks.logs import Log, fresh_log
from benchmarks.messages import BATCH, STREAMS, TYPE
from benchmarks.nodes import Node, nodes
from benchmarks.processes import PATIENCE, Processes
from benchmarks.results import Result
from benchmarks.team import bring
from benchmarks.writers import MilepostBatchWriter, MilepostWriter, Writer
from milepost import Milepost, NewMessage
from milepost.concurrency import cancel_and_wait

CLIENTS = (1, 10)
HTTP_WRITERS = 8
LEASE = 5
"""Seconds, where a server is killed: within that time another takes over."""
PACE = 0.02
"""Seconds between two appends while a server ends."""
OVER_HTTP = "milepost, over HTTP"
IN_THE_LIBRARY = "milepost, in the library"
"""The same without a server between: what that costs."""
NATS = {
    1: Broker(Contender("nats_clients", 50_000), brokers.nats),
    10: Broker(Contender("nats_ten_clients", 50_000), brokers.nats),
}
"""By the number of clients: JetStream, whose streams are files. Here it has as many messages as Milepost."""


def measure(bench: Bench) -> list[Result]:
    """Deliveries and latency beside the library's own and NATS; appends; memory; how long an end is felt."""
    with bench.steps("serve: an environment for NATS", 1):
        make_environment()
    trials = Trials(bench.url)
    with fresh_log(bench.url, "serve") as log:
        return [
            *_deliveries(bench, log, trials),
            *_latency(bench, log, trials),
            *_appends(bench, log),
            *_memory(bench, log),
            *_ends(bench, log),
        ]


def _subscribe(log: Log, **options: Any) -> None:
    """The subscription `bench`, anew and at the head of the log."""

    async def create() -> None:
        async with Milepost(log.url, schema=log.schema) as mp:
            if any(info.name == "bench" for info in await mp.subscriptions()):
                await mp.manage("bench").delete()
            await mp.create_subscription("bench", start="now", **options)

    asyncio.run(create())


# Deliveries


def _deliveries(bench: Bench, log: Log, trials: Trials) -> list[Result]:
    versions = bench.sizes.serve_versions
    turns: dict[str, Turn] = {IN_THE_LIBRARY: partial(_library_rate, log, versions)}
    for count in CLIENTS:
        turns[_to(count)] = partial(_remote_rate, log, count, versions)
        turns[_nats(count)] = partial(trials.drain_broker, _nats(count), NATS[count], STREAMS * versions)
    scores = contest(bench, "serve: deliveries", turns, bench.sizes.serve_rounds)
    return [
        result
        for count in CLIENTS
        for result in (
            scores.result(_to(count), "milepost", contender=_to(count), of=IN_THE_LIBRARY),
            scores.result(_to(count), IN_THE_LIBRARY),
            _beside(scores, trials, count),
        )
    ]


def _to(clients: int) -> str:
    return f"serve: deliveries to {clients} {'client' if clients == 1 else 'clients'}"


def _nats(clients: int) -> str:
    return f"nats, {clients}"


def _beside(scores: Scores, trials: Trials, clients: int) -> Result:
    """What NATS reached, and how much of Milepost's that is."""
    work, nats = _to(clients), _nats(clients)
    result = scores.result(work, "nats", contender=nats, of=work, versions=trials.versions_of(nats))
    return replace(result, of="milepost")


def _remote_rate(log: Log, clients: int, versions: int) -> float:
    """Deliveries a second, each acked, from the first that any client has to the last."""
    _subscribe(log)
    with nodes(log) as [node], Processes(clients, counting, node.consume) as processes:
        return _brought(log, processes, versions)


def _library_rate(log: Log, versions: int) -> float:
    _subscribe(log)
    with Processes(1, counting_in_the_library, log) as processes:
        return _brought(log, processes, versions)


def _brought(log: Log, processes: Processes, versions: int) -> float:
    with psycopg.connect(log.url, autocommit=True) as connection:
        bring(connection, log, versions)
        return rate_of(processes, STREAMS * versions + 1)


# Latency


def _latency(bench: Bench, log: Log, trials: Trials) -> list[Result]:
    """From each append's return to its arrival at a client, with the server in between."""
    _subscribe(log)
    count, rounds = bench.sizes.follow_messages, bench.sizes.serve_rounds
    with nodes(log) as [node], Crew(1, {"milepost": MilepostWriter(log)}) as crew:
        turns = {
            "milepost": partial(taken, crew, "milepost", partial(arriving, node), count),
            IN_THE_LIBRARY: partial(_in_the_library, crew, log, count),
            _nats(1): partial(trials.live_broker, _nats(1), NATS[1], count),
        }
        medians, p99s = take_turns(bench, "serve: latency", turns, rounds)
    return [
        result
        for work, scores in (("median", medians), ("99th percentile", p99s))
        for result in _all_three(f"serve: latency, {work} at 200 a second", scores, trials)
    ]


def _in_the_library(crew: Crew, log: Log, count: int) -> list[float]:
    # It would stand by while the server has the subscription: it has one of its own.
    return taken(crew, "milepost", partial(_arriving_in_the_library, log), count)


@asynccontextmanager
async def _arriving_in_the_library(log: Log) -> AsyncIterator[Arrivals]:
    arrivals: Arrivals = {}

    async def note(mp: Milepost) -> None:
        async with mp.consumer("bench-library") as taking:
            async for delivery in taking:
                arrivals[delivery.position] = monotonic()
                await delivery.ack()

    async with Milepost(log.url, schema=log.schema) as mp:
        await mp.create_subscription("bench-library", start="now")
        task = asyncio.create_task(note(mp))
        try:
            yield arrivals
        finally:
            if task.done():
                task.result()
            await cancel_and_wait(task)


def _all_three(work: str, scores: Scores, trials: Trials) -> list[Result]:
    return [
        scores.result(work, "milepost", of=IN_THE_LIBRARY),
        scores.result(work, IN_THE_LIBRARY),
        # Without a ratio: its messages are often there before their publisher has its answer, which is 0.
        scores.result(work, "nats", contender=_nats(1), versions=trials.versions_of(_nats(1))),
    ]


# Appends


def _appends(bench: Bench, log: Log) -> list[Result]:
    with nodes(log) as [node]:
        port = urlsplit(node.address).port or 0
        return [
            *_appended(bench, HTTP_WRITERS, HttpWriter(log, port), MilepostWriter(log), "one by one"),
            *_appended(bench, 1, HttpBatchWriter(log, port), MilepostBatchWriter(log), f"batches of {BATCH}"),
        ]


def _appended(bench: Bench, count: int, http: Writer, library: Writer, what: str) -> list[Result]:
    work = f"serve: append, {what}, {count} {'writer' if count == 1 else 'writers'}"
    writers = {OVER_HTTP: http, IN_THE_LIBRARY: library}
    with Crew(count, writers) as crew:
        turns = {name: partial(crew.rate, name, bench.sizes.seconds) for name in writers}
        scores = contest(bench, work, turns, bench.sizes.rounds)
    return [scores.result(work, OVER_HTTP, of=IN_THE_LIBRARY), scores.result(work, IN_THE_LIBRARY)]


# Memory


def _memory(bench: Bench, log: Log) -> list[Result]:
    """Resident, before and with all of them connected."""
    _subscribe(log)
    count = bench.sizes.serve_consumers
    with bench.steps("serve: memory", 1) as step, nodes(log) as [node]:
        before, after = asyncio.run(_idle(node, count))
        step()
    work = f"serve: memory, {count:,} idle consumers"
    return [
        Result(work=work, subject="milepost", value=after, unit="MB"),
        Result(work=work, subject="milepost, one consumer", value=before, unit="MB"),
    ]


async def _idle(node: Node, count: int) -> tuple[float, float]:
    process = psutil.Process(node.process.pid)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(consumer(node.consume))
        before = process.memory_info().rss
        for _ in range(count - 1):
            await stack.enter_async_context(consumer(node.consume))
        return before / 2**20, process.memory_info().rss / 2**20


# The end of a server


def _ends(bench: Bench, log: Log) -> list[Result]:
    """From the signal to the next delivery, which another server makes."""
    scores = Scores(unit="s", fewer_is_better=True)
    works = {f"serve: killed, a lease of {LEASE} s": "kill", "serve: stopped": "terminate"}
    with bench.steps("serve: ends", len(works) * bench.sizes.serve_rounds) as step:
        for _ in range(bench.sizes.serve_rounds):
            for work, how in works.items():
                _subscribe(log, lease=LEASE)
                with nodes(log, 2) as servers:
                    scores.add(work, asyncio.run(_gap(log, servers, how)))
                step()
    return [scores.result(work, "milepost", contender=work) for work in works]


async def _gap(log: Log, servers: list[Node], how: str) -> float:
    loop = asyncio.get_running_loop()
    async with Milepost(log.url, schema=log.schema) as mp, asyncio.timeout(PATIENCE):
        appending = asyncio.create_task(_append(mp))
        try:
            async with consumer(servers[0].consume) as first:
                await ack(first, await hear(first))
                getattr(servers[0].process, how)()
                ended = loop.time()
                while True:
                    try:
                        await ack(first, await hear(first))
                    except WebSocketException:
                        break
            await _next_delivery(servers[1])
            return loop.time() - ended
        finally:
            appending.cancel()


async def _append(mp: Milepost) -> None:
    while True:
        await mp.append("c1-1", NewMessage(TYPE, {}))
        await asyncio.sleep(PACE)


async def _next_delivery(node: Node) -> None:
    """At another server, which says for a while that it is elsewhere."""
    lost: list[str] = []
    while True:
        async with connect(node.consume, proxy=None, compression=None) as connection:
            await connection.send(json.dumps({"type": "hello", "avoid": lost}))
            while True:
                frame = await hear(connection)
                if frame.type == "deliveries":
                    return
                if frame.type == "end":
                    lost += [frame.to] if frame.to else []
                    break
