"""NATS JetStream: a stream in files, a durable pull consumer, explicit acknowledgements, fetched in batches.

A message is acknowledged without waiting for the answer, as is usual; at the end all have gone out.
"""

import asyncio
from contextlib import AbstractContextManager

import msgspec
import nats
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, StorageType

from benchmarks.messages import data
from benchmarks.peers.trial import Arrivals, Peer, Write, run

BATCH = 100
"""Messages a fetch."""
AT_ONCE = 256
"""Publications that wait for their answers."""


class NatsPeer(Peer):
    """One client with one consumer."""

    package = "nats-py"
    consumers = 1

    def prepare(self) -> None:
        """A stream, and a durable consumer."""
        asyncio.run(self._prepare())

    async def _prepare(self) -> None:
        async with await self._connect() as client:
            stream = client.jetstream()
            await stream.add_stream(name="bench", subjects=["bench"], storage=StorageType.FILE)
            config = ConsumerConfig(durable_name="drain", ack_policy="explicit", max_ack_pending=10 * BATCH)
            await stream.add_consumer("bench", config)

    def fill(self, count: int) -> None:
        """Publishes, some hundred at once."""
        asyncio.run(self._fill(count))

    async def _fill(self, count: int) -> None:
        async with await self._connect() as client:
            stream = client.jetstream()
            for begin in range(0, count, AT_ONCE):
                numbers = range(begin, min(begin + AT_ONCE, count))
                await asyncio.gather(*(stream.publish("bench", msgspec.json.encode(data(n))) for n in numbers))

    def work(self, arrivals: Arrivals) -> None:
        """Fetches and acknowledges until all have come."""
        asyncio.run(self._work(arrivals))

    async def _work(self, arrivals: Arrivals) -> None:
        over = asyncio.Event()
        arrivals.on_complete = over.set
        async with await self._connect() as client:
            tasks = [asyncio.create_task(self._take(client, arrivals)) for _ in range(self.consumers)]
            await over.wait()
            for task in tasks:
                task.cancel()
            await client.flush()

    async def _take(self, client: Client, arrivals: Arrivals) -> None:
        subscription = await client.jetstream().pull_subscribe_bind("drain", "bench")
        while True:
            for message in await subscription.fetch(BATCH, timeout=30):
                arrivals.note(message.metadata.sequence.stream)
                await message.ack()

    def writing(self) -> AbstractContextManager[Write]:
        """Latency is not asked of it here."""
        raise NotImplementedError

    async def _connect(self) -> Client:
        return await nats.connect(self.url)


if __name__ == "__main__":
    run(NatsPeer)
