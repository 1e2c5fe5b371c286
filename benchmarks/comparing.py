"""Milepost and its peers from PyPI at the same work on the same PostgreSQL, each in processes of its own."""

import json
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.contest import Scores, Turn, contest
from benchmarks.crew import Crew
from benchmarks.following import PER_SECOND, raw_follower, take_turns, taken
from benchmarks.logs import fresh_log
from benchmarks.peers.trial import STREAMS
from benchmarks.raw_loop import RawLoop
from benchmarks.results import Result
from benchmarks.server import other_database
from benchmarks.writers import RawNotifyingWriter

ROOT = Path(__file__).parent.parent
ENVIRONMENT = ROOT / ".venv-peers"
PATIENCE = 300.0
"""Seconds for one turn of one peer."""
DRAIN = "peers: drain"
MEDIAN = f"peers: median latency at {PER_SECOND} a second"
P99 = f"peers: 99th percentile of latency at {PER_SECOND} a second"
LIMIT_MESSAGES = 50_000


@dataclass(frozen=True)
class Contender:
    """A module of `benchmarks.peers`, and how many messages it drains: what takes it some seconds."""

    module: str
    messages: int
    live: bool = True
    """Whether its latency is measured too."""
    python: Path = ENVIRONMENT / "bin" / "python"


@dataclass(frozen=True)
class Broker:
    """A contender, and the server that it needs."""

    contender: Contender
    serving: Callable[[], AbstractContextManager[str]]


CONTENDERS = {
    "milepost": Contender("milepost", 50_000, python=Path(sys.executable)),
    "pgqueuer": Contender("pgqueuer", 50_000),
    "eventsourcing": Contender("eventsourcing", 10_000),
    "eventsourcing, batches": Contender("eventsourcing_batches", 50_000, live=False),
    "depeche-db": Contender("depeche_db", 10_000),
    "procrastinate": Contender("procrastinate", 2_000),
}


@dataclass
class Trials:
    """Runs contenders, each time in a new database, and remembers their versions."""

    url: str
    versions: dict[str, str] = field(default_factory=dict)

    def drain(self, name: str, messages: int) -> float:
        """Messages a second."""
        return float(self._run(name, "drain", messages)["rate"])

    def drain_broker(self, name: str, broker: Broker, messages: int) -> float:
        """Messages a second, of one that keeps them in a server of its own."""
        with broker.serving() as url:
            answer = _answer(broker.contender, [url, "drain", str(messages)])
        self.versions[name] = answer["version"]
        return float(answer["rate"])

    def live_broker(self, name: str, broker: Broker, messages: int) -> list[float]:
        """The latency of each message, in milliseconds, of one with a server of its own."""
        with broker.serving() as url:
            answer = _answer(broker.contender, [url, "live", str(messages), str(PER_SECOND)])
        self.versions[name] = answer["version"]
        latencies: list[float] = answer["latencies"]
        return latencies

    def live(self, name: str, messages: int) -> list[float]:
        """The latency of each message, in milliseconds."""
        latencies: list[float] = self._run(name, "live", messages, PER_SECOND)["latencies"]
        return latencies

    def _run(self, name: str, task: str, *numbers: int) -> Mapping[str, Any]:
        contender = CONTENDERS[name]
        with other_database(self.url, f"milepost_bench_peer_{contender.module}") as url:
            answer = _answer(contender, [url, task, *map(str, numbers)])
        self.versions[name] = answer["version"]
        return answer

    def versions_of(self, name: str) -> dict[str, str]:
        """The version of a peer, by its package."""
        return {name.partition(",")[0]: self.versions[name]} if name in self.versions else {}


def _answer(contender: Contender, arguments: list[str]) -> Mapping[str, Any]:
    command = [str(contender.python), "-m", f"benchmarks.peers.{contender.module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        raise RuntimeError(f"{contender.module} failed:\n{done.stderr}")
    answer: Mapping[str, Any] = json.loads(done.stdout)
    return answer


def measure(bench: Bench) -> list[Result]:
    """A backlog, then live messages."""
    with bench.steps("peers: an environment of their own", 1):
        make_environment()
    trials = Trials(bench.url)
    return [*_drains(bench, trials), *_latencies(bench, trials)]


def make_environment() -> None:
    """Installs what the group `peers` of pyproject.toml names, if it is not there yet."""
    if not ENVIRONMENT.exists():
        venv.create(ENVIRONMENT)
    pip = [sys.executable, "-m", "pip", "--python", str(ENVIRONMENT), "install", "--quiet", "--group", "peers"]
    done = subprocess.run(pip, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        raise RuntimeError(f"the peers could not be installed:\n{done.stderr}")


def _drains(bench: Bench, trials: Trials) -> list[Result]:
    sizes = bench.sizes
    with (
        fresh_log(bench.url, "peers", streams=STREAMS, versions=LIMIT_MESSAGES // STREAMS) as log,
        RawLoop(log) as raw,
    ):
        turns: dict[str, Turn] = {
            name: partial(trials.drain, name, int(contender.messages * sizes.peer_share))
            for name, contender in CONTENDERS.items()
        }
        scores = contest(bench, DRAIN, turns | {"limit": raw.rate}, sizes.peer_rounds)
    results = [scores.result(DRAIN, name, of="limit", versions=trials.versions_of(name)) for name in CONTENDERS]
    return [*results, scores.result(DRAIN, "limit")]


def _latencies(bench: Bench, trials: Trials) -> list[Result]:
    names = [name for name, contender in CONTENDERS.items() if contender.live]
    count = bench.sizes.peer_live_messages
    with fresh_log(bench.url, "peers_live") as log:
        log.raw_table("raw")
        with Crew(1, {"raw": RawNotifyingWriter(log, "raw")}) as crew:
            turns = {name: partial(trials.live, name, count) for name in names}
            limit = partial(taken, crew, "raw", partial(raw_follower, log), count)
            medians, p99s = take_turns(bench, "peers: live", turns | {"limit": limit}, bench.sizes.peer_rounds)
    return [*_live_results(MEDIAN, medians, names, trials), *_live_results(P99, p99s, names, trials)]


def _live_results(work: str, scores: Scores, names: list[str], trials: Trials) -> list[Result]:
    results = [scores.result(work, name, of="limit", versions=trials.versions_of(name)) for name in names]
    return [*results, scores.result(work, "limit")]
