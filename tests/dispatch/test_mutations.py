"""The simulation finds what it should: each of these small mistakes in the core makes it report something."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import milepost
from dispatch.mutations import MUTATIONS, RULES, Mutation

TESTS = Path(__file__).parents[1]
PACKAGE = Path(milepost.__file__).parent
SIMULATION = TESTS / "dispatch" / "simulation"
SCHEDULES = 300
"""For each kind of schedule that a mistake is looked for with."""
FEW = 40
"""The same where only what is found soon is looked for, and with the first kind alone."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder, which goes with the test: copies are large."""
    with tempfile.TemporaryDirectory(prefix="milepost-mutation-") as name:
        yield Path(name)


def mutated(mutation: Mutation | None, path: Path) -> Path:
    """The package with a copy of dispatch that has a mistake in it."""
    source = path / "src"
    package = source / "milepost"
    package.mkdir(parents=True)
    for part in PACKAGE.iterdir():
        if part.name != "dispatch":
            (package / part.name).symlink_to(part)
    shutil.copytree(PACKAGE / "dispatch", package / "dispatch")
    if mutation is not None:
        file = package / "dispatch" / mutation.file
        file.write_text(mutation.applied(file.read_text()))
    return source


def with_mistaken_rule(mutation: Mutation, path: Path) -> Path:
    """Copy the simulation, with a mistake in it, to where it is found first."""
    shutil.copytree(SIMULATION, path / "dispatch" / "simulation")
    file = path / "dispatch" / "simulation" / mutation.file
    file.write_text(mutation.applied(file.read_text()))
    return path


def simulated(source: Path, kind: str, schedules: int = SCHEDULES) -> subprocess.CompletedProcess[str]:
    """The simulation on a copy of the package."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(TESTS)])}
    command = [sys.executable, "-m", "dispatch.simulation", "check", kind, "0", str(schedules)]
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)


def is_found(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether something was wrong with a schedule; a copy that does not even run says so elsewhere."""
    assert done.stderr == ""
    return done.returncode == 1


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.breaks)
def test_it_can_still_be_made(mutation: Mutation) -> None:
    text = mutation.applied((PACKAGE / "dispatch" / mutation.file).read_text())
    compile(text, mutation.file, "exec")


@pytest.mark.shard(
    "simulation",
    fast=[
        "a write is not compared with the life in which its lane was taken",
        "rows get the messages of another life",
    ],
)
@pytest.mark.parametrize("mutation", RULES, ids=lambda mutation: mutation.breaks)
def test_the_simulation_soon_finds_that_a_rule_is_broken_when(mutation: Mutation, folder: Path) -> None:
    found = simulated(with_mistaken_rule(mutation, folder), mutation.kinds[0], FEW)
    assert is_found(found), "the simulation found nothing wrong"


@pytest.mark.shard(
    "simulation",
    fast=[
        "the cursor goes one too far",
        "what came back, and is in the queue twice, goes out twice",
        "a message is tried once too often",
        "more than one is tried while stalled",
    ],
)
@pytest.mark.parametrize(
    "mutation", [each for each in MUTATIONS if each.soon], ids=lambda mutation: mutation.breaks
)
def test_the_simulation_soon_finds_it_when(mutation: Mutation, folder: Path) -> None:
    source = mutated(mutation, folder)
    assert is_found(simulated(source, mutation.kinds[0], FEW)), "the simulation found nothing wrong"


@pytest.mark.shard("simulation")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.breaks)
def test_the_simulation_finds_it_when(mutation: Mutation, folder: Path) -> None:
    source = mutated(mutation, folder)
    assert any(is_found(simulated(source, kind)) for kind in mutation.kinds), "the simulation found nothing wrong"


def test_the_simulation_runs_on_the_copy_and_finds_nothing_in_a_true_one(folder: Path) -> None:
    source = mutated(None, folder)
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", "import milepost; print(milepost.__file__)"]
    where = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert where.startswith(str(source))
    found = simulated(source, "ordered", FEW)
    assert (found.returncode, found.stderr) == (0, ""), found.stdout
