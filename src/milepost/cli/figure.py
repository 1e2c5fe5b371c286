"""Figures: how fast something goes, beside something else."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic

TURNS = 4
"""How often each side has its turn."""

Step = Callable[[], Awaitable[int]]
"""Does its work once; returns how many messages that were."""


@dataclass(frozen=True)
class Figure:
    """One line of the result. `unit` is "messages a second" or "seconds"."""

    work: str
    unit: str
    milepost: float
    raw: float | None = None
    ratio: float | None = None


async def compared(work: str, ours: Sequence[Step], theirs: Sequence[Step], seconds: float) -> Figure:
    """Both rates, measured in turns, so that what else the machine does falls on both."""
    each = seconds / TURNS / 2
    turns = [(await rate(ours, each), await rate(theirs, each)) for _ in range(TURNS)]
    mean, raw = (sum(rates) / TURNS for rates in zip(*turns, strict=True))
    return Figure(work, "messages a second", mean, raw, mean / raw)


async def rate(steps: Sequence[Step], seconds: float) -> float:
    """Messages a second, each step repeated beside the others."""
    begun = monotonic()

    async def repeat(step: Step) -> int:
        count = 0
        while monotonic() < begun + seconds:
            count += await step()
        return count

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(repeat(step)) for step in steps]
    return sum(task.result() for task in tasks) / (monotonic() - begun)
