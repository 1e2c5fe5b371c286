"""Redis Streams: a consumer group, read in batches, acknowledged with one call a batch."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import msgspec
import redis

from benchmarks.messages import data
from benchmarks.peers.trial import Arrivals, Peer, Write, run

BATCH = 100
FILL = 1_000


class RedisPeer(Peer):
    """One consumer of a group."""

    package = "redis"

    def prepare(self) -> None:
        """A stream and its group."""
        with self._connected() as connection:
            connection.xgroup_create("bench", "drain", id="0", mkstream=True)

    def fill(self, count: int) -> None:
        """A thousand a pipeline."""
        with self._connected() as connection:
            for begin in range(0, count, FILL):
                pipeline = connection.pipeline(transaction=False)
                for number in range(begin, min(begin + FILL, count)):
                    pipeline.xadd("bench", {"data": msgspec.json.encode(data(number))})
                pipeline.execute()

    def work(self, arrivals: Arrivals) -> None:
        """Reads and acknowledges until all have come."""
        with self._connected() as connection:
            while not arrivals.complete.is_set():
                batch = list(self._batch(connection))
                for identity in batch:
                    arrivals.note(identity)
                connection.xack("bench", "drain", *(f"{one >> 20}-{one & 0xFFFFF}" for one in batch))

    def _batch(self, connection: "redis.Redis[bytes]") -> Iterator[int]:
        answer = connection.xreadgroup("drain", "one", {"bench": ">"}, count=BATCH, block=30_000)
        for _, entries in answer or ():
            for identity, _ in entries:
                time, _, number = identity.decode().partition("-")
                yield int(time) << 20 | int(number)

    def writing(self) -> AbstractContextManager[Write]:
        """Latency is not asked of it here."""
        raise NotImplementedError

    def _connected(self) -> "redis.Redis[bytes]":
        return redis.Redis.from_url(self.url)


if __name__ == "__main__":
    run(RedisPeer)
