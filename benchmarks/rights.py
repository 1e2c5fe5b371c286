"""What it costs that an append runs with the owner's rights, beside one with those of the caller."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random

import msgspec
import psycopg
from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.contest import Turn, contest
from benchmarks.logs import Log, fresh_log
from benchmarks.messages import BATCH, TYPE, data, properties, stream_name
from benchmarks.results import Result
from benchmarks.server import without_waiting

CALLER, OWNER, MILEPOST = "with the caller's rights", "with the owner's, without a search_path", "milepost"
_VARIANTS = {
    CALLER: "security invoker reset search_path",
    OWNER: "reset search_path",
    MILEPOST: "security definer",
}
_ONE = "select outcome from {schema}.write(%s, %s::text::jsonb, -2, true)"
_MANY = "select outcome from {schema}.write_many(%s::text::jsonb, true)"
ROUNDS = 61
"""Many and short: neighbouring turns find the machine alike."""
APPENDS = 500
"""Of one turn, of one message each; of many, a fiftieth."""

Append = Callable[[], None]


def measure(bench: Bench) -> list[Result]:
    """What the server's process needs for one message, and for a hundred to a hundred streams."""
    url = without_waiting(bench.url)
    rounds = ROUNDS if bench.sizes.rounds > 1 else 3
    results = []
    with ExitStack() as stack:
        logs = {}
        for number, (name, variant) in enumerate(_VARIANTS.items()):
            logs[name] = stack.enter_context(fresh_log(url, f"rights_{number}"))
            _alter(logs[name], variant)
        for what, writer, appends in (("one message", _one, APPENDS), ("100 streams", _many, APPENDS // 50)):
            writers = {name: stack.enter_context(writer(log)) for name, log in logs.items()}
            turns: dict[str, Turn] = {
                name: partial(_microseconds, *each, appends) for name, each in writers.items()
            }
            work = f"rights: processor time of the server, {what}"
            scores = contest(bench, work, turns, rounds, unit="µs", fewer_is_better=True)
            results += [scores.result(work, name, of=None if name == CALLER else CALLER) for name in _VARIANTS]
    return results


def _alter(log: Log, variant: str) -> None:
    statement = sql.SQL("alter function {}(text, jsonb, bigint, boolean) {}")
    with psycopg.connect(log.url, autocommit=True) as connection:
        connection.execute(statement.format(log.name("write"), sql.SQL(variant)))


@contextmanager
def _one(log: Log) -> Iterator[tuple[Append, int]]:
    random = Random(0)
    with psycopg.connect(log.url, autocommit=True) as connection:
        statement = sql.SQL(_ONE).format(schema=sql.Identifier(log.schema))

        def append() -> None:
            connection.execute(statement, [stream_name(random.randrange(log.streams)), _messages()], prepare=True)

        yield append, connection.info.backend_pid


@contextmanager
def _many(log: Log) -> Iterator[tuple[Append, int]]:
    random = Random(0)
    with psycopg.connect(log.url, autocommit=True) as connection:
        statement = sql.SQL(_MANY).format(schema=sql.Identifier(log.schema))

        def append() -> None:
            streams = random.sample(range(log.streams), BATCH)
            batches = [
                {"stream": stream_name(each), "messages": msgspec.Raw(_messages().encode())} for each in streams
            ]
            connection.execute(statement, [msgspec.json.encode(batches).decode()], prepare=True)

        yield append, connection.info.backend_pid


def _messages() -> str:
    return msgspec.json.encode([{"type": TYPE, "data": data(1), "properties": properties(1)}]).decode()


def _microseconds(append: Append, pid: int, appends: int) -> float:
    """Of the server's process for one append. Linux only: other clocks are too coarse."""
    before = _nanoseconds(pid)
    for _ in range(appends):
        append()
    return (_nanoseconds(pid) - before) / appends / 1000


def _nanoseconds(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
