"""Whatever the text, it is a filter or a FilterError."""

import json
from pathlib import Path

from hypothesis import strategies as st

from filter.amounts import checked
from filter.expressions import NAMES
from milepost.filter import Filter, FilterError, compile_filter
from milepost.filter.parser import parse

TEXTS = [
    json.loads(line)["expr"]
    for line in Path(__file__).with_name("conformance.jsonl").read_text("utf-8").splitlines()
]
PIECES = [
    *("&&", "||", "==", "!=", "<=", ">=", "=", "<", ">", "!", "+", "-", "*", "/", "%", "(", ")"),
    *("and", "or", "not", "true", "false", "exists", "exists(a)", "AND", "&", "|", "'", '"', "\\"),
    *(
        " ",
        "\t",
        "\n",
        "\r",
        "\x00",
        "\u00a0",
        "é",
        "\ud800",
        "0",
        "1",
        "-1",
        "9223372036854775808",
    ),
    *('"a"', '"\\""', '"\\\\"', "1.5", "_", ".", ";", "#", "{0}", "$v0", "%s", *NAMES),
]
MESSAGES: list[dict[str, object]] = [
    {},
    dict.fromkeys(NAMES, True),
    dict.fromkeys(NAMES, 1),
    dict.fromkeys(NAMES, "a"),
]


def use(text: str) -> None:
    compiled = compiled_or_refused(text)
    if isinstance(compiled, FilterError):
        assert compiled.kind in ("syntax", "type", "too_long", "too_complex")
        assert 0 <= compiled.offset <= len(text)
        _, shown, pointer, *_ = str(compiled).split("\n")
        assert pointer.endswith("^")
        assert shown.replace("\t", "").isprintable()
        return
    assert parse(compiled.canonical) == compiled.tree
    for properties in MESSAGES:
        use_on_a_message(compiled, properties)


def use_on_a_message(compiled: Filter, properties: dict[str, object]) -> None:
    assert str(compiled.explain(properties))
    outcome = evaluated(compiled, properties)
    assert compiled.matches(properties) is (outcome is True)
    if isinstance(outcome, FilterError):
        assert outcome.kind in ("name", "type", "arithmetic")
        assert 0 <= outcome.offset < len(compiled.text)


def compiled_or_refused(text: str) -> Filter | FilterError:
    try:
        return compile_filter(text)
    except FilterError as error:
        return error


def evaluated(compiled: Filter, properties: dict[str, object]) -> bool | FilterError:
    try:
        return compiled.evaluate(properties)
    except FilterError as error:
        return error


@checked(st.text(), few=60, many=500)
def test_any_text(text: str) -> None:
    use(text)


@checked(st.binary(), few=60, many=500)
def test_any_bytes(content: bytes) -> None:
    use(content.decode("latin-1"))
    use(content.decode("utf-8", "surrogateescape"))


@checked(st.lists(st.sampled_from(PIECES), max_size=30), few=120, many=1000)
def test_any_pieces(pieces: list[str]) -> None:
    use("".join(pieces))
    use(" ".join(pieces))


@checked(st.sampled_from(TEXTS), st.data(), few=120, many=1000)
def test_a_text_with_typing_errors(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(text)))
        removed = data.draw(st.integers(0, 2))
        inserted = data.draw(st.sampled_from(["", *PIECES]))
        text = text[:position] + inserted + text[position + removed :]
    use(text)
