"""How large a filter may be, and that the largest still works."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from milepost.filter import MAX_BYTES, MAX_LEVELS, MAX_OPERATORS, FilterError, FilterIndex, compile_filter


def kind_of_refusal(text: str) -> str | None:
    try:
        compile_filter(text)
    except FilterError as error:
        return error.kind
    return None


def test_bytes_not_characters_are_counted() -> None:
    assert MAX_BYTES == 4096
    for character in ("a", "é", "日", "\U00010000"):
        size = len(character.encode())
        fitting = f's == "{character * ((MAX_BYTES - 7) // size)}"'
        fitting += " " * (MAX_BYTES - len(fitting.encode()))
        assert kind_of_refusal(fitting) is None
        assert kind_of_refusal(fitting + " ") == "too_long"
    assert kind_of_refusal("\ud800" * MAX_BYTES) == "too_long"
    assert kind_of_refusal("é" * 1_000_000) == "too_long"


@pytest.mark.parametrize("operator", ["&&", "||", "=="])
def test_operators(operator: str) -> None:
    assert MAX_OPERATORS == 256
    assert kind_of_refusal(operator.join(["a"] * 257)) is None
    assert kind_of_refusal(operator.join(["a"] * 258)) == "too_complex"


def test_a_sign_is_not_an_operator() -> None:
    assert kind_of_refusal("+".join(["-1"] * 256) + "==-256") is None
    assert kind_of_refusal("+".join(["-x"] * 128) + "==-128") is None
    assert kind_of_refusal("+".join(["-x"] * 129) + "==-128") == "too_complex"


@pytest.mark.parametrize(("opening", "closing"), [("(", ")"), ("!", ""), ("not ", ""), ("!(", ")"), ("(!", ")")])
def test_levels(opening: str, closing: str) -> None:
    levels_each = 2 if "(" in opening and "!" in opening else 1
    most = MAX_LEVELS // levels_each
    assert MAX_LEVELS == 64
    assert kind_of_refusal(opening * most + "a" + closing * most) is None
    assert kind_of_refusal(opening * (most + 1) + "a" + closing * (most + 1)) == "too_complex"


def test_levels_of_minus() -> None:
    assert kind_of_refusal("-" * 64 + "x == 1") is None
    assert kind_of_refusal("-" * 65 + "x == 1") == "too_complex"
    assert kind_of_refusal("-" * 65 + "1 == x") is None
    assert kind_of_refusal("-" * 66 + "1 == x") == "too_complex"


def test_levels_one_after_the_other_do_not_add_up() -> None:
    nested = "(" * 64 + "a" + ")" * 64
    assert kind_of_refusal(f"{nested} && {nested}") is None
    assert kind_of_refusal(" && ".join(["!" * 60 + "a"] * 4)) is None


@pytest.mark.parametrize("opening", ["(", "!", "-", "!(", "-(", "exists(", "a&&(", "not "])
def test_nesting_without_end(opening: str) -> None:
    text = (opening * MAX_BYTES)[:MAX_BYTES]
    assert kind_of_refusal(text) in ("syntax", "too_complex")


def nested(level: str, count: int, innermost: str, closing: str = ")") -> str:
    return level * count + innermost + closing * count


LARGEST = {
    "sum": "+".join(["x"] * 256) + "==256",
    "equalities": "==".join(["t"] * 257),
    "conjunction": "&&".join(["t"] * 257),
    "alternating to the right": nested("(f||t&&", 64, "t"),
    "alternating to the left": "(" * 64 + "t" + "&&t||f)" * 64,
    "comparisons to the right": nested("f||t&&t==(", 64, "t"),
    "negations": nested("t&&!(f||", 31, "f") + " || t",
    "products": nested("x*x+0*(", 64, "x") + " == 1",
    "signs": "-" * 64 + "x == 1",
}


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_filters_work(name: str) -> None:
    compiled = compile_filter(LARGEST[name])
    properties: dict[str, Any] = {"t": True, "f": False, "x": 1}
    assert compiled.evaluate(properties) is True
    assert compiled.matches(properties) is True
    assert compiled.explain(properties).value is True
    assert compiled.matches({}) is False
    assert compiled.matches({"t": 1.5, "f": 1.5, "x": 1.5}) is False


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_filters_work_far_down_the_stack(name: str) -> None:
    def use() -> None:
        compiled = compile_filter(LARGEST[name])
        for properties in ({"t": True, "f": False, "x": 1}, {"t": 1}, {"t": True, "f": 1.5}):
            compiled.matches(properties)
            explanation = compiled.explain(properties)
            assert str(explanation)
            assert explanation.as_dict()
        compiled.pushdown()
        FilterIndex[int]().add(compiled, 0, 1)

    with_frames_left(550, use)


def with_frames_left(frames: int, call: Callable[[], None]) -> None:
    def descend(frames_above: int) -> None:
        if frames_above:
            descend(frames_above - 1)
        else:
            call()

    frame, used = sys._getframe(), 0
    while frame.f_back:
        frame, used = frame.f_back, used + 1
    descend(max(0, sys.getrecursionlimit() - used - frames))
