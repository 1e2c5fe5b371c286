"""Milepost, asked the same as its peers: a handler for one message a call, ordered by stream."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.messages import TYPE, data, properties, stream_name
from benchmarks.peers.trial import STREAMS, Arrivals, Peer, Write, run
from milepost import Message, Milepost, NewMessage

BATCH = 1_000


class MilepostPeer(Peer):
    """`@mp.subscription` and `mp.append`."""

    package = "milepost"

    def prepare(self) -> None:
        """The schema is made when it is opened."""
        with Milepost(self.url).sync:
            pass

    def fill(self, count: int) -> None:
        """One transaction a thousand messages."""
        with Milepost(self.url).sync as mp:
            for begin in range(0, count, BATCH):
                numbers = range(begin, min(begin + BATCH, count))
                mp.append_many({stream_name(number % STREAMS): _message(number) for number in numbers})

    def work(self, arrivals: Arrivals) -> None:
        """A worker with default settings."""
        asyncio.run(self._work(arrivals))

    async def _work(self, arrivals: Arrivals) -> None:
        mp, over = Milepost(self.url), asyncio.Event()
        arrivals.on_complete = over.set

        @mp.subscription("drain")
        async def handle(message: Message[Any]) -> None:
            arrivals.note(message.position)

        async with mp.running():
            await over.wait()

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """One append a message."""
        with Milepost(self.url).sync as mp:
            yield lambda number: mp.append(stream_name(number % STREAMS), _message(number)).position


def _message(number: int) -> NewMessage:
    return NewMessage(TYPE, data(number), properties=properties(number))


if __name__ == "__main__":
    run(MilepostPeer)
