"""The retry policy."""

import pickle
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from milepost.dispatch import Retry


def middle() -> float:
    return 0.5


def test_waits_double_up_to_the_longest() -> None:
    waits = [Retry().wait(attempts, middle) for attempts in range(1, 11)]
    assert waits == [5, 10, 20, 40, 80, 160, 240, 240, 240, 240]


def test_after_the_last_attempt_there_is_no_further_one() -> None:
    assert Retry(attempts=3).wait(2, middle) is not None
    assert Retry(attempts=3).wait(3, middle) is None
    assert Retry(attempts=3).wait(4, middle) is None


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 9.0), (0.5, 10.0), (0.999_999_999, 11.0)])
def test_jitter_makes_waits_longer_or_shorter_by_its_share(chance: float, wait: float) -> None:
    assert Retry(delay=10, jitter=0.1).wait(1, lambda: chance) == pytest.approx(wait)


def test_without_jitter_chance_changes_nothing() -> None:
    assert Retry(delay=10, jitter=0).wait(1, lambda: 0.0) == Retry(delay=10, jitter=0).wait(1, lambda: 0.9) == 10


def test_never_parks_at_the_first_failure() -> None:
    assert Retry.never.wait(1, middle) is None


def test_a_rule_applies_to_a_class_and_those_derived_from_it() -> None:
    policy = Retry(rules={ValueError: Retry.never})
    assert policy.policy_for(UnicodeError) is Retry.never
    assert policy.policy_for(KeyError) is policy
    assert policy.policy_for(None) is policy


def test_the_rule_for_the_closest_class_applies() -> None:
    often = Retry(attempts=100)
    policy = Retry(rules={OSError: Retry.never, ConnectionError: often})
    assert policy.policy_for(ConnectionResetError) is often
    assert policy.policy_for(PermissionError) is Retry.never


def test_waits_of_many_attempts_do_not_overflow() -> None:
    assert Retry(attempts=10**6, jitter=0).wait(10**5, middle) == 240


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"delay": -1},
        {"factor": 0.5},
        {"max_delay": -1},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"delay": float("nan")},
        {"jitter": float("nan")},
        {"attempts": 2**31},
        {"attempts": 1.5},
        {"attempts": "3"},
        {"delay": "5"},
        {"delay": float("inf")},
        {"factor": float("inf")},
        {"max_delay": float("inf")},
        {"rules": {ValueError: None}},
        {"rules": {ValueError: "never"}},
        {"rules": {ValueError: Retry}},
        {"rules": {"ValueError": Retry.never}},
        {"rules": {(ValueError, KeyError): Retry.never}},
        {"rules": {ValueError("x"): Retry.never}},
        {"rules": {int: Retry.never}},
        {"rules": [ValueError]},
        {"rules": None},
    ],
)
def test_values_that_make_no_sense_are_refused_with_their_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Retry(**wrong)


def test_a_misspelt_option_is_corrected() -> None:
    with pytest.raises(TypeError, match="^Retry has no option 'atempts': did you mean 'attempts'"):
        Retry(atempts=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="^Retry has no option 'zzz'; it has attempts, delay, .*, rules$"):
        Retry(zzz=3)  # type: ignore[call-arg]


def test_a_copy_is_equal() -> None:
    policy = Retry(attempts=3)
    assert replace(policy, delay=7) == Retry(attempts=3, delay=7)
    assert pickle.loads(pickle.dumps(policy)) == deepcopy(policy) == policy
