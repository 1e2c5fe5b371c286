"""Runs the subscriptions of a program: until a signal, inside another program, or until nothing is left to do."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal, get_args

from milepost.engine.builder import Failed
from milepost.engine.calls import AnyDelivery
from milepost.engine.listeners import Listeners
from milepost.engine.place import Place
from milepost.engine.query import query_of
from milepost.engine.report import Tally
from milepost.engine.subscription import Subscription
from milepost.engine.supervisor import Supervisor, only_error
from milepost.engine.values import checked, one_of, optional, seconds
from milepost.engine.worker import Worker
from milepost.errors import MilepostError
from milepost.log.appender import Appender
from milepost.log.reader import Query
from milepost.log.since import Since

Errors = Literal["raise", "park"]


class Program:
    """What a Milepost runs: its subscriptions, on its log."""

    def __init__(self, place: Place, appender: Appender, *, concurrency: int, listeners: Listeners) -> None:
        self._place = place
        self._subscriptions = place.subscriptions
        self._appender = appender
        self._concurrency = concurrency
        self._listeners = listeners

    def supervisor(self, only: str | Collection[str] | None, grace: float) -> Supervisor:
        """Return what works inside another program, which goes on when a handler hangs."""
        return Supervisor(self._workers(only=only, grace=grace))

    @asynccontextmanager
    async def running(
        self,
        *,
        only: str | Collection[str] | None = None,
        grace: float,
        exits: bool = False,
        failed: Failed | None = None,
    ) -> AsyncIterator[Worker]:
        """Work from the beginning of the block to its end. A handler that hangs ends it: `Stuck`.

        With `exits` the process ends when a handler blocks its event loop for good.
        """
        worker = self._workers(only=only, grace=grace, exits=exits, failed=failed)()
        try:
            async with worker.running():
                yield worker
        except BaseExceptionGroup as errors:
            error = only_error(errors)
            raise error from error.__cause__

    def _workers(
        self,
        *,
        only: str | Collection[str] | None,
        grace: float,
        exits: bool = False,
        failed: Failed | None = None,
    ) -> Callable[[], Worker]:
        """Return a function that makes a worker of the chosen subscriptions; refuse what cannot run."""
        checked("grace", seconds(), grace)
        names = checked("only", optional(_names), only)
        self._subscriptions.check()
        chosen = list(self._subscriptions) if names is None else [self._subscriptions[name] for name in names]
        if not chosen:
            raise MilepostError("there are no subscriptions: declare one with @mp.subscription(…)")
        return lambda: Worker(
            self._place,
            self._appender,
            subscriptions=chosen,
            queries=_query,
            concurrency=self._concurrency,
            grace=grace,
            exits=exits,
            failed=failed,
            audience=self._listeners.audience(),
        )

    async def run_until_idle(self, errors: Errors, only: str | Collection[str] | None = None) -> dict[str, Tally]:
        """Works until nothing is left that can run; raises a handler's error, or parks its message."""
        checked("errors", one_of(*get_args(Errors)), errors)
        raised: list[BaseException] = []
        over = asyncio.Event()

        def failed(delivery: AnyDelivery, error: BaseException) -> bool:
            if errors == "raise":
                raised.append(error)
                over.set()
            return errors == "park"

        async with self.running(only=only, grace=5, failed=failed) as worker:
            await _first(worker.idle(), over.wait())
            report = {name: runner.report() for name, runner in worker.runners.items()}
        if raised:
            raise raised[0]
        return report

    async def run(self, grace: float, *, insist: bool = True) -> None:
        """Works until SIGINT or SIGTERM; the first lets what runs end, the second ends the process.

        Without `insist` the second says nothing new: where somebody watches over this process, and kills it when
        that is meant, the same request may come from several sides.
        """
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def on_signal(number: signal.Signals) -> None:
            if stop.is_set() and insist:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)
        try:
            async with self.running(grace=grace, exits=True):
                await stop.wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def _names(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Collection) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError("the name of a subscription or several are wanted (leave it out to run all)")
    return list(dict.fromkeys(names))


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


def _query(subscription: Subscription, since: Since | None) -> Query:
    return query_of(subscription.selection, subscription.declaration.where, since=since)
