"""Processes that hold writers open and write when told, all at once."""

import asyncio
import multiprocessing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import monotonic
from types import TracebackType
from typing import Any, Self

from benchmarks.writers import Writer

WARM_UP = 0.2
"""Seconds of writing before each turn: plans are made, caches filled."""
PATIENCE = 60.0
"""Seconds beyond what was asked for after which a process counts as lost."""


@dataclass(frozen=True)
class FlatOut:
    """Write as fast as possible for so long."""

    writer: str
    seconds: float
    start: float


@dataclass(frozen=True)
class Paced:
    """Write so many transactions, so many a second."""

    writer: str
    count: int
    per_second: float


class Crew:
    """Several processes with the same writers."""

    def __init__(self, size: int, writers: Mapping[str, Writer]) -> None:
        self._writers = dict(writers)
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(size)]
        self._pipes = [ours for ours, _ in pipes]
        self._their_ends = [theirs for _, theirs in pipes]
        self._processes = [
            context.Process(target=_work, args=(theirs, seed, self._writers), daemon=True)
            for seed, theirs in enumerate(self._their_ends)
        ]

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        # With the other end open here too, a process that dies would not be noticed.
        for pipe in self._their_ends:
            pipe.close()
        for pipe in self._pipes:
            self._receive(pipe, PATIENCE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()

    def rate(self, writer: str, seconds: float) -> float:
        """Messages a second of all processes together."""
        start = monotonic() + WARM_UP + 0.1
        self._send(FlatOut(writer, seconds, start))
        counts = [self._receive(pipe, seconds + PATIENCE) for pipe in self._pipes]
        transactions: float = sum(count / (ended - start) for count, ended in counts)
        return transactions * self._writers[writer].messages

    def paced(self, writer: str, count: int, per_second: float) -> dict[int, float]:
        """When each position was known to its writer, by the clock that all processes share."""
        self._send(Paced(writer, count, per_second))
        known: dict[int, float] = {}
        for pipe in self._pipes:
            known |= self._receive(pipe, count / per_second + PATIENCE)
        return known

    def _send(self, order: FlatOut | Paced) -> None:
        for pipe in self._pipes:
            pipe.send(order)

    def _receive(self, pipe: Connection, timeout: float) -> Any:
        if not pipe.poll(timeout):
            raise TimeoutError(f"a writing process said nothing for {timeout:.0f} s")
        try:
            answer = pipe.recv()
        except EOFError:
            raise RuntimeError("a writing process ended before its time") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _work(pipe: Connection, seed: int, writers: dict[str, Writer]) -> None:
    with suppress(KeyboardInterrupt, EOFError):
        asyncio.run(_obey(pipe, seed, writers))


async def _obey(pipe: Connection, seed: int, writers: dict[str, Writer]) -> None:
    try:
        for writer in writers.values():
            await writer.open(seed)
        pipe.send("ready")
        # Nothing else runs in this process between two orders: the wait may block its loop.
        while (order := pipe.recv()) is not None:
            writer = writers[order.writer]
            pipe.send(await (_flat_out(writer, order) if isinstance(order, FlatOut) else _paced(writer, order)))
        for writer in writers.values():
            await writer.close()
    except Exception as error:
        pipe.send(RuntimeError(f"a writing process failed: {error!r}"))


async def _flat_out(writer: Writer, order: FlatOut) -> tuple[int, float]:
    while monotonic() < order.start - 0.1:
        await writer.write()
    await asyncio.sleep(max(0.0, order.start - monotonic()))
    count, end = 0, order.start + order.seconds
    while monotonic() < end:
        await writer.write()
        count += 1
    return count, monotonic()


async def _paced(writer: Writer, order: Paced) -> dict[int, float]:
    known: dict[int, float] = {}
    start = monotonic()
    for number in range(order.count):
        await asyncio.sleep(max(0.0, start + number / order.per_second - monotonic()))
        position = await writer.write()
        known[position] = monotonic()
    return known
