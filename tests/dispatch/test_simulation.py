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
PARTS = (
    range(15),
    pytest.param(range(40, 150), marks=pytest.mark.shard("simulation")),
    pytest.param(range(150, 300), marks=pytest.mark.shard("simulation")),
    pytest.param(range(15, 40), marks=pytest.mark.shard("simulation")),
)
"""The schedules of each kind, in parts: all of them take about ten seconds on one core."""


@pytest.mark.parametrize("seeds", PARTS, ids=range(len(PARTS)))
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_happens_what_always_holds_does(kind: str, seeds: range) -> None:
    found = found_by(kind, seeds)
    assert found is None, found


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_calls_give_the_same_results(kind: str) -> None:
    check_results(kind, range(4))


@pytest.mark.shard("simulation")
@pytest.mark.parametrize("kind", KINDS)
def test_more_of_the_same_calls_give_the_same_results(kind: str) -> None:
    check_results(kind, range(4, 24))


def check_results(kind: str, seeds: range) -> None:
    for seed in seeds:
        assert str(replay(*drawn(kind, seed))) == str(replay(*drawn(kind, seed)))


@pytest.mark.shard("simulation")
def test_a_few_calls_of_each_kind_give_the_same_results_in_another_process() -> None:
    one, other = (_traced(",".join(KINDS), 3, hash_seed) for hash_seed in ("1", "2"))
    assert one == other
    assert one


@pytest.mark.shard("simulation")
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_calls_give_the_same_results_in_another_process(kind: str) -> None:
    one, other = (_traced(kind, 20, hash_seed) for hash_seed in ("1", "2"))
    assert one == other
    assert one


def _traced(kinds: str, schedules: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "dispatch.simulation", "trace", kinds, "0", str(schedules)]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
