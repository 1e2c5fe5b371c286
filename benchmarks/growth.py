"""Whether the past costs anything: more streams, more history, a snapshot that is held open.

Commits do not wait for the disk here. What is compared is one log with another, and the disk's moods, the same
for all of them, would only hide a difference.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks.bench import Bench
from benchmarks.contest import Scores, in_turn
from benchmarks.crew import Crew
from benchmarks.following import latencies, latency, milepost_follower
from benchmarks.logs import Log, fresh_log
from benchmarks.messages import CATEGORIES, CATEGORY, STREAMS
from benchmarks.reading import RawReader, milepost_rate
from benchmarks.results import Result
from benchmarks.server import held_snapshot, other_database, without_waiting
from benchmarks.writers import MilepostBatchWriter, MilepostWriter, RawCopyWriter, RawWriter, Writer
from milepost import Milepost

GOAL = 0.8
"""Within 20 % of what it is without."""
BASE = "base"
"""1,000 streams, and just enough history to be read."""
FOLLOW = "follow"
WRITING: dict[tuple[str, str], Callable[[Log], Writer]] = {
    ("append", "milepost"): MilepostWriter,
    ("append", "limit"): lambda log: RawWriter(log, "raw"),
    ("append-batch", "milepost"): MilepostBatchWriter,
    ("append-batch", "limit"): lambda log: RawCopyWriter(log, "raw"),
}

Logs = dict[str, Log]
"""Each condition and the log that is under it."""


@dataclass(frozen=True)
class Figure:
    """What is taken under every condition."""

    name: str
    subject: str
    take: Callable[[Log], float]


def measure(bench: Bench) -> list[Result]:
    """Each figure under each condition, the conditions taking turns."""
    with _logs(bench) as logs:
        writers = {_writer(log, *what): make(log) for log in logs.values() for what, make in WRITING.items()}
        with Crew(1, writers) as crew:
            figures = _figures(bench, crew)
            scores = _take_turns(bench, logs, figures)
    return [_result(scores, condition, figure) for condition in logs for figure in figures]


@contextmanager
def _logs(bench: Bench) -> Iterator[Logs]:
    sizes, url = bench.sizes, without_waiting(bench.url)
    little = max(1, sizes.growth_read_messages // STREAMS)
    with ExitStack() as stack, bench.steps("growth: the logs", 4) as step:

        def log(name: str, streams: int, versions: int, url: str = url) -> Log:
            made = stack.enter_context(fresh_log(url, f"growth_{name}", streams=streams, versions=versions))
            made.raw_table("raw", filled=True)
            step()
            return made

        # What a snapshot holds on to is dead rows of its own database: the others are left alone.
        beside = stack.enter_context(other_database(url, "milepost_bench_snapshot"))
        logs = {
            BASE: log("base", STREAMS, little),
            f"{sizes.growth_streams:,} streams": log("streams", sizes.growth_streams, 1),
            f"{sizes.growth_history:,} messages": log("history", STREAMS, sizes.growth_history // STREAMS),
            "a snapshot held open": log("snapshot", STREAMS, little, beside),
        }
        stack.enter_context(held_snapshot(beside))
        yield logs


def _figures(bench: Bench, crew: Crew) -> list[Figure]:
    sizes = bench.sizes

    def write(what: tuple[str, str], log: Log) -> float:
        return crew.rate(_writer(log, *what), sizes.growth_seconds)

    def follow(log: Log) -> float:
        writer = _writer(log, "append", "milepost")
        taken = latency(crew, writer, partial(milepost_follower, log), sizes.growth_follow_messages)
        return median(asyncio.run(taken))

    count = sizes.growth_read_messages
    return [
        *(Figure(*what, partial(write, what)) for what in WRITING),
        Figure("read", "milepost", lambda log: asyncio.run(_read_newest(log, count))),
        Figure("read", "limit", lambda log: _read_newest_raw(log, count)),
        Figure("read a category", "milepost", lambda log: asyncio.run(_read_category(log, count // CATEGORIES))),
        Figure(FOLLOW, "milepost", follow),
    ]


async def _read_newest(log: Log, count: int) -> float:
    async with Milepost(log.url, schema=log.schema) as mp:
        after = await mp.head() - count
        await milepost_rate(mp, after=after)
        return await milepost_rate(mp, after=after)


async def _read_category(log: Log, count: int) -> float:
    async with Milepost(log.url, schema=log.schema) as mp:
        await milepost_rate(mp, category=CATEGORY, limit=count)
        return await milepost_rate(mp, category=CATEGORY, limit=count)


def _read_newest_raw(log: Log, count: int) -> float:
    with RawReader(log) as raw:
        after = raw.head() - count
        raw.rate("messages", after=after)
        return raw.rate("messages", after=after)


def _take_turns(bench: Bench, logs: Logs, figures: list[Figure]) -> dict[str, Scores]:
    scores = {figure.name: latencies() if figure.name == FOLLOW else Scores() for figure in figures}
    rounds = bench.sizes.growth_rounds
    with bench.steps("growth", rounds * len(figures) * len(logs)) as step:
        for number in range(rounds):
            for figure in figures:
                for condition in in_turn(logs, number):
                    scores[figure.name].add(_contender(figure.subject, condition), figure.take(logs[condition]))
                    step()
    return scores


def _result(scores: dict[str, Scores], condition: str, figure: Figure) -> Result:
    grown = condition != BASE
    return scores[figure.name].result(
        f"growth: {figure.name}, {condition}",
        figure.subject,
        contender=_contender(figure.subject, condition),
        of=_contender(figure.subject, BASE) if grown else None,
        at_least=GOAL if grown and figure.subject == "milepost" else None,
    )


def _writer(log: Log, name: str, subject: str) -> str:
    return f"{log.schema}: {name}, {subject}"


def _contender(subject: str, condition: str) -> str:
    return f"{subject}, {condition}"
