"""Makes a failing schedule small."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from dispatch.simulation.operations import Operation
from dispatch.simulation.replay import replay
from dispatch.simulation.setup import Setup

Fails = Callable[[Setup, Sequence[Operation]], bool]


def failure(setup: Setup, schedule: Sequence[Operation]) -> str | None:
    """What a schedule ends with: nothing, what is wrong, or an error of the core."""
    try:
        replay(setup, schedule)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def shrunk(setup: Setup, schedule: Sequence[Operation]) -> tuple[Setup, list[Operation]]:
    """A schedule that fails in the same way and is as short and plain as chunks, steps and numbers can make it."""
    gist = _gist(failure(setup, schedule))

    def fails(setup: Setup, schedule: Sequence[Operation]) -> bool:
        return _gist(failure(setup, schedule)) == gist

    found = list(schedule)
    before = None
    while before != (setup, found):
        before = (setup, list(found))
        found = _without_chunks(setup, found, fails)
        found = _with_simpler_steps(setup, found, fails)
        setup = _simpler_setup(setup, found, fails)
    return setup, found


def _gist(text: str | None) -> str | None:
    """The beginning of a failure's words, without the numbers."""
    return text and re.sub(r"\d+", "", text)[:40]


def _without_chunks(setup: Setup, schedule: list[Operation], fails: Fails) -> list[Operation]:
    size = max(1, len(schedule) // 2)
    while size:
        start = 0
        while start < len(schedule):
            shorter = schedule[:start] + schedule[start + size :]
            if fails(setup, shorter):
                schedule = shorter
            else:
                start += size
        size //= 2
    return schedule


def _with_simpler_steps(setup: Setup, schedule: list[Operation], fails: Fails) -> list[Operation]:
    for place in range(len(schedule)):
        for simpler in _simpler(schedule[place]):
            changed = [*schedule[:place], simpler, *schedule[place + 1 :]]
            if fails(setup, changed):
                schedule = changed
    return schedule


def _simpler_setup(setup: Setup, schedule: list[Operation], fails: Fails) -> Setup:
    for simpler in _simpler(setup):
        changed = replace(setup, **{name: getattr(simpler, name) for name in _difference(setup, simpler)})
        if fails(changed, schedule):
            setup = changed
    return setup


def _difference(one: Any, other: Any) -> list[str]:
    return [field.name for field in fields(one) if getattr(one, field.name) != getattr(other, field.name)]


def _simpler(record: Any) -> Iterator[Any]:
    """The record with one value that is plainer."""
    for field in fields(record):
        value = getattr(record, field.name)
        for plainer in _plainer(value, field.default):
            with suppress(ValueError):
                yield replace(record, **{field.name: plainer})


def _plainer(value: Any, default: Any) -> list[Any]:
    """Values to try instead, the plainest first: never one that this one was tried instead of."""
    choices = [default]
    if type(value) in (int, float):
        choices += [type(value)(0), type(value)(1)]
        choices += [value // 2] if value not in choices and value > 3 else []
    return choices[: choices.index(value)] if value in choices else choices
