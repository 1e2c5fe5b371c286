"""Runs the subscriptions of a program: until a signal, inside another program, or until nothing is left to do."""

import asyncio
import signal
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal

from milepost.engine.calls import AnyDelivery
from milepost.engine.heart import Beat, Heart
from milepost.engine.query import query_of
from milepost.engine.report import Tally
from milepost.engine.subscription import Subscription, Subscriptions
from milepost.engine.worker import Failed, Worker
from milepost.log.appender import Appender
from milepost.log.database import Database
from milepost.log.log import Log
from milepost.log.reader import Query, Reader
from milepost.progress.leases import PostgresLeases
from milepost.progress.postgresql import PostgresProgress

Errors = Literal["raise", "park"]


class Program:
    """What a Milepost runs: its subscriptions, on its log."""

    def __init__(
        self,
        log: Log,
        reader: Reader,
        appender: Appender,
        subscriptions: Subscriptions,
        *,
        url: str,
        group: str,
        concurrency: int,
    ) -> None:
        self._log = log
        self._reader = reader
        self._appender = appender
        self._subscriptions = subscriptions
        self._url = url
        self._group = group
        self._concurrency = concurrency

    @asynccontextmanager
    async def running(
        self, *, only: Collection[str] | None = None, grace: float, failed: Failed | None = None
    ) -> AsyncIterator[Worker]:
        """Works from the beginning of the block to its end."""
        self._subscriptions.check()
        chosen = [self._subscriptions[name] for name in only] if only else list(self._subscriptions)
        schema = self._log.statements.schema
        worker = Worker(
            self._log,
            self._reader,
            self._appender,
            subscriptions=chosen,
            queries=_query,
            progress=PostgresProgress(self._log.database, schema),
            leases=PostgresLeases(self._log.database, schema),
            heart=self._heart,
            group=self._group,
            concurrency=self._concurrency,
            failed=failed,
        )
        async with worker.running(grace):
            yield worker

    async def run_until_idle(self, errors: Errors, only: Collection[str] | None = None) -> dict[str, Tally]:
        """Works until nothing is left that can run; raises a handler's error, or parks its message."""
        raised: list[BaseException] = []
        over = asyncio.Event()

        def failed(delivery: AnyDelivery, error: BaseException) -> bool:
            if errors == "raise":
                raised.append(error)
                over.set()
            return errors == "park"

        async with self.running(only=only, grace=5, failed=failed) as worker:
            await _first(worker.idle(), over.wait())
            report = {name: runner.tally for name, runner in worker.runners.items()}
        if raised:
            raise raised[0]
        return report

    async def run(self, grace: float) -> None:
        """Works until SIGINT or SIGTERM; the first lets what runs end, the second ends the process."""
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def on_signal(number: signal.Signals) -> None:
            if stop.is_set():
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)
        try:
            async with self.running(grace=grace):
                await stop.wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _heart(self, worker: str, lease: float) -> Heart:
        @asynccontextmanager
        async def beating() -> AsyncIterator[Beat]:
            database = Database(self._url, pool_size=1)
            await database.open()
            try:
                leases = PostgresLeases(database, self._log.statements.schema)
                await leases.open(worker, self._group, lease)
                yield leases.beat
            finally:
                await database.close()

        return Heart(beating, lease / 3)


async def _first(*works: Coroutine[Any, Any, Any]) -> None:
    """Waits for the first of these, and raises what it raises."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()


def _query(subscription: Subscription) -> Query:
    return query_of(subscription.selection, subscription.declaration.where)
