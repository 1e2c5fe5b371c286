"""The filter object."""

import pickle
from copy import deepcopy

import pytest

import milepost.filter
from milepost.filter import Filter, FilterError, compile_filter


def test_it_keeps_its_text() -> None:
    compiled = compile_filter("a=1 and b")
    assert compiled.text == "a=1 and b"
    assert compiled.canonical == "a == 1 && b"
    assert repr(compiled) == "compile_filter('a=1 and b')"


def test_it_knows_the_properties_it_mentions() -> None:
    assert compile_filter("a == 1 && exists(b) || !a && x.y < 2").names == {"a", "b", "x.y"}
    assert compile_filter("true").names == frozenset()


def test_it_is_equal_by_its_canonical_text() -> None:
    assert compile_filter("a=1") == compile_filter("(a) == 1")
    assert compile_filter("a == 1") != compile_filter("1 == a")
    assert compile_filter("a") != "a"
    assert len({compile_filter("a and b"), compile_filter("a && b")}) == 1


def test_it_can_be_copied_and_sent_to_another_process() -> None:
    compiled = compile_filter("a=1")
    for copy in (pickle.loads(pickle.dumps(compiled)), deepcopy(compiled)):
        assert copy == compiled
        assert copy.text == compiled.text
        assert copy.matches({"a": 1})


def test_a_filter_can_be_made_only_from_a_good_text() -> None:
    with pytest.raises(FilterError):
        Filter("a ==")


def test_the_package_says_what_it_exports() -> None:
    for name in milepost.filter.__all__:
        assert hasattr(milepost.filter, name)
    assert milepost.filter.FilterError is FilterError
