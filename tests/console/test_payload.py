"""Payloads as people read them."""

from milepost.console.payload import payload_of


def test_a_line_for_each_value() -> None:
    assert (
        payload_of('{"a": [1, {"b": null}]}').text == '{\n  "a": [\n    1,\n    {\n      "b": null\n    }\n  ]\n}'
    )


def test_what_is_nested_deeply_stays_as_it_is() -> None:
    """It would have a thousand spaces before each of its values."""
    deep = "[" * 500 + "1, " * 100_000 + "1" + "]" * 500
    assert payload_of(deep, None).text == deep
    assert payload_of("[" * 500 + "1" + "]" * 500, None).text.count("\n") == 1000


def test_no_json() -> None:
    assert payload_of("[1,").text == "[1,"
