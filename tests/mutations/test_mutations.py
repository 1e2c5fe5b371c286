"""Each mistake of the list can still be made, and the fast tests that are named for it find it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mutations.listed import MUTATIONS
from mutations.mutation import ROOT, Copy, Mutation, Outcome, missed_by
from mutations.naming import Named

PACKAGES = {"log", "postgres", "filter", "dispatch", "progress", "engine", "server", "client", "console", "cli"}
LEAST = 40
"""How many mistakes there are, over all packages."""

each_mutation = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.breaks)


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder, which goes with the test: copies are large."""
    with tempfile.TemporaryDirectory(prefix="milepost-mutation-") as name:
        yield Path(name)


@each_mutation
def test_it_can_still_be_made(mutation: Mutation) -> None:
    mistaken = mutation.applied((ROOT / "src" / "milepost" / mutation.file).read_text())
    if mutation.file.endswith(".py"):
        compile(mistaken, mutation.file, "exec")


def test_the_tests_that_find_them_are_there_and_fast() -> None:
    named = Named(ROOT / "tests")
    found = {test: named.shard_of(test) for mutation in MUTATIONS for test in mutation.tests}
    assert {test: shard for test, shard in found.items() if shard != "fast"} == {}


def test_there_are_some_of_every_package_and_each_is_there_once() -> None:
    assert len(MUTATIONS) >= LEAST
    assert {mutation.package for mutation in MUTATIONS} == PACKAGES
    assert len({mutation.breaks for mutation in MUTATIONS}) == len(MUTATIONS)
    assert all(mutation.tests for mutation in MUTATIONS)


@pytest.mark.parametrize(
    ("status", "line", "found"),
    [
        (1, "FAILED tests/log/test_a.py::test_b - assert 1 == 2", True),
        (1, "FAILED tests/log/test_a.py::test_b[case - 1] - assert 1 == 2", True),
        (1, "FAILED tests/log/test_a.py::test_b", True),
        (1, "FAILED tests/log/test_a.py::test_bc - assert 1 == 2", False),
        (1, "ERROR tests/log/test_a.py::test_b - ImportError", False),
        (2, "FAILED tests/log/test_a.py::test_b - assert 1 == 2", False),
        (4, "ERROR: not found: tests/log/test_a.py::test_b", False),
    ],
)
def test_only_a_test_that_was_called_has_failed(status: int, line: str, found: bool) -> None:
    assert Outcome(status, f"…\n{line}\n1 failed").has_failed("log/test_a.py::test_b") is found


@pytest.mark.shard("simulation")
def test_a_copy_is_what_its_tests_run_on(folder: Path) -> None:
    copy = Copy(folder)
    (folder / "tests" / "test_where.py").write_text(
        "import milepost\nimport patience\n\n\n"
        "def test_it_is_here() -> None:\n"
        f"    assert milepost.__file__.startswith({str(folder)!r})\n"
        f"    assert patience.__file__.startswith({str(folder)!r})\n\n\n"
        "def test_it_fails() -> None:\n"
        "    raise AssertionError\n"
    )
    outcome = copy.run(["test_where.py"])
    assert [outcome.has_failed(f"test_where.py::{name}") for name in ("test_it_fails", "test_it_is_here")] == [
        True,
        False,
    ], outcome.output


@pytest.mark.shard("simulation")
@pytest.mark.timeout(1200)
def test_without_a_mistake_they_pass(folder: Path, embedded_url: str) -> None:
    tests = dict.fromkeys(test for mutation in MUTATIONS for test in mutation.tests)
    outcome = Copy(folder).run(list(tests), url=embedded_url)
    assert outcome.status == 0, outcome.output


@pytest.mark.shard("simulation")
@pytest.mark.timeout(600)
@each_mutation
def test_it_is_found(mutation: Mutation, folder: Path, embedded_url: str) -> None:
    copy = Copy(folder)
    copy.mistake(mutation)
    outcome = copy.run(mutation.tests, url=embedded_url)
    assert missed_by(mutation, outcome) == [], outcome.output
