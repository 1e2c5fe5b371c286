"""The generated code: nothing of a filter's text is in it."""

import re
from random import Random
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from filter import naive
from filter.amounts import checked
from filter.expressions import conditions, full_messages, messages, write
from filter.naive import Expression
from milepost.filter import FilterError, compile_filter, compiler

ALLOWED = re.compile(
    r"(?:def|make|lenient|look_closer|decide|part[0-9]+|p|[kv][0-9]+|while|True|False|None|try|if|is"
    r"|not|and|or|in|else|type|int|str|bool|return|break|except|KeyError|Exception"
    r"|-?9223372036854775808|9223372036854775807|0|[-\s():,=!<>+*/%\[\]])*"
)


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    maker = compiler._maker

    def spy(source: str) -> Any:
        seen.append(source)
        return maker(source)

    monkeypatch.setattr(compiler, "_maker", spy)
    return seen


@pytest.mark.parametrize(
    "text",
    [
        's == "\\"); __import__(\\"os\\").system(\\"true\\") #"',
        's == "\n  return True\n"',
        's == "{0} {body} %s \' \\\\"',
        "__import__ == 1".removeprefix("__"),
        "lambda == 1 && import == 2 && print == 3 && None == 4 && p == 5 && k0 == 6 && v1 == 7",
        "self.__class__.__bases__ == 1",
        "x == 123456789 && y == -987654321",
    ],
)
def test_no_text_becomes_code(text: str, sources: list[str]) -> None:
    compile_filter(text)
    assert len(sources) == 1
    assert ALLOWED.fullmatch(sources[0])


@checked(conditions, st.integers(0, 2**32), few=40, many=200)
def test_the_generated_source_has_only_known_words(expression: Expression, seed: int) -> None:
    assume(not naive.is_refused(expression))
    program = compiler._Program()
    body = compiler._Body(program, depth=1, doubt="break")
    body.decide(compile_filter(write(expression, Random(seed))).tree)
    assert ALLOWED.fullmatch(body.source())


@checked(conditions, full_messages | messages, st.integers(0, 2**32), few=50, many=300)
def test_the_closer_look_is_for_errors_only(expression: Expression, properties: dict[str, Any], seed: int) -> None:
    assume(not naive.is_refused(expression))
    try:
        expected = naive.evaluate(expression, properties)
    except naive.NaiveError:
        return
    tree = compile_filter(write(expression, Random(seed))).tree
    decide = compiler.compile_tree(tree)(False, lambda _: pytest.fail("looked closer"))
    assert decide(properties) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(f && x == 2) || x == 1", True),
        ("(t || x == 2) && x == 1", True),
        ("!(f && s == x) && x == 1", True),
        ('(f && s == 1) == (s == "b")', True),
    ],
)
def test_what_was_skipped_is_not_taken_for_known(text: str, expected: bool) -> None:
    tree = compile_filter(text).tree
    decide = compiler.compile_tree(tree)(False, lambda _: pytest.fail("looked closer"))
    assert decide({"t": True, "f": False, "x": 1, "s": "a"}) is expected


def test_names_that_are_words_of_python_are_names() -> None:
    properties = {"lambda": 1, "None": 2, "p": 3, "k0": 4, "v1": 5, "type": 6, "look_closer": 7}
    text = " && ".join(f"{name} == {value}" for name, value in properties.items())
    assert compile_filter(text).evaluate(properties) is True


def test_filters_of_one_shape_share_their_code(sources: list[str]) -> None:
    codes = {
        getattr(compile_filter(text).matches, "__code__", None)
        for text in ("a == 1", "b == 2", 'c == 10 && d == "x"', 'e == 1 && f == ""')
    }
    assert len(set(sources)) == 2
    assert len(codes) == 2


def test_the_code_has_no_builtins() -> None:
    matches = compile_filter("a == 1").matches
    assert getattr(matches, "__builtins__", None) == {}


@pytest.mark.parametrize("levels", [29, 30])
def test_deep_nesting_is_split_into_parts(levels: int, sources: list[str]) -> None:
    compiled = compile_filter("t && !(f || " * levels + "x" + ")" * levels)
    assert "part0" in sources[0]
    for x in (True, False):
        expected = x is (levels % 2 == 0)
        assert compiled.evaluate({"t": True, "f": False, "x": x}) is expected
        assert compiled.matches({"t": True, "f": False, "x": x}) is expected
    assert compiled.matches({"t": True, "f": False, "x": 1}) is False
    assert compiled.matches({"t": True, "f": False}) is False
    with pytest.raises(FilterError):
        compiled.evaluate({"t": True, "f": False, "x": 1})
