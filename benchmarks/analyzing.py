"""What it costs that a log was analyzed while it was empty, as autovacuum does it in the first minute.

Both logs begin empty, and all connections are opened then: what they plan, they keep. Nobody analyzes them later.
Commits do not wait for the disk: what is compared is one log with another.
"""

import asyncio
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

from benchmarks.bench import Bench
from benchmarks.contest import contest
from benchmarks.crew import Crew
from benchmarks.logs import Log, empty_log
from benchmarks.messages import BATCH
from benchmarks.results import Result
from benchmarks.server import without_waiting
from benchmarks.writers import MilepostManyWriter, MilepostWriter, Writer
from milepost import Message, Milepost

GOAL = 0.9
"""Of the rate of a log that was not analyzed."""
ANALYZED, NOT_ANALYZED = "analyzed while it was empty", "not analyzed"


class Handling(MilepostManyWriter):
    """Appends a hundred messages to as many streams, and waits until a handler has had them."""

    async def _connect(self) -> None:
        self._mp = Milepost(self.log.url, schema=self.log.schema)
        self._stack = AsyncExitStack()
        self._left = 0
        self._all_handled = asyncio.Event()

        @self._mp.subscription("handling")
        async def handle(message: Message[Any]) -> None:
            self._left -= 1
            if not self._left:
                self._all_handled.set()

        await self._stack.enter_async_context(self._mp)
        await self._stack.enter_async_context(self._mp.running())

    async def write(self) -> int:
        """Append and wait; the position of the last message."""
        self._left = BATCH
        self._all_handled.clear()
        position = await super().write()
        await self._all_handled.wait()
        return position

    async def close(self) -> None:
        """End the worker, and then the pool."""
        await self._stack.aclose()


class Pulling(MilepostManyWriter):
    """Appends a hundred messages to as many streams, pulls them and settles them, in order per stream."""

    async def _connect(self) -> None:
        await super()._connect()
        await self._mp.create_subscription("pulling", tracking="all")

    async def write(self) -> int:
        """Append, pull and settle; the position of the last message."""
        position = await super().write()
        left = BATCH
        while left:
            tasks = await self._mp.pull("pulling", limit=BATCH)
            await self._mp.settle(ack=tasks)
            left -= len(tasks)
        return position


WORKS: dict[str, type[Writer]] = {
    "appending one": MilepostWriter,
    "appending a hundred to as many streams": MilepostManyWriter,
    "appending and handling a hundred": Handling,
    "appending, pulling and settling a hundred": Pulling,
}


def measure(bench: Bench) -> list[Result]:
    """Each work on logs of its own, so that they grow alike."""
    return [result for name, writer in WORKS.items() for result in _work(bench, name, writer)]


def _work(bench: Bench, name: str, writer: type[Writer]) -> list[Result]:
    url = without_waiting(bench.url)
    with ExitStack() as stack:
        logs: dict[str, Log] = {
            NOT_ANALYZED: stack.enter_context(empty_log(url, "plain", analyzed=False)),
            ANALYZED: stack.enter_context(empty_log(url, "analyzed", analyzed=True)),
        }
        writers = {condition: writer(log) for condition, log in logs.items()}
        crew = stack.enter_context(Crew(1, writers))
        turns = {condition: partial(crew.rate, condition, bench.sizes.seconds) for condition in writers}
        work = f"analyzed: {name}"
        scores = contest(bench, work, turns, bench.sizes.rounds)
    return [
        scores.result(work, ANALYZED, of=NOT_ANALYZED, at_least=GOAL),
        scores.result(work, NOT_ANALYZED),
    ]
