"""A worker that drains a log once and says what it took: `python -m benchmarks.drainer URL SCHEMA SHAPE`."""

import asyncio
import json
import resource
import sys
from pathlib import Path

from benchmarks import handlers
from benchmarks.handlers import program
from benchmarks.logs import Log

SHAPES = {
    "one_a_call": "milepost",
    "plain": "milepost, plain def",
    "batches": "milepost, batches",
    "exactly_once_batches": "milepost, exactly once",
}
"""Of handlers: the names of functions, and of what they measure."""


async def drain(url: str, schema: str, shape: str) -> dict[str, float]:
    """How much was handled, and the peaks of resident memory in megabytes before that and after."""
    async with program(Log(url, schema, streams=0), getattr(handlers, shape)) as mp:
        before = peak()
        report = await mp.run_until_idle()
        return {"handled": report["drain"].handled, "before": before, "peak": peak()}


def peak() -> float:
    """The most that this process has had in memory, in megabytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # What the system counts for a child begins with its parent's peak; this is the process's own.
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    print(json.dumps(asyncio.run(drain(*sys.argv[1:]))))
