"""The condition for the database: it never excludes a message that matches."""

import json
from random import Random
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filter import naive
from filter.amounts import AMOUNTS, examples
from filter.expressions import conditions, full_messages, messages, write
from filter.naive import Expression
from milepost.filter import Filter, Pushdown, compile_filter

MET = """
    select
        jsonb_path_match(
            message.properties, filter.path::jsonpath, filter.variables, true
        ) is true
    from
        rows from (jsonb_to_recordset(%s::jsonb) as (path text, variables jsonb))
            with ordinality as filter (path, variables, number),
        jsonb_array_elements(%s::jsonb) with ordinality as message (properties, number)
    order by filter.number, message.number
"""


def met(
    database: psycopg.Connection, pushdowns: list[Pushdown], properties: list[dict[str, Any]]
) -> list[list[bool]]:
    """For each condition, which of the messages meet it."""
    jsonable = [{"path": each.path, "variables": each.variables} for each in pushdowns]
    rows = database.execute(MET, (json.dumps(jsonable), json.dumps(properties))).fetchall()
    width = len(properties)
    return [[row[0] for row in rows[at : at + width]] for at in range(0, len(rows), width)]


def one(database: psycopg.Connection, text: str, properties: dict[str, Any]) -> bool:
    pushdown = compile_filter(text).pushdown()
    assert pushdown is not None
    return met(database, [pushdown], [properties])[0][0]


@AMOUNTS
def test_no_match_is_excluded(filter_database: psycopg.Connection, amount: str) -> None:
    @examples(amount, few=25, many=150)
    @given(
        st.lists(conditions, min_size=1, max_size=8),
        st.lists(full_messages | messages, min_size=1, max_size=20),
        st.integers(0, 2**32),
    )
    def holds(expressions: list[Expression], properties: list[dict[str, Any]], seed: int) -> None:
        style = Random(seed)
        filters = [compile_filter(write(each, style)) for each in expressions if not naive.is_refused(each)]
        check_many(filter_database, filters, properties)

    holds()


def check_many(
    database: psycopg.Connection, filters: list[Filter], properties: list[dict[str, Any]]
) -> tuple[int, int]:
    """Counts the matches and the exclusions, and fails where both happen at once."""
    derived = [(each, pushdown) for each in filters if (pushdown := each.pushdown())]
    matches = exclusions = 0
    outcomes = met(database, [pushdown for _, pushdown in derived], properties)
    for (each, pushdown), passed in zip(derived, outcomes, strict=True):
        for message, is_met in zip(properties, passed, strict=True):
            matched = each.matches(message)
            assert is_met or not matched, (each.text, pushdown, message)
            matches += matched
            exclusions += not is_met
    return matches, exclusions


def test_it_is_useful(filter_database: psycopg.Connection) -> None:
    """The test above would also hold for a condition that excludes nothing."""
    style = Random(1)
    filters, properties = [], []
    for _ in range(150):
        x, y, z = (style.choice(["a", "b", "c"]) for _ in range(3))
        n, m = style.randint(-2, 2), style.randint(-2, 2)
        operator = style.choice(["==", "!=", "<", "<=", ">", ">="])
        join = style.choice(["&&", "||"])
        negation = style.choice(["", "!"])
        filters.append(compile_filter(f"{negation}({x} {operator} {n} {join} {y} + {m} > {z} % 3)"))
        properties.append({"a": n, "b": m, "c": style.randint(-2, 2)})
    matches, exclusions = check_many(filter_database, filters, properties)
    total = len(filters) * len(properties)
    assert matches > total // 5
    # All properties are there and all types are right, so here the condition is exact.
    assert matches + exclusions == total


