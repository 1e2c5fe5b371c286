"""Random schedules against a plain model; a failure prints the schedule, made small, as a test of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dispatch.simulation.replay import replay
from dispatch.simulation.schedule import KINDS, drawn
from dispatch.simulation.search import found_by

TESTS = Path(__file__).parents[1]
SCHEDULES = 150
"""For each kind and part: all of it takes about ten seconds on one core."""


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_happens_what_always_holds_does(kind: str, part: int) -> None:
    found = found_by(kind, range(part * SCHEDULES, (part + 1) * SCHEDULES))
    assert found is None, found


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_calls_give_the_same_results(kind: str) -> None:
    for seed in range(20):
        assert str(replay(*drawn(kind, seed))) == str(replay(*drawn(kind, seed)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_calls_give_the_same_results_in_another_process(kind: str) -> None:
    one, other = (_traced(kind, hash_seed) for hash_seed in ("1", "2"))
    assert one == other
    assert one


def _traced(kind: str, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "dispatch.simulation", "trace", kind, "0", "20"]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
