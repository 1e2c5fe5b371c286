"""Looks for schedules that fail, and makes the first one small."""

from collections.abc import Iterable

from dispatch.simulation.replay import replay
from dispatch.simulation.report import as_test
from dispatch.simulation.schedule import drawn
from dispatch.simulation.shrink import failure, shrunk


def found_by(kind: str, seeds: Iterable[int]) -> str | None:
    """The first failing schedule of a kind as a test, with what it found; None if all hold."""
    for seed in seeds:
        setup, schedule = drawn(kind, seed)
        if failure(setup, schedule) is not None:
            setup, schedule = shrunk(setup, schedule)
            return f"{failure(setup, schedule)}\n\n{as_test(f'{kind}_{seed}', setup, schedule)}\n"
    return None


def traced(kind: str, seeds: Iterable[int]) -> str:
    """All that came out of schedules, in words."""
    return "\n".join(map(str, (output for seed in seeds for output in replay(*drawn(kind, seed)))))
