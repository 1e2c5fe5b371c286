"""Consumers over a WebSocket, as plain as can be: what is measured is the server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.counting import Counter
from benchmarks.following import Arrivals
from benchmarks.logs import Log
from benchmarks.nodes import Node
from milepost import Milepost
from milepost.concurrency import cancel_and_wait


class _Message(msgspec.Struct, frozen=True):
    position: int


class _Delivery(msgspec.Struct):
    id: int
    message: _Message = _Message(0)
    """Not there in a `lost`."""


class Frame(msgspec.Struct):
    """What of a frame counts here."""

    type: str
    deliveries: list[_Delivery] = []
    to: str | None = None

    @property
    def arrived(self) -> list[_Delivery]:
        """What a frame brings; what is lost comes again in another."""
        return self.deliveries if self.type == "deliveries" else []


_decoder = msgspec.json.Decoder(Frame)
_encoder = msgspec.json.Encoder()


@asynccontextmanager
async def consumer(url: str, **hello: Any) -> AsyncIterator[ClientConnection]:
    """A consumer that is welcome."""
    async with connect(url, proxy=None, compression=None, max_size=None) as connection:
        await connection.send(_encoder.encode({"type": "hello", **hello}), text=True)
        welcome = await hear(connection)
        if welcome.type != "welcome":
            raise RuntimeError(f"the server says {welcome}")
        yield connection


async def hear(connection: ClientConnection) -> Frame:
    """The next frame."""
    return _decoder.decode(await connection.recv(decode=False))


async def ack(connection: ClientConnection, frame: Frame) -> None:
    """All of a frame are done."""
    settle = {"type": "settle", "ack": [each.id for each in frame.arrived]}
    await connection.send(_encoder.encode(settle), text=True)


# In other processes, to count


async def counting(pipe: Connection, number: int, url: str) -> None:
    """A consumer that acks everything and tells how far it is."""
    counter = Counter()
    async with consumer(url) as connection:
        taking = asyncio.create_task(_count(connection, counter))
        pipe.send("ready")
        while await asyncio.to_thread(pipe.recv) is not None:
            pipe.send(counter)
        await cancel_and_wait(taking)


async def _count(connection: ClientConnection, counter: Counter) -> None:
    while True:
        frame = await hear(connection)
        for _ in frame.arrived:
            counter.note()
        await ack(connection, frame)


async def counting_in_the_library(pipe: Connection, number: int, log: Log) -> None:
    """The same without a server: `mp.consumer`."""
    counter = Counter()

    async def take(mp: Milepost) -> None:
        async with mp.consumer("bench") as taking:
            pipe.send("ready")
            async for batch in taking.batches(256):
                for _ in batch:
                    counter.note()
                await taking.settle(ack=batch)

    async with Milepost(log.url, schema=log.schema) as mp:
        task = asyncio.create_task(take(mp))
        while await asyncio.to_thread(pipe.recv) is not None:
            pipe.send(counter)
        await cancel_and_wait(task)


# In this process, to take the time


@asynccontextmanager
async def arriving(node: Node) -> AsyncIterator[Arrivals]:
    """A consumer that notes when each message arrives, and acks it."""
    arrivals: Arrivals = {}

    async def note(connection: ClientConnection) -> None:
        while True:
            frame = await hear(connection)
            now = monotonic()
            arrivals.update((each.message.position, now) for each in frame.arrived)
            await ack(connection, frame)

    async with consumer(node.consume) as connection:
        task = asyncio.create_task(note(connection))
        try:
            yield arrivals
        finally:
            if task.done():
                # It says why nothing arrives any more.
                task.result()
            await cancel_and_wait(task)
