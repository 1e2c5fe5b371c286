"""Writes a schedule down as a test."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from dispatch.simulation.operations import Operation
from dispatch.simulation.setup import Setup


def as_test(name: str, setup: Setup, schedule: Sequence[Operation]) -> str:
    """A function for `tests/dispatch/test_found.py`."""
    lines = [f"def test_found_{name}() -> None:", f"    setup = {written(setup)}", "    replay(", "        setup,"]
    lines += [
        "        [",
        *(f"            {written(operation)}," for operation in schedule),
        "        ],",
        "    )",
    ]
    return "\n".join(lines)


def written(record: Any) -> str:
    """A record as it would be made, without what is as usual."""
    if isinstance(record, tuple):
        return f"({', '.join(map(written, record))}{',' if len(record) == 1 else ''})"
    if not hasattr(record, "__dataclass_fields__"):
        return repr(record)
    given = [
        f"{field.name}={written(getattr(record, field.name))}"
        for field in fields(record)
        if field.default is MISSING or getattr(record, field.name) != field.default
    ]
    return f"{type(record).__name__}({', '.join(given)})"
