"""procrastinate: asynchronous tasks, several at once, finished jobs deleted, jobs deferred in batches.

No locks are used, so there is no order per key; with one for each stream it would have one.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from procrastinate import App, PsycopgConnector
from procrastinate.job_context import JobContext

from benchmarks.messages import data
from benchmarks.peers.trial import Arrivals, Peer, Write, run

CONCURRENCY = 10
"""Jobs at once. Its default is 1; up to 20 made no difference that could be told from noise."""
FILL = 1_000


class ProcrastinatePeer(Peer):
    """One worker that is told of new jobs by LISTEN."""

    package = "procrastinate"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._app = App(connector=PsycopgConnector(conninfo=url, min_size=CONCURRENCY, max_size=CONCURRENCY))
        self._arrivals = Arrivals(0)
        self._task = self._app.task(name="handle", pass_context=True)(self._handle)

    async def _handle(self, context: JobContext, **message: Any) -> None:
        self._arrivals.note(context.job.id)

    def prepare(self) -> None:
        """`procrastinate schema --apply`."""
        asyncio.run(self._prepare())

    async def _prepare(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    def fill(self, count: int) -> None:
        """One call a thousand jobs."""
        asyncio.run(self._fill(count))

    async def _fill(self, count: int) -> None:
        async with self._app.open_async():
            for begin in range(0, count, FILL):
                await self._task.batch_defer_async(*map(data, range(begin, min(begin + FILL, count))))

    def work(self, arrivals: Arrivals) -> None:
        """Runs until the last job, then stops in good order."""
        asyncio.run(self._work(arrivals))

    async def _work(self, arrivals: Arrivals) -> None:
        self._arrivals, over = arrivals, asyncio.Event()
        arrivals.on_complete = over.set
        async with self._app.open_async():
            worker = asyncio.create_task(
                self._app.run_worker_async(
                    concurrency=CONCURRENCY, delete_jobs="always", install_signal_handlers=False
                )
            )
            await over.wait()
            worker.cancel()
            await asyncio.wait([worker])

    async def _open(self) -> None:
        await self._app.open_async()

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """One call a job."""
        with asyncio.Runner() as runner:
            runner.run(self._open())

            def write(number: int) -> int:
                job: int = runner.run(self._task.defer_async(**data(number)))
                return job

            yield write
            runner.run(self._app.close_async())


if __name__ == "__main__":
    run(ProcrastinatePeer)
