"""How much memory a worker takes that drains a long backlog: the peak, in a process that does nothing else."""

import json
import subprocess
import sys

from benchmarks.bench import Bench
from benchmarks.drainer import SHAPES
from benchmarks.logs import Log, fresh_log
from benchmarks.results import Result

GOAL = 200
"""Megabytes of resident memory."""
PATIENCE = 900.0
"""Seconds for one drain."""


def measure(bench: Bench) -> list[Result]:
    """Once for each shape of handlers: a peak does not have a middle."""
    sizes = bench.sizes
    work = f"memory: {sizes.memory_messages:,} messages"
    results: list[Result] = []
    with bench.steps(work, 1 + len(SHAPES)) as step:
        versions = sizes.memory_messages // sizes.drain_streams
        with fresh_log(bench.url, "memory", streams=sizes.drain_streams, versions=versions) as log:
            step()
            for shape, subject in SHAPES.items():
                before, peak = _drained(log, shape, versions * log.streams)
                if not results:
                    results.append(Result(work=work, subject="a program, opened", value=before, unit="MB"))
                results.append(Result(work=work, subject=subject, value=peak, unit="MB", below=GOAL))
                step()
    return results


def _drained(log: Log, shape: str, count: int) -> tuple[float, float]:
    """Megabytes before and at the peak."""
    command = [sys.executable, "-m", "benchmarks.drainer", log.url, log.schema, shape]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        raise RuntimeError(f"a worker failed:\n{done.stderr}")
    report = json.loads(done.stdout)
    if report["handled"] != count:
        raise RuntimeError(f"{report['handled']:,} messages were handled instead of {count:,}")
    return report["before"], report["peak"]
