"""Checks of the processes that work: whether they live, and what they run."""

from collections import Counter
from dataclasses import dataclass

from milepost.cli.age import age
from milepost.cli.checks.finding import Examined, Finding, shortened
from milepost.progress.postgresql import PROGRAM

MOST = 1000
"""Workers that are looked at."""
NAMED = 10
"""Lines of one check."""


@dataclass(frozen=True)
class _Worker:
    name: str
    group: str
    program: str
    silent: float
    """Seconds since its last beat."""
    lease: float
    lanes: int

    @property
    def lives(self) -> bool:
        return self.silent <= self.lease


async def workers(examined: Examined) -> list[Finding]:
    """Who has stopped without a word."""
    known = await _workers(examined)
    living = [worker for worker in known if worker.lives]
    silent = [worker for worker in known if not worker.lives]
    if not silent:
        groups = Counter(worker.group for worker in living)
        words = ", ".join(f"{count} of group {group}" for group, count in sorted(groups.items()))
        return [Finding("workers", "ok", f"live: {words}" if words else "nobody works on subscriptions now")]
    served = {worker.group for worker in living}
    return shortened([_silent(worker, worker.group in served) for worker in silent], NAMED)


def _silent(worker: _Worker, has_others: bool) -> Finding:
    is_one = worker.lanes == 1
    lanes = f"its {worker.lanes} lane{'' if is_one else 's'}"
    if not worker.lanes:
        follows = "it had no lane; find out why it ended"
    elif has_others:
        follows = f"others take {lanes} within some seconds; find out why it ended"
    else:
        stands = f"{lanes} {'stands' if is_one else 'stand'} still"
        follows = f"nobody else works there, so {stands}: start its program again, with `milepost run`"
    return Finding(
        "workers",
        "problem" if worker.lanes and not has_others else "warning",
        f"{worker.name} of group {worker.group} was last heard of {age(worker.silent)} ago, and its lease is "
        f"{worker.lease:.0f} s: it was killed, is stopped or cut off; {follows}",
        worker.name,
    )


async def versions(examined: Examined) -> list[Finding]:
    """Whether all that lives is of one version."""
    programs = Counter(worker.program for worker in await _workers(examined) if worker.lives)
    others = sorted(program for program in programs if program != PROGRAM)
    if not others:
        return [Finding("versions", "ok", f"this is {PROGRAM}, and so is everything that works")]
    return [
        Finding(
            "versions",
            "warning",
            f"{programs[program]} worker{'' if programs[program] == 1 else 's'} of {program}, while this is "
            f"{PROGRAM}: let the deploy end, or use the doctor of their version",
            program,
        )
        for program in others
    ]


async def _workers(examined: Examined) -> list[_Worker]:
    return [_Worker(*row) for row in await examined.progress.ask("workers", most=MOST)]
