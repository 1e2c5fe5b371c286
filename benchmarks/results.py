"""Figures, what they are measured against, and the file that keeps them."""

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("results.json")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One figure."""

    work: str
    """What was done: the name of the work that `make bench WORK=` knows, a colon, and the case."""
    subject: str
    """Who did it: `milepost`, `limit` (a raw psycopg loop), or another that stands beside them."""
    value: float
    unit: str
    of: str | None = None
    """The subject that `ratio` compares with."""
    ratio: float | None = None
    """How much of that subject it reaches: above 1 is better, also where the value is a time."""
    at_least: float | None = None
    """The goal for the ratio."""
    above: float | None = None
    """The goal for the value, where more is better."""
    below: float | None = None
    """The goal for the value, where less is better."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of what else was measured, by package."""

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None where there is none."""
        if self.at_least is not None and self.ratio is not None:
            return self.ratio >= self.at_least
        if self.above is not None:
            return self.value > self.above
        return None if self.below is None else self.value < self.below

    @property
    def goal(self) -> dict[str, float]:
        """The goal by its name; empty where there is none."""
        goals = {"at_least": self.at_least, "above": self.above, "below": self.below}
        return {name: goal for name, goal in goals.items() if goal is not None}


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(pages * page / 2**30, 1),
    }


def versions(postgresql: str) -> dict[str, str]:
    """What was measured."""
    packages = {name: version(name) for name in ("milepost", "psycopg", "msgspec")}
    return {"python": platform.python_version(), "postgresql": postgresql, **packages}


def save(path: Path, results: list[Result], *, postgresql: str) -> None:
    """Writes the figures of the works that were measured; those of the others stay."""
    works = {work_of(result.work) for result in results}
    kept = [entry for entry in _load(path) if work_of(entry["work"]) not in works]
    about = {"date": datetime.now(UTC).date().isoformat(), "machine": machine()}
    known = versions(postgresql)
    entries = kept + [_entry(result) | about | {"versions": known | dict(result.versions)} for result in results]
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    path.write_text(f"[\n{lines}\n]\n")


def work_of(work: str) -> str:
    """The name that `make bench WORK=` knows a figure's work by."""
    return work.partition(":")[0]


def _entry(result: Result) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "work": result.work,
        "subject": result.subject,
        "value": _rounded(result.value),
        "unit": result.unit,
    }
    if result.ratio is not None:
        entry |= {"of": result.of, "ratio": round(result.ratio, 3)}
    if result.reached is not None:
        entry |= {"goal": result.goal, "reached": result.reached}
    return entry


def _rounded(value: float) -> float:
    return round(value) if value >= 1_000 else float(f"{value:.4g}")


def _load(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    entries: list[dict[str, Any]] = json.loads(path.read_text())
    return entries


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())
