"""The filter language: figures of `benchmarks.filters`, beside the goals."""

from dataclasses import replace
from typing import Any

from benchmarks import filters
from benchmarks.bench import Bench
from benchmarks.results import Result

SIMPLE = "filter: one comparison"
EVALUATIONS = 1_000_000
"""The goal for a simple filter, a second."""
FEW = "filter: index of 10 equalities, look-up"
MANY = "filter: index of 10,000 equalities, look-up"
MANY_GOAL = 0.5
"""10,000 filters cost at most twice what 10 cost."""


def measure(bench: Bench) -> list[Result]:
    """Pure Python: it needs no server, and knows neither rounds nor sizes."""
    try:
        with bench.steps("filter", 1):
            found = filters.measure()
    except ModuleNotFoundError as missing:
        bench.progress.console.print(f"filter is left out: {missing}. `make bench` installs what it needs.")
        return []
    few = next((row["value"] for row in found if row["work"] == FEW), None)
    return [_with_goal(_result(row), few) for row in found]


def _result(row: dict[str, Any]) -> Result:
    return Result(work=row["work"], subject=row["subject"], value=row["value"], unit=row["unit"])


def _with_goal(result: Result, few: float | None) -> Result:
    if result.subject != "milepost":
        return result
    if result.work == SIMPLE:
        return replace(result, above=EVALUATIONS)
    if result.work == MANY and few:
        return replace(result, of="10 filters", ratio=result.value / few, at_least=MANY_GOAL)
    return result
