"""What each part of a filter evaluates to."""

import json
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from filter.amounts import checked
from filter.expressions import conditions, strange_messages, write
from filter.naive import Expression, is_refused
from milepost.filter import Explanation, compile_filter


def shown(text: str, properties: dict[str, Any]) -> list[str]:
    return str(compile_filter(text).explain(properties)).split("\n")


def test_each_part_has_its_value() -> None:
    assert shown('amount >= 100 && region == "EU"', {"amount": 120, "region": "US"}) == [
        'amount >= 100 && region == "EU"  false',
        "  amount >= 100                  true",
        "    amount                       120",
        '  region == "EU"                 false',
        '    region                       "US"',
    ]


def test_what_was_skipped_says_so() -> None:
    assert shown("a == 1 || b == 2", {"a": 1}) == [
        "a == 1 || b == 2  true",
        "  a == 1          true",
        "    a             1",
        "  b == 2          not evaluated",
    ]


def test_an_error_is_told_where_it_happened() -> None:
    assert shown("kind == EXPRESS && paid", {"kind": "EXPRESS", "paid": True}) == [
        "kind == EXPRESS && paid  error",
        "  kind == EXPRESS        error",
        '    kind                 "EXPRESS"',
        '    EXPRESS              error: the message has no property "EXPRESS" '
        '(did you mean "EXPRESS"? Without quotes it is a property)',
        "  paid                   not evaluated",
    ]


def test_an_operator_that_fails_has_operands_with_values() -> None:
    assert shown("a / b == 1", {"a": 1, "b": 0}) == [
        "a / b == 1  error",
        "  a / b     error: a division by zero",
        "    a       1",
        "    b       0",
    ]


def test_a_result_that_is_no_boolean() -> None:
    assert shown("a", {"a": 1}) == ["a  error: the result of a filter is a boolean, but this is an integer"]


def test_the_offset_counts_in_the_text_that_was_written() -> None:
    explanation = compile_filter("  ( a=b )").explain({"a": 1})
    assert explanation.text == "a == b"
    assert explanation.problem is not None
    assert explanation.problem.offset == 6


def test_as_plain_data() -> None:
    assert compile_filter("a && !b").explain({"a": True}).as_dict() == {
        "text": "a && !b",
        "status": "error",
        "error": missing("b", 6),
        "children": [
            {"text": "a", "status": "value", "value": True, "children": []},
            {
                "text": "!b",
                "status": "error",
                "error": missing("b", 6),
                "children": [{"text": "b", "status": "error", "error": missing("b", 6), "children": []}],
            },
        ],
    }
    assert compile_filter("a || b").explain({"a": True}).as_dict()["children"][1] == {
        "text": "b",
        "status": "not evaluated",
        "children": [],
    }


def missing(name: str, offset: int) -> dict[str, object]:
    message = f'the message has no property "{name}"'
    return {"kind": "name", "offset": offset, "message": message, "hint": None}


def test_long_texts_and_values_are_cut() -> None:
    long = "a" * 500
    lines = shown(f's == "{long}" || s == "b\n\tc"', {"s": long * 1000 + "\n"})
    assert all(len(line) < 130 for line in lines)
    assert len(lines) == 5


@checked(conditions, strange_messages, st.randoms(use_true_random=False), few=40, many=200)
def test_it_is_whole(expression: Expression, properties: dict[str, Any], style: Any) -> None:
    assume(not is_refused(expression))
    explanation = compile_filter(write(expression, style)).explain(properties)
    assert_whole(explanation)
    assert json.loads(json.dumps(explanation.as_dict())) == explanation.as_dict()
    assert str(explanation).replace("\n", "").isprintable()


def assert_whole(part: Explanation) -> None:
    assert (part.value is not None) + (part.problem is not None) <= 1
    assert part.status in ("value", "error", "not evaluated")
    for child in part.children:
        if child.problem:
            assert part.problem == child.problem
        if part.status == "not evaluated":
            assert child.status == "not evaluated"
        assert_whole(child)
