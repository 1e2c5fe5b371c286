"""How long a message takes from its append, which has returned, to a handler in another process."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import Any

from benchmarks.bench import Bench
from benchmarks.crew import Crew
from benchmarks.following import Arrivals, raw_follower, take_turns, taken
from benchmarks.handlers import program
from benchmarks.logs import Log, fresh_log
from benchmarks.results import Result
from benchmarks.writers import MilepostWriter, RawNotifyingWriter, Writer
from milepost import Message, Milepost, Transaction

MEDIAN = "latency: median at 200 a second"
P99 = "latency: 99th percentile at 200 a second"
MEDIAN_GOAL = 1.0
P99_GOAL = 5.0
"""Milliseconds."""
PLAIN = "milepost, plain def"
ONCE = "milepost, exactly once"

Declare = Callable[[Milepost, Arrivals], None]
"""Gives a program a handler that notes when each message arrives."""


def measure(bench: Bench) -> list[Result]:
    """Handlers of three kinds, beside a raw LISTEN whose every append notifies."""
    with fresh_log(bench.url, "latency") as log:
        log.raw_table("raw")
        writers: dict[str, Writer] = {
            "milepost": MilepostWriter(log),
            "raw": RawNotifyingWriter(log, "raw"),
        }
        count = bench.sizes.follow_messages
        with Crew(1, writers) as crew:
            turns = {
                subject: partial(taken, crew, "milepost", partial(_handling, log, declare), count)
                for subject, declare in HANDLERS.items()
            }
            limit = partial(taken, crew, "raw", partial(raw_follower, log), count)
            medians, p99s = take_turns(bench, "latency", turns | {"limit": limit}, bench.sizes.follow_rounds)
    return [
        medians.result(MEDIAN, "milepost", of="limit", below=MEDIAN_GOAL),
        *(medians.result(MEDIAN, subject) for subject in (PLAIN, ONCE, "limit")),
        p99s.result(P99, "milepost", of="limit", below=P99_GOAL),
        *(p99s.result(P99, subject) for subject in (PLAIN, ONCE, "limit")),
    ]


@asynccontextmanager
async def _handling(log: Log, declare: Declare) -> AsyncIterator[Arrivals]:
    arrivals: Arrivals = {}
    async with program(log, lambda mp: declare(mp, arrivals)).running():
        yield arrivals


def _one_a_call(mp: Milepost, arrivals: Arrivals) -> None:
    @mp.subscription("latency", start="now")
    async def handle(message: Message[Any]) -> None:
        arrivals[message.position] = monotonic()


def _plain(mp: Milepost, arrivals: Arrivals) -> None:
    @mp.subscription("latency", start="now")
    def handle(message: Message[Any]) -> None:
        arrivals[message.position] = monotonic()


def _exactly_once(mp: Milepost, arrivals: Arrivals) -> None:
    @mp.subscription("latency", start="now")
    async def handle(message: Message[Any], tx: Transaction) -> None:
        arrivals[message.position] = monotonic()


HANDLERS: dict[str, Declare] = {"milepost": _one_a_call, PLAIN: _plain, ONCE: _exactly_once}
