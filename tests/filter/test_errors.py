"""Errors that tell a person where it is and what was expected."""

import pytest

from milepost.filter import FilterError, compile_filter


def refused(text: str) -> FilterError:
    with pytest.raises(FilterError) as caught:
        compile_filter(text)
    return caught.value


def caret(error: FilterError) -> str:
    """The character above the caret, or nothing if it is after the last."""
    _, shown, pointer, *_ = str(error).split("\n")
    assert pointer.rstrip("^").strip() == ""
    return shown[len(pointer) - 1 : len(pointer)]


@pytest.mark.parametrize(
    ("text", "offset", "hint"),
    [
        ("a & b", 2, 'did you mean "&&"?'),
        ("nto a", 4, 'did you mean "not"?'),
        ("noot (a)", 5, 'did you mean "not"?'),
        ("a ro b", 2, 'did you mean "or"?'),
        ("a | b", 2, 'did you mean "||"?'),
        ("s == 'foo'", 5, 'did you mean "foo"?'),
        ("s == `foo`", 5, 'did you mean "foo"?'),
        ("s == “foo”", 5, 'did you mean "foo"?'),
        ("s == ‘foo’", 5, 'did you mean "foo"?'),  # noqa: RUF001
        ("s == 'say \"hi\"'", 5, "double quotes"),
        ("a == 1 AND b", 7, 'did you mean "and"?'),
        ("a == 1 Or b", 7, 'did you mean "or"?'),
        ("a adn b", 2, 'did you mean "and"?'),
        ("(a ANd b)", 3, 'did you mean "and"?'),
        ("NOT a", 4, 'did you mean "not"?'),
        ("Not (a)", 4, 'did you mean "not"?'),
        ("a <> 1", 3, 'did you mean "!="?'),
        ("a =< 1", 3, 'did you mean "<="?'),
        ("a => 1", 3, 'did you mean ">="?'),
        ("a === 1", 4, 'did you mean "=="?'),
        ("a !== 1", 4, 'did you mean "!="?'),
        ("a < = 1", 4, 'did you mean "<="?'),
        ("a ! = 1", 2, 'did you mean "!="?'),
        ("a ≥ 1", 2, 'did you mean ">="?'),
        ("Exists(a)", 6, 'did you mean "exists"?'),
        ("length(a) > 1", 6, "the only function"),
        ("_a == 1", 0, "starts with a letter"),
        ("hé == 1", 1, "ASCII"),
        ("1Y == 1", 0, "starts with a letter"),
        ("a == 1.5", 5, "digits only"),
        (r's == "a\nb"', 7, "a backslash is written twice"),
        (r's == "foo\"', 5, "part of the string"),
        ("a < b < c", 6, "do not chain"),
        ("!a == 1", 3, "binds tighter"),
        ("not a < 1", 6, "binds tighter"),
        ("a == 1 || 2", 10, "a condition of its own"),
    ],
)
def test_what_was_probably_meant(text: str, offset: int, hint: str) -> None:
    error = refused(text)
    assert error.offset == offset
    assert hint in str(error).split("\n")[-1]
    assert caret(error) == text[offset]


@pytest.mark.parametrize(
    ("text", "offset", "summary"),
    [
        ("", 0, "expected a value, found the end"),
        (" \n ", 0, "expected a value, found the end"),
        ("a ==", 4, "expected a value, found the end"),
        ("a ==\n\n  ", 4, "expected a value, found the end"),
        ("a && && b", 5, 'expected a value, found "&&"'),
        ("a b", 2, 'expected an operator or the end, found "b"'),
        ('a "b\n"', 2, "expected an operator or the end, found the string"),
        ("a)", 1, 'expected an operator or the end, found ")"'),
        ("(a", 2, 'expected an operator or ")", found the end'),
        ("()", 1, 'expected a value, found ")"'),
        ("exists(1)", 7, 'expected the name of a property, found "1"'),
        ("exists(a b)", 9, 'expected ")", found "b"'),
        ("a; b", 1, 'expected an operator or the end, found ";"'),
        ("a\u00a0== 1", 1, "found U+00A0 (no-break space)"),
        ("a == \x00", 5, "found U+0000"),
        ("\ud800", 0, "found U+D800"),
        ('s == "\ud800"', 6, "expected a character, found half of one"),
        ('s == "a', 5, "expected a closing quote"),
        ("x == 9223372036854775808", 5, "expected an integer from -9223372036854775808"),
        ("x == -9223372036854775809", 5, "expected an integer from -9223372036854775808"),
        ("x == -(9223372036854775808)", 7, "expected an integer from -9223372036854775808"),
        ("x == 10000000000000000000", 5, "expected an integer from -9223372036854775808"),
        ("x == " + "9" * 4000, 5, "expected an integer from -9223372036854775808"),
    ],
)
def test_what_was_expected(text: str, offset: int, summary: str) -> None:
    error = refused(text)
    assert error.kind == "syntax"
    assert error.offset == offset
    assert summary in str(error).split("\n")[0]


