"""NATS JetStream as a server of clients in other processes, which share a durable consumer and acknowledge.

A backlog is fetched in batches, as in the other trials. Live messages are pushed: that is the faster way for them.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.counting import Counter, rate_of
from benchmarks.messages import data
from benchmarks.peers.nats import BATCH, NatsPeer
from benchmarks.peers.trial import Arrivals, Write, run
from benchmarks.processes import Processes


class NatsClientsPeer(NatsPeer):
    """One client."""

    clients = 1

    def drained(self, count: int) -> float:
        """Messages a second, from the first that any client has to the last."""
        self.prepare()
        self.fill(count)
        with Processes(self.clients, counting, self.url) as processes:
            return rate_of(processes, count)

    async def _work(self, arrivals: Arrivals) -> None:
        over = asyncio.Event()
        arrivals.on_complete = over.set

        async def note(message: Msg) -> None:
            arrivals.note(message.metadata.sequence.stream)
            await message.ack()

        async with await self._connect() as client:
            await client.jetstream().subscribe("bench", durable="live", cb=note, manual_ack=True)
            await over.wait()
            await client.flush()

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """Publishes, and waits for the answer."""
        with asyncio.Runner() as runner:
            client = runner.run(self._connect())
            stream = client.jetstream()
            yield lambda number: runner.run(stream.publish("bench", msgspec.json.encode(data(number)))).seq
            runner.run(client.close())


async def counting(pipe: Connection, number: int, url: str) -> None:
    """A client that acknowledges everything and tells how far it is."""
    counter = Counter()
    async with await nats.connect(url) as client:
        pipe.send("ready")
        taking: asyncio.Task[None] | None = None
        while await asyncio.to_thread(pipe.recv) is not None:
            # All begin with the first question, so that nobody is ahead of those that still start.
            taking = taking or asyncio.create_task(_take(client, counter))
            pipe.send(counter)
        if taking is not None:
            taking.cancel()


async def _take(client: Client, counter: Counter) -> None:
    subscription = await client.jetstream().pull_subscribe_bind("drain", "bench")
    while True:
        for message in await subscription.fetch(BATCH, timeout=30):
            counter.note()
            await message.ack()


if __name__ == "__main__":
    run(NatsClientsPeer)
