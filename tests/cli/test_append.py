"""`milepost append` with one message: what words mean, and what is refused."""

import psycopg
import pytest
from psycopg import sql

from cli.program import Run

ID = "0190a5f4-3c1e-7cc1-9e56-8d4f1b1f0001"


def test_a_message_is_appended_with_everything_it_has(run: Run) -> None:
    words = ["append", "order-42", "order.placed", '{"amount": 120}', "--id", ID]
    words += ["--property", "amount=120", "--property", "region=EU", "--metadata", "correlation_id=7"]
    assert run(*words).done().out == "appended: version 1 of its stream, position 1\n"
    (line,) = run("read", "--json").done().lines
    assert (line["stream"], line["type"], line["data"]) == ("order-42", "order.placed", {"amount": 120})
    assert line["properties"] == {"amount": 120, "region": "EU"}
    assert line["metadata"] == {"correlation_id": "7"}
    assert (line["id"], line["version"], line["position"]) == (ID, 1, 1)


def test_a_large_position_can_be_given_to_other_commands(run: Run, database_url: str, schema: str) -> None:
    run("append", "order-1", "t", "1").done()
    with psycopg.connect(database_url) as connection:
        sequence = sql.Identifier(schema, "messages_position_seq").as_string(connection)
        connection.execute("select setval(%s, 81243)", [sequence])
    assert run("append", "order-1", "t", "2").done().out == "appended: version 2 of its stream, position 81244\n"


def test_the_same_id_again_is_a_duplicate(run: Run) -> None:
    words = ["append", "order-1", "t", "1", "--id", ID, "--json"]
    appended = {"stream": "order-1", "version": 1, "position": 1, "count": 1}
    assert run(*words).json == {**appended, "duplicate": False}
    assert run(*words).json == {**appended, "duplicate": True}
    assert "was there already" in run(*words[:-1]).done().out
    run("append", "order-1", "t", "2", "--id", ID).refused("other content")


@pytest.mark.shard(
    "variants",
    fast=["12-12", "9223372036854775807-9223372036854775807", "true-True", "01234-01234", "1.5-1.5", '"123"-123'],
)
@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("12", 12),
        ("-7", -7),
        ("0", 0),
        ("9223372036854775807", 2**63 - 1),
        ("true", True),
        ("false", False),
        ("True", "True"),
        ("01234", "01234"),
        ("+5", "+5"),
        ("1.5", "1.5"),
        ("", ""),
        ("a=b", "a=b"),
        ("héllo", "héllo"),
        ('"123"', "123"),
        ('"a\\nb"', "a\nb"),
        ("١٢", "١٢"),
    ],
)
def test_what_the_value_of_a_property_means(run: Run, word: str, value: object) -> None:
    run("append", "a-1", "t", "null", "--property", f"p={word}").done()
    properties = run("read", "--json").lines[0]["properties"]
    assert properties == {"p": value}
    assert type(properties["p"]) is type(value)


@pytest.mark.shard("variants", fast=["any-True", "stream-exists-True", "1-False"])
@pytest.mark.parametrize(
    ("expected", "appended"),
    [("any", True), ("2", True), ("stream-exists", True), ("no-stream", False), ("1", False), ("0", False)],
)
def test_the_expected_version(run: Run, expected: str, appended: bool) -> None:
    for _ in range(2):
        run("append", "a-1", "t", "1").done()
    outcome = run("append", "a-1", "t", "1", "--expected", expected)
    if appended:
        outcome.done()
    else:
        outcome.refused("is at version 2", "read it again")


def test_the_payload_from_standard_input(run: Run) -> None:
    run("append", "a-1", "t", "-", stdin=b'{"x": 0.10000000000000000000000001}\n').done()
    assert '"data":{"x": 0.10000000000000000000000001}' in run("read", "--json").out


def test_any_json_value_is_a_payload(run: Run) -> None:
    values = ["null", "true", "17", '"text"', "[]", "{}", '{"a": [1, {"b": "☃"}]}']
    for value in values:
        run("append", "a-1", "t", value).done()
    assert [line["data"] for line in run("read", "--json").lines] == [
        None, True, 17, "text", [], {}, {"a": [1, {"b": "☃"}]},
    ]  # fmt: skip