@pytest.mark.parametrize(
    ("text", "offset", "summary"),
    [
        ('1 == "a"', 2, '"==" compares values of one type, not an integer with a string'),
        ("true < false", 5, '"<" compares integers or strings, not booleans'),
        ('x + "a" == 1', 4, '"+" takes an integer, but this is a string'),
        ("-true == 1", 1, '"-" takes an integer, but this is a boolean'),
        ('!"a"', 1, '"!" takes a boolean, but this is a string'),
        ("a && 1", 5, '"&&" takes a boolean, but this is an integer'),
        ("false && 1 == true", 11, '"==" compares values of one type'),
        ("x + 33", 2, "the result of a filter is a boolean, but this is an integer"),
        ('"a"', 0, "the result of a filter is a boolean, but this is a string"),
    ],
)
def test_a_wrong_type_is_refused_without_a_message(text: str, offset: int, summary: str) -> None:
    error = refused(text)
    assert error.kind == "type"
    assert error.offset == offset
    assert summary in str(error)


def test_the_whole_message() -> None:
    assert str(refused("amount >= 100 & region")).split("\n") == [
        'expected an operator or the end, found "&"',
        "    amount >= 100 & region",
        "                  ^",
        'did you mean "&&"?',
    ]


def test_only_the_line_in_question_is_shown() -> None:
    error = refused("a == 1\n\t&& b == 2 &\r\n c")
    assert str(error).split("\n")[1:3] == ["    \t&& b == 2 &", "    \t          ^"]


def test_a_long_line_is_cut_around_the_place() -> None:
    for before, after in ((0, 4000), (4000, 0), (2000, 2000), (60, 60)):
        error = refused("a" * before + " & " + "b" * after)
        _, shown, _, *_ = str(error).split("\n")
        assert len(shown) < 90
        assert caret(error) == "&"


def test_the_caret_is_right_after_wide_and_combining_characters() -> None:
    _, shown, pointer, _ = str(refused('"日本" == s & t')).split("\n")
    assert shown.strip() == '"日本" == s & t'
    assert len(pointer) - 1 == shown.index("&") + 2
    _, shown, pointer, _ = str(refused('"e\u0301" == s & t')).split("\n")
    assert len(pointer) - 1 == shown.index("&") - 1


def test_nothing_invisible_is_shown() -> None:
    message = str(refused("\u202ea\x1b[31m == \ud800"))
    assert message.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("text", "properties", "kind", "offset", "hint"),
    [
        ("OrderType == EXPRESS", {"OrderType": "EXPRESS"}, "name", 13, 'did you mean "EXPRESS"?'),
        ("a == 1 && b == C", {"a": 1, "b": "C"}, "name", 15, 'did you mean "C"?'),
        ("TRUE", {}, "name", 0, 'did you mean "true"?'),
        ("Ask == 1", {"ask": 1}, "name", 0, 'the message has "ask"'),
        ("a == b", {"b": 1}, "name", 0, None),
        ("a + 1 == 2", {"a": "1"}, "type", 0, None),
        ("a / b == 2", {"a": 1, "b": 0}, "arithmetic", 2, None),
        ("a * a == 2", {"a": 2**62}, "arithmetic", 2, None),
    ],
)
def test_an_evaluation_that_fails(
    text: str, properties: dict[str, object], kind: str, offset: int, hint: str | None
) -> None:
    with pytest.raises(FilterError) as caught:
        compile_filter(text).evaluate(properties)
    error = caught.value
    assert (error.kind, error.offset) == (kind, offset)
    assert caret(error) == text[offset]
    if hint:
        assert hint in str(error)
    else:
        assert "did you mean" not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None
