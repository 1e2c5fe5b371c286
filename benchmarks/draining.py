"""Draining a backlog with handlers that do nothing, beside a raw loop over the same rows."""

import asyncio
import gc
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter, process_time
from typing import Any

from benchmarks import handlers, team
from benchmarks.bench import Bench
from benchmarks.contest import Turn, contest
from benchmarks.handlers import BATCH, Declare, program
from benchmarks.logs import Log, fresh_log
from benchmarks.messages import CATEGORIES
from benchmarks.raw_loop import RawLoop
from benchmarks.results import Result
from benchmarks.server import held_snapshot, other_database, processor_seconds
from milepost import Message, Milepost, Retry

ONE = "drain: one message a call"
PLAIN = "milepost, plain def"
TWO = "drain: two processes"
BUSY = "drain: processors that one process and PostgreSQL keep busy"
FAILING = "drain: one message in ten fails once"
SNAPSHOT = "drain: a snapshot held open"
TEN = "drain: ten subscriptions in one process"
START = "drain: the start and the end of a worker"
SUBSCRIPTIONS = 10
FAILS = 10
"""One message in so many fails once."""
WITHIN = 0.8
"""Within 20 % of what it is without."""


@dataclass(frozen=True)
class Case:
    """A shape of handlers, and what it has to reach of the limit."""

    work: str
    declare: Declare
    goal: float | None = None


CASES = (
    Case(f"drain: batches of {BATCH}", handlers.batches, 1.0),
    Case("drain: exactly once, one message a call", handlers.exactly_once),
    Case("drain: exactly once in one lane, one message a call", handlers.exactly_once_in_one_lane),
    Case(f"drain: exactly once, batches of {BATCH}", handlers.exactly_once_batches, 0.4),
    Case(f"drain: exactly once in one lane, batches of {BATCH}", handlers.exactly_once_batches_in_one_lane),
)


def measure(bench: Bench) -> list[Result]:
    """Every shape of handlers; then two processes, failures, a held snapshot, many streams, many subscriptions."""
    with drain_log(bench, bench.url, "drain") as log, RawLoop(log) as raw:
        results = [
            *_one_a_call(bench, log, raw),
            *(result for case in CASES for result in _case(bench, log, raw, case)),
            *_failing(bench, log, raw),
            *_snapshot(bench, log, raw),
            *_streams(bench, log, raw),
            *_start(bench, log, raw),
            *_busy(bench, log, raw),
        ]
    return results + _ten_subscriptions(bench) + _two_processes(bench)


