"""Each test is in one shard, and the shards together are all tests."""

from pathlib import Path

import pytest

from shards import ABSENT, COLLECTED, FAST, SHARDS, shard_of

TESTS = Path(__file__).parent


def is_whole(config: pytest.Config) -> bool:
    """Return whether all tests were collected, not some files or names."""
    named = {Path(config.invocation_params.dir, argument.partition("::")[0]).resolve() for argument in config.args}
    return named <= {TESTS} and not config.getoption("-k") and not config.getoption("deselect")


def test_each_test_is_in_one_shard(pytestconfig: pytest.Config) -> None:
    by_shard = pytestconfig.stash[COLLECTED]
    assert by_shard.keys() <= SHARDS.keys()
    names = [name for shard in by_shard.values() for name in shard]
    assert len(set(names)) == len(names)


def test_no_shard_is_empty(pytestconfig: pytest.Config) -> None:
    if not is_whole(pytestconfig):
        pytest.skip("only some of the tests were collected")
    assert pytestconfig.stash[COLLECTED].keys() == SHARDS.keys()


def test_every_package_has_fast_tests(pytestconfig: pytest.Config) -> None:
    if not is_whole(pytestconfig):
        pytest.skip("only some of the tests were collected")
    folders = {name.split("/")[1] for name in pytestconfig.stash[COLLECTED][FAST]}
    packages = {folder.name for folder in TESTS.iterdir() if folder.is_dir() and any(folder.glob("**/test_*.py"))}
    assert packages - folders == {"soak"}


def test_each_variant_that_stays_fast_is_there(pytestconfig: pytest.Config) -> None:
    if not is_whole(pytestconfig):
        pytest.skip("only some of the tests were collected")
    assert pytestconfig.stash[ABSENT] == set()


def test_only_the_variants_that_a_mark_names_stay_fast(request: pytest.FixtureRequest) -> None:
    request.node.add_marker(pytest.mark.shard("faults", fast=["one"]))
    assert shard_of(request.node) == "faults"


def test_a_shard_that_does_not_exist_is_refused(request: pytest.FixtureRequest) -> None:
    request.node.add_marker(pytest.mark.shard("fats"))
    with pytest.raises(pytest.UsageError, match=r"shard must be one of fast, faults, .* got \('fats',\)"):
        shard_of(request.node)
