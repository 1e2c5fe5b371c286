"""Processes that hold writers open and write when told, all at once."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import monotonic
from typing import Self

from benchmarks.processes import PATIENCE, Processes
from benchmarks.writers import Writer

WARM_UP = 0.2
"""Seconds of writing before each turn: plans are made, caches filled."""


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
        self._processes = Processes(size, _work, self._writers)

    def __enter__(self) -> Self:
        self._processes.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._processes.__exit__(*error)

    def rate(self, writer: str, seconds: float) -> float:
        """Messages a second of all processes together."""
        start = monotonic() + WARM_UP + 0.1
        self._processes.send(FlatOut(writer, seconds, start))
        counts = self._processes.receive(seconds + PATIENCE)
        transactions: float = sum(count / (ended - start) for count, ended in counts)
        return transactions * self._writers[writer].messages

    def paced(self, writer: str, count: int, per_second: float) -> dict[int, float]:
        """When each position was known to its writer, by the clock that all processes share."""
        self._processes.send(Paced(writer, count, per_second))
        known: dict[int, float] = {}
        for of_one in self._processes.receive(count / per_second + PATIENCE):
            known |= of_one
        return known


async def _work(pipe: Connection, seed: int, writers: dict[str, Writer]) -> None:
    for writer in writers.values():
        await writer.open(seed)
    pipe.send("ready")
    # Nothing else runs in this process between two orders: the wait may block its loop.
    while (order := pipe.recv()) is not None:
        writer = writers[order.writer]
        pipe.send(await (_flat_out(writer, order) if isinstance(order, FlatOut) else _paced(writer, order)))
    for writer in writers.values():
        await writer.close()


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
