"""The one text of all filters that differ only in how they are written."""

from random import Random

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from filter import naive
from filter.amounts import checked
from filter.expressions import anything, conditions, write
from filter.naive import Expression
from milepost.filter import compile_filter
from milepost.filter.canonical import canonical
from milepost.filter.parser import parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", "a == 1"),
        ("((a) ==(1))and not(b or c)", "a == 1 && !(b || c)"),
        ("a && (b && c)", "a && b && c"),
        ("(a || b) || (c || d)", "a || b || c || d"),
        ("a || (b && c)", "a || b && c"),
        ("(a || b) && c", "(a || b) && c"),
        ("(a - b) - c == 0", "a - b - c == 0"),
        ("a - (b - c) == 0", "a - (b - c) == 0"),
        ("a + (b + c) == 0", "a + (b + c) == 0"),
        ("(a * b) + c == 0", "a * b + c == 0"),
        ("a * (b + c) == 0", "a * (b + c) == 0"),
        ("(a == b) == c", "a == b == c"),
        ("a == (b == c)", "a == (b == c)"),
        ("(a < b) == c", "a < b == c"),
        ("!(a)", "!a"),
        ("! ! a", "!!a"),
        ("!(a == b)", "!(a == b)"),
        ("x == 007", "x == 7"),
        ("x == -0", "x == 0"),
        ("x == --0", "x == 0"),
        ("x == - 5", "x == -5"),
        ("x == -(5)", "x == -5"),
        ("x == -(-5)", "x == --5"),
        ("x--1 == 2", "x - -1 == 2"),
        ("x-1 == 2", "x - 1 == 2"),
        ("-(x) == 2", "-x == 2"),
        ("-(x + 1) == 2", "-(x + 1) == 2"),
        ("x == - 9223372036854775808", "x == -9223372036854775808"),
        ("exists ( x )", "exists(x)"),
        (r's == "a\"b\\c"', r's == "a\"b\\c"'),
        ("true or false", "true || false"),
    ],
)
def test_a_text_and_its_canonical_form(text: str, expected: str) -> None:
    compiled = compile_filter(text)
    assert compiled.canonical == expected
    assert compile_filter(expected).canonical == expected


@checked(anything, st.integers(0, 2**32), few=80, many=400)
def test_it_is_read_back_as_the_same_tree(expression: Expression, seed: int) -> None:
    tree = parse(write(expression, Random(seed)))
    again = parse(canonical(tree))
    assert again == tree
    assert canonical(again) == canonical(tree)


@checked(conditions, st.integers(0, 2**32), st.integers(0, 2**32), few=40, many=200)
def test_how_it_is_written_makes_no_difference(expression: Expression, one: int, other: int) -> None:
    assume(not naive.is_refused(expression))
    first = compile_filter(write(expression, Random(one)))
    second = compile_filter(write(expression, Random(other)))
    assert first.canonical == second.canonical
    assert first == second
    assert hash(first) == hash(second)
