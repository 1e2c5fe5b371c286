"""pgqueuer: asyncpg and uvloop, the settings for autovacuum that it recommends, larger batches for short jobs.

It has no order per key, and no subscriptions: a job goes to one handler and is deleted.
"""

import asyncio
import json
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from psycopg.conninfo import conninfo_to_dict

from benchmarks.messages import data
from benchmarks.peers.trial import Arrivals, Peer, Write, run

BATCH = 1_000
"""Jobs a look at the queue. Its default is 10."""
FILL = 1_000


class PgqueuerPeer(Peer):
    """One worker on one connection, as its checklist says."""

    package = "pgqueuer"

    def prepare(self) -> None:
        """`pgq install` and `pgq autovac`."""
        uvloop.run(self._prepare())

    async def _prepare(self) -> None:
        connection = await self._connect()
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.optimize_autovacuum()
        await connection.close()

    def fill(self, count: int) -> None:
        """One call a thousand jobs."""
        uvloop.run(self._fill(count))

    async def _fill(self, count: int) -> None:
        connection = await self._connect()
        queries = Queries(AsyncpgDriver(connection))
        for begin in range(0, count, FILL):
            payloads = [_payload(number) for number in range(begin, min(begin + FILL, count))]
            await queries.enqueue(["handle"] * len(payloads), payloads, [0] * len(payloads))
        await connection.close()

    def work(self, arrivals: Arrivals) -> None:
        """Runs until the last job, then shuts down in good order."""
        uvloop.run(self._work(arrivals))

    async def _work(self, arrivals: Arrivals) -> None:
        connection = await self._connect()
        queue = PgQueuer(AsyncpgDriver(connection))

        def stop() -> None:
            queue.shutdown.set()

        arrivals.on_complete = stop

        @queue.entrypoint("handle")
        async def handle(job: Job) -> None:
            arrivals.note(job.id)

        await queue.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=30))
        await connection.close()

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """One call a job."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            connection = runner.run(self._connect())
            queries = Queries(AsyncpgDriver(connection))

            def write(number: int) -> int:
                enqueued: Coroutine[Any, Any, list[int]] = queries.enqueue("handle", _payload(number))
                return runner.run(enqueued)[0]

            yield write
            runner.run(connection.close())

    async def _connect(self) -> Any:
        given = conninfo_to_dict(self.url)
        names = {"host": "host", "port": "port", "user": "user", "password": "password", "dbname": "database"}
        return await asyncpg.connect(**{name: given[key] for key, name in names.items() if given.get(key)})


def _payload(number: int) -> bytes:
    return json.dumps(data(number)).encode()


if __name__ == "__main__":
    run(PgqueuerPeer)
