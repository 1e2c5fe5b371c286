"""What a filter says about a message."""

from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st

from filter import naive
from filter.amounts import checked
from filter.expressions import (
    anything,
    conditions,
    full_messages,
    messages,
    strange_messages,
    write,
)
from filter.naive import Expression, NaiveError
from milepost.filter import FilterError, compile_filter


@checked(conditions, full_messages | messages | strange_messages, st.integers(0, 2**32), few=120, many=800)
def test_a_condition_is_what_the_naive_evaluator_says(
    expression: Expression, properties: dict[str, Any], seed: int
) -> None:
    assert_agreement(expression, properties, seed)


@checked(anything, full_messages, st.integers(0, 2**32), few=60, many=300)
def test_any_expression_is_what_the_naive_evaluator_says(
    expression: Expression, properties: dict[str, Any], seed: int
) -> None:
    assert_agreement(expression, properties, seed)


def assert_agreement(expression: Expression, properties: dict[str, Any], seed: int) -> None:
    text = write(expression, Random(seed))
    if naive.is_refused(expression):
        with pytest.raises(FilterError) as refused:
            compile_filter(text)
        assert refused.value.kind == "type"
        return
    compiled = compile_filter(text)
    expected: bool | str
    try:
        expected = naive.evaluate(expression, properties)
    except NaiveError as error:
        expected = str(error)
    explanation = compiled.explain(properties)
    if isinstance(expected, str):
        with pytest.raises(FilterError) as failed:
            compiled.evaluate(properties)
        assert failed.value.kind == expected
        assert explanation.problem is not None
        assert explanation.problem.kind == expected
        assert explanation.problem.offset == failed.value.offset
    else:
        assert compiled.evaluate(properties) is expected
        assert explanation.value is expected
    assert compiled.matches(properties) is (expected is True)


@pytest.mark.parametrize(
    ("text", "properties", "expected"),
    [
        ("x / -1 == x", {"x": -(2**63)}, "arithmetic"),
        ("x % -1 == 0", {"x": -(2**63)}, True),
        ("-x == x", {"x": -(2**63)}, "arithmetic"),
        ("- 9223372036854775808 == x", {"x": -(2**63)}, True),
        ("--9223372036854775808 == x", {"x": 1}, "arithmetic"),
        ("x - 1 < 0", {"x": -(2**63)}, "arithmetic"),
        ("x * 2 - x > 0", {"x": 2**62}, "arithmetic"),
        ("x + 1 - 1 == x", {"x": 2**63 - 1}, "arithmetic"),
        ("x > 0", {"x": 2**63}, "type"),
        ("x == y", {"x": 2**63, "y": 2**63}, "type"),
        ("x != y", {"x": 1.5, "y": 1.5}, "type"),
        ("x == y", {"x": None, "y": None}, "type"),
        ("x == y", {"x": True, "y": 1}, "type"),
        ("x < y", {"x": True, "y": False}, "type"),
        ("b && b < c", {"b": True, "c": True}, "type"),
        ("x == 1 && x == y", {"x": 1, "y": True}, "type"),
        ("x == 1 && x == y", {"x": 1, "y": 1}, True),
        ('x == 1 || x == "1"', {"x": "1"}, "type"),
        ("s + m == 1", {"s": "a"}, "name"),
        ("m + s == 1", {"s": "a"}, "name"),
        ("x && m", {"x": 1}, "type"),
        ("t && x", {"t": True, "x": 1}, "type"),
        ("f || x", {"f": False, "x": 1}, "type"),
        ("(f && m) || t", {"f": False, "t": True}, True),
        ("(f && m) || m == 1 || t", {"f": False, "t": True, "m": 2}, True),
        ("!(t || m)", {"t": True}, False),
        ("!(f || m)", {"f": False}, "name"),
        ("exists(x) && x > 1", {}, False),
        ("exists(x)", {"x": None}, True),
        ("007 == x", {"x": 7}, True),
        ("s < t", {"s": "\uffff", "t": "\U00010000"}, True),
        ('s == "\'; import os"', {"s": "'; import os"}, True),
        ("a.b == 1", {"a.b": 1, "a": {"b": 2}}, True),
    ],
)
def test_a_corner_of_the_rules(text: str, properties: dict[str, Any], expected: bool | str) -> None:
    compiled = compile_filter(text)
    assert compiled.matches(properties) is (expected is True)
    if isinstance(expected, bool):
        assert compiled.evaluate(properties) is expected
        return
    with pytest.raises(FilterError) as failed:
        compiled.evaluate(properties)
    assert failed.value.kind == expected
