"""How many examples a property is tried on: a few that are always the same, or many that are not."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

AMOUNTS = pytest.mark.parametrize("amount", ["few", pytest.param("many", marks=pytest.mark.shard("hostile"))])
"""Gives a test the name of an amount; it has many in the shard `hostile`."""


def examples(amount: str, *, few: int, many: int) -> settings:
    """Return the settings for an amount."""
    if amount == "few":
        return settings(deadline=None, max_examples=few, derandomize=True)
    return settings(deadline=None, max_examples=many)


def checked(
    *strategies: SearchStrategy[Any], few: int, many: int
) -> Callable[[Callable[..., None]], Callable[[str], None]]:
    """Make a test of a property that takes an example of each strategy."""

    def decorate(holds: Callable[..., None]) -> Callable[[str], None]:
        @AMOUNTS
        def test(amount: str) -> None:
            examples(amount, few=few, many=many)(given(*strategies)(holds))()

        test.__doc__ = holds.__doc__
        return test

    return decorate
