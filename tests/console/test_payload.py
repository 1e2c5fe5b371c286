"""Payloads as people read them."""

from milepost.console.templating import format_payload


def test_a_line_for_each_value() -> None:
    assert (
        format_payload('{"a": [1, {"b": null}]}').text
        == '{\n  "a": [\n    1,\n    {\n      "b": null\n    }\n  ]\n}'
    )


def test_what_is_nested_deeply_stays_as_it_is() -> None:
    """It would have a thousand spaces before each of its values."""
    deep = "[" * 500 + "1, " * 100_000 + "1" + "]" * 500
    assert format_payload(deep, None).text == deep
    assert format_payload("[" * 500 + "1" + "]" * 500, None).text.count("\n") == 1000


def test_no_json() -> None:
    assert format_payload("[1,").text == "[1,"