HOSTILE = {
    "bad JSON": (["a-1", "t", "{amount: 1}"], "JSON"),
    "no JSON": (["a-1", "t", ""], "JSON"),
    "NaN": (["a-1", "t", "NaN"], "JSON"),
    "two values": (["a-1", "t", "1 2"], "JSON"),
    "deep nesting": (["a-1", "t", "[" * 20_000 + "]" * 20_000], "nested"),
    "number too large": (["a-1", "t", "1e999"], "range"),
    "NUL in the payload": (["a-1", "t", '"\\u0000"'], "NUL"),
    "lone surrogate in the payload": (["a-1", "t", '"\\ud800"'], "JSON"),
    "payload that is not UTF-8": (["a-1", "t", '"\udcff"'], "UTF-8"),
    "payload too large": (["a-1", "t", f'"{"x" * 1_100_000}"'], "max_message_bytes"),
    "empty stream": (["", "t", "1"], "stream"),
    "stream without category": (["--", "-1", "t", "1"], "category"),
    "stream too long": (["x" * 513, "t", "1"], "512"),
    "stream that is not UTF-8": (["a-\udcff", "t", "1"], "surrogate"),
    "empty type": (["a-1", "", "1"], "type"),
    "type too long": (["a-1", "t" * 513, "1"], "512"),
    "type missing": (["a-1"], "belong together"),
    "JSON missing": (["a-1", "t"], "belong together"),
    "one word too many": (["a-1", "t", "1", "2"], "--help"),
    "unknown option": (["a-1", "t", "1", "--propety", "a=1"], "--property"),
    "property without value": (["a-1", "t", "1", "--property", "a"], "NAME=VALUE"),
    "property without name": (["a-1", "t", "1", "--property", "=1"], "NAME=VALUE"),
    "property that a filter cannot say": (["a-1", "t", "1", "--property", "a b=1"], "a b"),
    "property that is a word of the language": (["a-1", "t", "1", "--property", "and=1"], "and"),
    "property twice": (["a-1", "t", "1", "--property", "a=1", "--property", "a=2"], "twice"),
    "property too large": (["a-1", "t", "1", "--property", "a=9223372036854775808"], "64 bits"),
    "property of many digits": (["a-1", "t", "1", "--property", f"a={'9' * 5000}"], "64 bits"),
    "property with half a quote": (["a-1", "t", "1", "--property", 'a="x'], "JSON string"),
    "metadata without value": (["a-1", "t", "1", "--metadata", "a"], "NAME=VALUE"),
    "bad id": (["a-1", "t", "1", "--id", "17"], "UUID"),
    "bad version": (["a-1", "t", "1", "--expected", "-2"], "--expected"),
    "bad version in words": (["a-1", "t", "1", "--expected", "newest"], "--expected"),
    "huge version": (["a-1", "t", "1", "--expected", "9" * 30], "--expected"),
    "wrong version": (["a-1", "t", "1", "--expected", "5"], "is at version 0"),
    "option for lines": (["--property", "a=1"], "STREAM TYPE JSON"),
    "batch of none": (["--batch", "0"], "--batch"),
    "control characters": (["-\x1b[31m\n\r-1", "t", "1"], ""),
}


@pytest.mark.shard(
    "variants",
    fast=[
        "bad JSON",
        "NaN",
        "number too large",
        "NUL in the payload",
        "payload too large",
        "empty stream",
        "stream that is not UTF-8",
        "empty type",
        "type missing",
        "unknown option",
        "property without value",
    ],
)
@pytest.mark.parametrize("case", HOSTILE)
def test_what_cannot_be_appended_is_refused_in_one_line(run: Run, case: str) -> None:
    words, said = HOSTILE[case]
    line = run("append", *words).refused(said)
    assert line.rstrip("\n").isprintable()
    run("schema", "migrate")
    assert run("read", "--json").lines == []
