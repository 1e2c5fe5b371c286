"""Appending one message a transaction, beside a raw INSERT."""

from functools import partial

from benchmarks.bench import Bench
from benchmarks.contest import contest
from benchmarks.crew import Crew
from benchmarks.logs import Log, fresh_log
from benchmarks.results import Result
from benchmarks.writers import FunctionWriter, MilepostWriter, RawAsyncWriter, RawWriter, Writer

WRITERS = (1, 8)
GOAL = 0.9
"""Of a raw INSERT through the same kind of connection."""


def measure(bench: Bench) -> list[Result]:
    """With one writer and with eight, each a process of its own."""
    with fresh_log(bench.url, "append") as log:
        log.raw_table("raw")
        return [result for writers in WRITERS for result in _with(bench, log, writers)]


def _with(bench: Bench, log: Log, count: int) -> list[Result]:
    writers: dict[str, Writer] = {
        "milepost": MilepostWriter(log),
        "raw async": RawAsyncWriter(log, "raw"),
        "milepost (SQL function)": FunctionWriter(log),
        "limit": RawWriter(log, "raw"),
    }
    work = f"append: {count} {'writer' if count == 1 else 'writers'}"
    with Crew(count, writers) as crew:
        turns = {name: partial(crew.rate, name, bench.sizes.seconds) for name in writers}
        scores = contest(bench, work, turns, bench.sizes.rounds)
    return [
        scores.result(work, "milepost", of="raw async", at_least=GOAL),
        scores.result(work, "raw async", of="limit"),
        scores.result(work, "milepost (SQL function)", of="limit"),
        scores.result(work, "limit"),
    ]