@pytest.mark.parametrize(
    ("text", "path", "variables"),
    [
        ("a == 1", '$."a" == $v0', {"v0": 1}),
        ('a == "x"', '$."a" == $v0', {"v0": "x"}),
        ("1 < a", '$v0 < $."a"', {"v0": 1}),
        ("a", '$."a" == true', {}),
        ("!a", '$."a" == false', {}),
        ("a == true", '$."a" == $v0', {"v0": True}),
        ("x.y != 1", '$."x.y" != $v0', {"v0": 1}),
        ("exists(a)", 'exists ($."a")', {}),
        ("!exists(a)", '!exists ($."a")', {}),
        ("exists(a) == false", '!exists ($."a")', {}),
        ("(a < 1) != true", '$."a" >= $v0', {"v0": 1}),
        ("a == b", '$."a" == $."b"', {}),
        ("b / 2 == 1 && a == 1", '($."a" == $v0)', {"v0": 1}),
        ("(b / 2 == 1 || b == 1) && a == 5", '($."a" == $v0)', {"v0": 5}),
        ("a == 1 && b == 1", '($."a" == $v0) && ($."b" == $v0)', {"v0": 1}),
        ("a == 1 || b == 2", '($."a" == $v0) || ($."b" == $v1)', {"v0": 1, "v1": 2}),
        ("a && (b || c)", '($."a" == true) && (($."b" == true) || ($."c" == true))', {}),
        ("!(a == 1 || b < 2)", '($."a" != $v0) && ($."b" >= $v1)', {"v0": 1, "v1": 2}),
        ("!(a == 1 && b < 2)", '($."a" != $v0) || ($."b" >= $v1)', {"v0": 1, "v1": 2}),
        ("-a + 1 > 2 * b", '((-$."a") + $v0) > ($v1 * $."b")', {"v0": 1, "v1": 2}),
        ("false || a == 1", '($."a" == $v0)', {"v0": 1}),
        ("true && a == 1", '($."a" == $v0)', {"v0": 1}),
        ("a == 1 && false", "1 == 2", {}),
    ],
)
def test_a_filter_and_its_condition(text: str, path: str, variables: dict[str, Any]) -> None:
    assert compile_filter(text).pushdown() == Pushdown(path, variables)


@pytest.mark.parametrize(
    "text",
    [
        "true",
        "a / 2 == 1",
        "a == 1 || b / 2 == 1",
        "!(a == 1 && b / 2 == 1)",
        's == "\x00"',
        "(a == 1) == (b == 2)",
    ],
)
def test_nothing_is_implied(text: str) -> None:
    assert compile_filter(text).pushdown() is None


def test_one_and_true_are_two_variables() -> None:
    pushdown = compile_filter("a == 1 && b == true && c != false && d == 0").pushdown()
    assert pushdown is not None
    assert json.dumps(pushdown.variables) == '{"v0": 1, "v1": true, "v2": false, "v3": 0}'


@pytest.mark.parametrize(
    ("text", "properties", "expected"),
    [
        ("a == 1 || m > 2", {"a": 1}, True),
        ("a == 1 || m > 2", {"a": 2}, False),
        ("!(a == 1)", {}, False),
        ("!(a == 1)", {"a": "x"}, False),
        ("!(a == 1)", {"a": 2}, True),
        ("!exists(a)", {}, True),
        ("!exists(a)", {"a": 1}, False),
        ("a < 9223372036854775807", {"a": 9223372036854775806}, True),
        ("a < 9223372036854775807", {"a": 9223372036854775807}, False),
        ("a % 3 == -1", {"a": -7}, True),
        ("a % 0 == 1", {"a": -7}, False),
        ("a.b == 1", {"a": {"b": 1}}, False),
        ("a && b == 1", {"a": True, "b": 1}, True),
        ("a", {"a": 1}, False),
        ("a == 1 && false", {"a": 1}, False),
    ],
)
def test_in_the_database(
    filter_database: psycopg.Connection, text: str, properties: dict[str, Any], expected: bool
) -> None:
    assert one(filter_database, text, properties) is expected


def test_strings_have_the_same_order_in_the_database(filter_database: psycopg.Connection) -> None:
    strings = [
        *("", "A", "a", "b", "z", "Z", "0", " ", "é", "e\u0301", "ß", "\x7f", "\u0080", "\u07ff"),
        *("\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff", "a\U00010000", "aa"),
    ]
    less = compile_filter("s < t")
    pairs = [{"s": s, "t": t} for s in strings for t in strings]
    pushdown = less.pushdown()
    assert pushdown is not None
    assert met(filter_database, [pushdown], pairs)[0] == [less.matches(pair) for pair in pairs]


def test_the_largest_filters_have_conditions_that_the_database_takes(
    filter_database: psycopg.Connection,
) -> None:
    for text in (
        "+".join(["x"] * 256) + "==256",
        "*".join(["x"] * 256) + "==1",
        "&&".join(["t"] * 257),
        "(f||t&&" * 64 + "t" + ")" * 64,
        "-" * 64 + "x == 1",
        "||".join(f"x=={number}" for number in range(128)),
        's == "' + "é" * 2000 + '" || t',
    ):
        assert one(filter_database, text, {"x": 1, "t": True, "f": False, "s": ""})
        one(filter_database, text, {"x": 2**63 - 1, "t": True, "f": False, "s": ""})
