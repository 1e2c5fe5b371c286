"""One mistake, and the copy of the project that it is made in."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
COPIED = (
    "src",
    "tests",
    "docs",
    "benchmarks",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
)
"""What the tests of a copy may look at."""
LONGEST_TEST = 60
"""Seconds after which a test of a copy has failed: a mistake may have it wait for ever."""
LONGEST = 600.0
"""Seconds for all tests of a copy."""
FAILED = 1
"""What pytest ends with if tests have failed, and nothing else went wrong."""


class Mutation(NamedTuple):
    """A mistake: `file` says `mistaken` where it said `original`, once. Each of `tests` fails then.

    Files are below `src/milepost`, tests are node ids below `tests`, without their parameters.
    """

    breaks: str
    file: str
    original: str
    mistaken: str
    tests: tuple[str, ...]

    @property
    def package(self) -> str:
        """The package that it is in; of the schema, only the log's own tables are the log's."""
        if "/migrations/" in self.file:
            return "log" if self.file.endswith("1_log.sql") else "progress"
        return self.file.partition("/")[0]

    def applied(self, text: str) -> str:
        """The text of the file with the mistake in it; ValueError if it cannot be made there."""
        count = text.count(self.original)
        if count != 1:
            raise ValueError(f"{self.file} has {count} times, not once:\n{self.original}")
        return text.replace(self.original, self.mistaken)


class Outcome(NamedTuple):
    """What became of tests in a copy."""

    status: int
    output: str

    def has_failed(self, test: str) -> bool:
        """Whether a test, or one of its cases, was called and failed."""
        line = re.compile(rf"^FAILED tests/{re.escape(test)}(\[| |$)", re.MULTILINE)
        return self.status == FAILED and line.search(self.output) is not None


class Copy:
    """A copy of the project, in which mistakes can be made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in COPIED:
            path = ROOT / name
            if path.is_dir():
                shutil.copytree(path, folder / name)
            else:
                shutil.copy(path, folder / name)

    def mistake(self, mutation: Mutation) -> None:
        """Makes a mistake."""
        path = self._folder / "src" / "milepost" / mutation.file
        path.write_text(mutation.applied(path.read_text()))

    def run(self, tests: Sequence[str], *, url: str | None = None) -> Outcome:
        """Runs tests of the fast shard; on the PostgreSQL at `url`, or on one of their own."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        variables |= {"PYTHONPATH": str(self._folder / "src")}
        if url is not None:
            variables["MILEPOST_TEST_URL"] = url
        command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--shard", "fast"]
        done = subprocess.run(
            [
                *command,
                f"--timeout={LONGEST_TEST}",
                "--timeout-method=signal",
                "-q",
                "--tb=short",
                "-rfE",
                *(f"tests/{test}" for test in tests),
            ],
            cwd=self._folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=LONGEST,
            check=False,
        )
        return Outcome(done.returncode, done.stdout)


def missed_by(mutation: Mutation, outcome: Outcome) -> list[str]:
    """The tests that should have found a mistake and have not."""
    return [test for test in mutation.tests if not outcome.has_failed(test)]
