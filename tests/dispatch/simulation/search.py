"""Looks for schedules that fail."""

from collections.abc import Iterable

from dispatch.simulation.replay import replay
from dispatch.simulation.report import as_test
from dispatch.simulation.schedule import drawn
from dispatch.simulation.shrink import failure, shrunk


def wrong_with(kind: str, seeds: Iterable[int]) -> str | None:
    """What the first failing schedule of a kind ends with; None if all hold."""
    return next((wrong for seed in seeds if (wrong := failure(*drawn(kind, seed)))), None)


def found_by(kind: str, seeds: Iterable[int]) -> str | None:
    """The first failing schedule of a kind, made small, as a test, with what it found; None if all hold."""
    for seed in seeds:
        setup, schedule = drawn(kind, seed)
        if failure(setup, schedule) is not None:
            setup, schedule = shrunk(setup, schedule)
            return f"{failure(setup, schedule)}\n\n{as_test(f'{kind}_{seed}', setup, schedule)}\n"
    return None


def traced(kind: str, seeds: Iterable[int]) -> str:
    """All that came out of schedules, in words."""
    return "\n".join(map(str, (output for seed in seeds for output in replay(*drawn(kind, seed)))))
