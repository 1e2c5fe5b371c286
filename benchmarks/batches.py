"""Appending a hundred messages a transaction, beside a raw COPY."""

from functools import partial

from benchmarks.bench import Bench
from benchmarks.contest import contest
from benchmarks.crew import Crew
from benchmarks.logs import fresh_log
from benchmarks.results import Result
from benchmarks.writers import (
    MilepostBatchWriter,
    MilepostManyWriter,
    RawAsyncCopyManyWriter,
    RawAsyncCopyWriter,
    RawCopyManyWriter,
    RawCopyWriter,
    Writer,
)

GOAL = 0.95
"""Of a raw COPY through the same kind of connection."""


def measure(bench: Bench) -> list[Result]:
    """To one stream, and to a hundred."""
    with fresh_log(bench.url, "batch") as log:
        log.raw_table("raw")
        one: dict[str, Writer] = {
            "milepost": MilepostBatchWriter(log),
            "raw async": RawAsyncCopyWriter(log, "raw"),
            "limit": RawCopyWriter(log, "raw"),
        }
        many: dict[str, Writer] = {
            "milepost": MilepostManyWriter(log),
            "raw async": RawAsyncCopyManyWriter(log, "raw"),
            "limit": RawCopyManyWriter(log, "raw"),
        }
        return [
            *_contested(bench, "append-batch: 100 messages to one stream", one),
            *_contested(bench, "append-batch: 100 messages to 100 streams", many),
        ]


def _contested(bench: Bench, work: str, writers: dict[str, Writer]) -> list[Result]:
    with Crew(1, writers) as crew:
        turns = {name: partial(crew.rate, name, bench.sizes.seconds) for name in writers}
        scores = contest(bench, work, turns, bench.sizes.rounds)
    return [
        scores.result(work, "milepost", of="raw async", at_least=GOAL),
        scores.result(work, "raw async", of="limit"),
        scores.result(work, "limit"),
    ]
