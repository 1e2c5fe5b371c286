"""Consumers that take and settle: Milepost's own, brokers of Debian's, and queues on the same PostgreSQL."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from time import perf_counter
from uuid import uuid4

from benchmarks import brokers
from benchmarks.bench import Bench
from benchmarks.comparing import CONTENDERS, Broker, Contender, Trials, make_environment
from benchmarks.contest import Turn, contest
from benchmarks.draining import drain_log
from benchmarks.logs import Log
from benchmarks.results import Result
from milepost import Milepost
from milepost.engine.consumers.consumer import Consumer

WORK = "consumers: take and settle"
BATCH = 100
BROKERS = {
    "nats": Broker(Contender("nats", 50_000), brokers.nats),
    "nats, 10 consumers": Broker(Contender("nats_ten", 50_000), brokers.nats),
    "redis": Broker(Contender("redis_streams", 50_000), brokers.redis),
}
QUEUES = ("pgqueuer", "procrastinate")
"""On the same PostgreSQL; each as its documentation says that it is fast."""

Take = Callable[[Consumer, "Counter"], Awaitable[None]]


class Counter:
    """Counts what was settled, and tells when that is all."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self.over = asyncio.Event()

    def count(self, settled: int) -> None:
        """So many more."""
        self._left -= settled
        if self._left <= 0:
            self.over.set()


async def one_by_one(consumer: Consumer, counter: Counter) -> None:
    """Acknowledges each by itself."""
    async for delivery in consumer:
        await delivery.ack()
        counter.count(1)


async def in_batches(consumer: Consumer, counter: Counter) -> None:
    """Acknowledges all of a batch at once."""
    async for batch in consumer.batches(BATCH):
        await consumer.settle(ack=batch)
        counter.count(len(batch))


WAYS: dict[str, tuple[int, Take]] = {
    "milepost, acks one by one": (1, one_by_one),
    "milepost, batches": (1, in_batches),
    "milepost, 10 consumers, acks one by one": (10, one_by_one),
    "milepost, 10 consumers, batches": (10, in_batches),
}


def measure(bench: Bench) -> list[Result]:
    """Every way of Milepost's, and the others at the same work."""
    with bench.steps("consumers: an environment for the others", 1):
        make_environment()
    trials = Trials(bench.url)
    with ExitStack() as stack:
        log = stack.enter_context(drain_log(bench, bench.url, "consumers"))
        turns: dict[str, Turn] = {
            name: partial(_rate, log, bench.sizes.drain_messages, *way) for name, way in WAYS.items()
        }
        for name, broker in BROKERS.items():
            messages = int(broker.contender.messages * bench.sizes.peer_share)
            turns[name] = partial(trials.drain_broker, name, broker, messages)
        for name in QUEUES:
            turns[name] = partial(trials.drain, name, int(CONTENDERS[name].messages * bench.sizes.peer_share))
        scores = contest(bench, WORK, turns, bench.sizes.peer_rounds)
    return [
        scores.result(WORK, "milepost, acks one by one", of="nats"),
        scores.result(WORK, "milepost, batches", of="nats", at_least=1.0),
        scores.result(WORK, "milepost, 10 consumers, acks one by one", of="nats, 10 consumers"),
        scores.result(WORK, "milepost, 10 consumers, batches", of="nats, 10 consumers", at_least=1.0),
        *(
            scores.result(WORK, name, of="milepost, batches", versions=trials.versions_of(name))
            for name in (*BROKERS, *QUEUES)
        ),
    ]


def _rate(log: Log, messages: int, consumers: int, take: Take) -> float:
    gc.collect()
    return asyncio.run(_taken(log, messages, consumers, take))


async def _taken(log: Log, messages: int, consumers: int, take: Take) -> float:
    """Messages a second, from the first consumer until all are settled and that is written."""
    async with Milepost(log.url, schema=log.schema, group=uuid4().hex) as mp:
        await mp.create_subscription("drain", ordered_by=None)
        counter = Counter(messages)
        start = perf_counter()
        async with AsyncExitStack() as stack:
            for _ in range(consumers):
                consumer = await stack.enter_async_context(mp.consumer("drain"))
                task = asyncio.ensure_future(take(consumer, counter))
                stack.push_async_callback(_end, task)
            await counter.over.wait()
        seconds = perf_counter() - start
        left = (await mp.manage("drain").info()).lag.positions
        if left:
            raise RuntimeError(f"{left:,} messages were not settled")
        return messages / seconds


async def _end(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