@contextmanager
def drain_log(bench: Bench, url: str, name: str) -> Iterator[Log]:
    """A log with a backlog to drain."""
    streams = bench.sizes.drain_streams
    with fresh_log(url, name, streams=streams, versions=bench.sizes.drain_messages // streams) as log:
        yield log


def _one_a_call(bench: Bench, log: Log, raw: RawLoop) -> list[Result]:
    turns: dict[str, Turn] = {
        "milepost": partial(rate, bench, log, handlers.one_a_call),
        PLAIN: partial(rate, bench, log, handlers.plain),
        "limit": raw.rate,
    }
    scores = contest(bench, ONE, turns, bench.sizes.drain_rounds)
    return [
        scores.result(ONE, "milepost", of="limit", at_least=0.7),
        scores.result(ONE, PLAIN, of="limit"),
        scores.result(ONE, "limit"),
    ]


def _case(bench: Bench, log: Log, raw: RawLoop, case: Case) -> list[Result]:
    turns: dict[str, Turn] = {"milepost": partial(rate, bench, log, case.declare), "limit": raw.rate}
    scores = contest(bench, case.work, turns, bench.sizes.drain_rounds)
    return [
        scores.result(case.work, "milepost", of="limit", at_least=case.goal),
        scores.result(case.work, "limit"),
    ]


@dataclass(frozen=True)
class Drained:
    """What a drain came to, from the first lane until nothing is left."""

    rate: float
    """Messages a second."""
    processor: float
    """What this process used of a processor, in microseconds a message."""


def rate(bench: Bench, log: Log, declare: Declare) -> float:
    """Messages a second."""
    return drained(bench, log, declare).rate


def drained(bench: Bench, log: Log, declare: Declare) -> Drained:
    """Drains a log with a program that is new, and has one subscription."""
    gc.collect()
    return asyncio.run(_drained(program(log, declare), bench.sizes.drain_messages))


async def _drained(mp: Milepost, count: int) -> Drained:
    async with mp, mp.program().running(grace=5) as worker:
        runners = worker.runners.values()
        while not any(runner.lanes for runner in runners):  # noqa: ASYNC110 - to the step of the loop
            await asyncio.sleep(0)
        start, used = perf_counter(), process_time()
        await worker.idle()
        seconds, used = perf_counter() - start, process_time() - used
        handled = sum(runner.settler.handled for runner in runners)
    if handled != count:
        raise RuntimeError(f"{handled:,} messages were handled instead of {count:,}")
    return Drained(handled / seconds, 1e6 * used / handled)


def _failing(bench: Bench, log: Log, raw: RawLoop) -> list[Result]:
    turns: dict[str, Turn] = {
        "milepost": partial(_rate_with_failures, bench, log, FAILS),
        "milepost, none fails": partial(_rate_with_failures, bench, log, None),
        "limit": raw.rate,
    }
    with _silence(logging.getLogger("milepost.engine")):
        scores = contest(bench, FAILING, turns, bench.sizes.drain_rounds)
    return [
        scores.result(FAILING, "milepost", of="milepost, none fails"),
        scores.result(FAILING, "milepost, none fails", of="limit"),
        scores.result(FAILING, "limit"),
    ]


@contextmanager
def _silence(logger: logging.Logger) -> Iterator[None]:
    """What each failure says goes nowhere: a terminal is not what is measured."""
    nowhere = logging.NullHandler()
    logger.addHandler(nowhere)
    yield
    logger.removeHandler(nowhere)


def _rate_with_failures(bench: Bench, log: Log, one_in: int | None) -> float:
    gc.collect()
    return asyncio.run(_drained_with_failures(log, bench.sizes.drain_messages, one_in))


async def _drained_with_failures(log: Log, count: int, one_in: int | None) -> float:
    """Messages a second, from the start of the work until each has been handled without an error.

    A message that fails is tried again at once, and is stored in between. Nothing stalls the subscription.
    """
    failed: set[int] = set()
    handled: set[int] = set()
    over = asyncio.Event()

    def declare(mp: Milepost) -> None:
        @mp.subscription("drain", retry=Retry(delay=0), stall_after=count)
        async def handle(message: Message[Any]) -> None:
            position = message.position
            if one_in is not None and position % one_in == 0 and position not in failed:
                failed.add(position)
                raise RuntimeError("fails once")
            handled.add(position)
            if len(handled) == count:
                over.set()

    async with program(log, declare) as mp:
        start = perf_counter()
        async with mp.running():
            await over.wait()
            return count / (perf_counter() - start)


def _snapshot(bench: Bench, log: Log, raw: RawLoop) -> list[Result]:
    # What a snapshot holds on to is dead rows of its own database: the other log is left alone.
    with ExitStack() as stack:
        beside = stack.enter_context(other_database(bench.url, "milepost_bench_drain_snapshot"))
        held = stack.enter_context(drain_log(bench, beside, "drain_snapshot"))
        stack.enter_context(held_snapshot(beside))
        turns: dict[str, Turn] = {
            "milepost": partial(rate, bench, held, handlers.one_a_call),
            "milepost, no snapshot": partial(rate, bench, log, handlers.one_a_call),
            "limit": raw.rate,
        }
        scores = contest(bench, SNAPSHOT, turns, bench.sizes.drain_rounds)
    return [
        scores.result(SNAPSHOT, "milepost", of="milepost, no snapshot", at_least=WITHIN),
        scores.result(SNAPSHOT, "milepost, no snapshot", of="limit"),
        scores.result(SNAPSHOT, "limit"),
    ]


def _streams(bench: Bench, log: Log, raw: RawLoop) -> list[Result]:
    sizes = bench.sizes
    work, few = f"drain: {sizes.growth_streams:,} streams", f"milepost, {sizes.drain_streams:,} streams"
    with fresh_log(bench.url, "drain_streams", streams=sizes.growth_streams) as large, RawLoop(large) as large_raw:
        newest = large_raw.head() - sizes.drain_messages
        turns: dict[str, Turn] = {
            "milepost": partial(rate, bench, large, partial(handlers.one_a_call, start=newest)),
            few: partial(rate, bench, log, handlers.one_a_call),
            "limit": partial(large_raw.rate, after=newest),
            "limit, few": raw.rate,
        }
        scores = contest(bench, work, turns, sizes.drain_rounds)
    return [
        scores.result(work, "milepost", of=few, at_least=WITHIN),
        scores.result(work, few, of="limit, few"),
        scores.result(work, "limit", of="limit, few"),
        scores.result(work, "limit, few"),
    ]


def _start(bench: Bench, log: Log, raw: RawLoop) -> list[Result]:
    """Milliseconds of a run that has nothing to do: what a drain has besides its messages."""
    declare = partial(handlers.one_a_call, start=raw.head())
    turns: dict[str, Turn] = {"milepost": lambda: 1000 * asyncio.run(_nothing(program(log, declare)))}
    scores = contest(bench, START, turns, bench.sizes.drain_rounds, unit="ms", fewer_is_better=True)
    return [scores.result(START, "milepost")]


async def _nothing(mp: Milepost) -> float:
    async with mp:
        start = perf_counter()
        await mp.run_until_idle()
        return perf_counter() - start


def _busy(bench: Bench, log: Log, raw: RawLoop) -> list[Result]:
    """What is left for a second process."""

    def used(work: Turn) -> float:
        before, start = processor_seconds(log.url), perf_counter()
        work()
        return (processor_seconds(log.url) - before) / (perf_counter() - start)

    turns: dict[str, Turn] = {
        "milepost": partial(used, partial(rate, bench, log, handlers.one_a_call)),
        "limit": partial(used, raw.rate),
    }
    scores = contest(bench, BUSY, turns, bench.sizes.drain_rounds, unit="processors")
    return [scores.result(BUSY, subject) for subject in turns]


def _ten_subscriptions(bench: Bench) -> list[Result]:
    everything: team.Declared = {f"everything-{number}": {} for number in range(SUBSCRIPTIONS)}
    tenths: team.Declared = {
        f"tenth-{number}": {"category": [f"c{category}" for category in range(number, CATEGORIES, SUBSCRIPTIONS)]}
        for number in range(SUBSCRIPTIONS)
    }
    one, each_everything, each_a_tenth = "one subscription", "each matches everything", "each matches a tenth"
    with _team_logs(bench, "drain_ten") as (log, raw_log):
        versions = bench.sizes.team_messages // log.streams
        turns: dict[str, Turn] = {
            each_everything: partial(
                team.milepost_rate, log, 1, versions, everything, deliveries_of_each=SUBSCRIPTIONS
            ),
            each_a_tenth: partial(team.milepost_rate, log, 1, versions, tenths),
            one: partial(team.milepost_rate, log, 1, versions),
            "limit": partial(team.raw_rate, raw_log, 1),
        }
        scores = contest(bench, TEN, turns, bench.sizes.team_rounds)
    return [
        scores.result(TEN, each_everything, of=one, at_least=1.5),
        scores.result(TEN, each_a_tenth, of=one, at_least=0.8),
        scores.result(TEN, one, of="limit"),
        scores.result(TEN, "limit"),
    ]


@contextmanager
def _team_logs(bench: Bench, name: str) -> Iterator[tuple[Log, Log]]:
    """A log to which backlogs come, and one that has as much as a backlog."""
    streams = bench.sizes.drain_streams
    versions = bench.sizes.team_messages // streams
    with (
        fresh_log(bench.url, name, streams=streams) as log,
        fresh_log(bench.url, f"{name}_raw", streams=streams, versions=versions) as raw_log,
    ):
        yield log, raw_log


def _two_processes(bench: Bench) -> list[Result]:
    with _team_logs(bench, "drain_team") as (log, raw_log):
        versions = bench.sizes.team_messages // log.streams
        turns: dict[str, Turn] = {
            "milepost": partial(team.milepost_rate, log, 2, versions),
            "milepost, one process": partial(team.milepost_rate, log, 1, versions),
            "limit": partial(team.raw_rate, raw_log, 2),
            "limit, one process": partial(team.raw_rate, raw_log, 1),
        }
        scores = contest(bench, TWO, turns, bench.sizes.team_rounds)
    return [
        scores.result(TWO, "milepost", of="milepost, one process", at_least=1.5),
        scores.result(TWO, "milepost, one process", of="limit, one process"),
        scores.result(TWO, "limit", of="limit, one process"),
        scores.result(TWO, "limit, one process"),
    ]
