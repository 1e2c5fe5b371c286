"""What a subscription orders by: texts and keys are stored, so they never change."""

from enum import Enum, IntEnum, StrEnum
from typing import Any

import pytest

from engine.shop import message
from milepost.engine.declare.order import (
    BY_STREAM,
    MAX_KEY_CHARACTERS,
    NO_ORDER,
    NoKey,
    Order,
    by_correlation,
    by_function,
    by_property,
    lanes_of,
    order_from_option,
)
from milepost.names import bucket_of


class Region(Enum):
    EU = "EU"


class Shard(IntEnum):
    FIRST = 1


class Name(StrEnum):
    FIRST = "1"


class MixedIn(str, Enum):  # noqa: UP042 - as older programs write it
    FIRST = "1"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("stream", "stream"),
        (by_property("CustomerId"), "property CustomerId"),
        (by_correlation, "correlation"),
        (by_function(lambda m: m.stream), "function 1"),
        (by_function(lambda m: m.stream, version=3), "function 3"),
        (None, "none"),
    ],
)
def test_every_order_has_its_text(given: Any, text: str) -> None:
    assert order_from_option(given).text == text


@pytest.mark.parametrize("given", ["", "Stream", "none", 1, True, by_property, by_function, len, ["stream"], {}])
def test_what_is_no_order_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match='^"stream", by_property.*or None is wanted$'):
        order_from_option(given)


@pytest.mark.parametrize("name", ["", "1st", "a b", "and", "Ä", "a\0", None, 5, by_property])
def test_a_name_that_no_property_has_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="^by_property: a property's name.* is wanted, not "):
        by_property(name)


async def coroutine(m: Any) -> str:
    return ""


@pytest.mark.parametrize("function", [None, "stream", 5, str, coroutine, lambda: 1, lambda m, n: 1])
def test_what_is_no_plain_function_is_refused(function: Any) -> None:
    with pytest.raises(ValueError, match="^by_function: a .*function .*is wanted"):
        by_function(function)


@pytest.mark.parametrize("version", [0, -1, 1.5, "1", None, True])
def test_a_wrong_version_of_a_function_is_refused(version: Any) -> None:
    with pytest.raises(ValueError, match="^by_function: version: a whole number of at least 1 is wanted, not "):
        by_function(lambda m: m.stream, version=version)


def test_by_stream_the_stream_is_the_key() -> None:
    assert BY_STREAM.key(message(stream="order-7")) == "order-7"
    assert BY_STREAM.stream_key(message(stream="order-7")) == "order-7"
    assert BY_STREAM.keys([message(stream="a-1"), message(stream="b-2")]) == ["a-1", "b-2"]


def test_without_an_order_there_are_no_keys() -> None:
    assert NO_ORDER.key(message()) is None
    assert NO_ORDER.stream_key(message()) is None
    assert NO_ORDER.keys([message(), message()]) is None


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ({"CustomerId": 1}, "1"),
        ({"CustomerId": "1"}, '"1"'),
        ({"CustomerId": True}, "true"),
        ({"CustomerId": "true"}, '"true"'),
        ({"CustomerId": -(2**63)}, "-9223372036854775808"),
        ({"CustomerId": ""}, '""'),
        ({"CustomerId": 0}, "0"),
        ({"CustomerId": False}, "false"),
        ({"CustomerId": 'a"b'}, '"a"b"'),
        ({"customerid": 1}, "stream order-9"),
        ({}, "stream order-9"),
    ],
)
def test_by_property_values_of_different_types_are_different_keys(properties: dict[str, Any], key: str) -> None:
    assert by_property("CustomerId").key(message(stream="order-9", properties=properties)) == key


def test_a_value_cannot_pass_for_a_stream() -> None:
    order = by_property("p")
    assert order.key(message(properties={"p": "stream order-1"})) != order.key(message(stream="order-1"))


def test_a_long_value_is_hashed() -> None:
    order = by_property("p")
    long = [order.key(message(properties={"p": "x" * 1000 + end})) for end in "ab"]
    assert len(set(long)) == 2
    assert all(str(key).startswith("sha256 ") and len(str(key)) == 71 for key in long)
    assert (
        order.key(message(properties={"p": "x" * (MAX_KEY_CHARACTERS - 2)}))
        == f'"{"x" * (MAX_KEY_CHARACTERS - 2)}"'
    )


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ({"correlation_id": "c-1"}, '"c-1"'),
        ({"correlation_id": 5}, "5"),
        ({"correlation_id": 0}, "0"),
        ({"correlation_id": ""}, "stream order-1"),
        ({"correlation_id": True}, "stream order-1"),
        ({"correlation_id": None}, "stream order-1"),
        ({"correlation_id": {"a": 1}}, "stream order-1"),
        ({"correlation_id": 1.5}, "stream order-1"),
        ({}, "stream order-1"),
    ],
)
def test_by_correlation_or_else_by_stream(metadata: dict[str, Any], key: str) -> None:
    assert by_correlation.key(message(metadata=metadata)) == key


@pytest.mark.parametrize(
    ("returned", "key"),
    [
        (1, "1"),
        ("1", '"1"'),
        (-5, "-5"),
        ("", '""'),
        (10**400, str(10**400)),
        (Shard.FIRST, "1"),
        (Name.FIRST, '"1"'),
        (MixedIn.FIRST, '"1"'),
    ],
)
def test_a_function_may_give_strings_and_integers(returned: Any, key: str) -> None:
    assert by_function(lambda m: returned).keys([message()]) == [key]


@pytest.mark.parametrize("returned", [None, True, 1.0, b"1", [], Region.EU, object()])
def test_a_function_that_gives_something_else_gives_no_key(returned: Any) -> None:
    with pytest.raises(NoKey, match=r"returned a .*; a string or an integer is wanted") as refused:
        by_function(lambda m: returned).key(message(position=8))
    assert refused.value.message.position == 8


@pytest.mark.parametrize("returned", ["a\0b", "\ud800", "\ud800" * 1000, pytest.param(10**5000, id="huge")])
def test_a_key_that_cannot_be_stored_is_none(returned: Any) -> None:
    with pytest.raises(NoKey, match="no key: .* raised "):
        by_function(lambda m: returned).key(message())


def test_a_function_that_raises_gives_no_key_and_the_cause() -> None:
    def customer(m: Any) -> str:
        return str(m.properties["customer"])

    with pytest.raises(NoKey, match=r"no key: .*customer raised KeyError\('customer'\)") as refused:
        by_function(customer).keys([message()])
    assert isinstance(refused.value.__cause__, KeyError)
    assert by_function(customer).stream_key(message()) == "stream order-1"


def test_by_stream_the_lane_comes_from_the_streams_bucket() -> None:
    m = message(stream="order-7")
    for order in (BY_STREAM, NO_ORDER):
        assert order.by_stream
        assert lanes_of([m], order.keys([m]), 16) == [bucket_of("order-7") % 16]
        assert lanes_of([m], order.keys([m]), 1) == [0]


@pytest.mark.parametrize("order", [by_property("p"), by_correlation, by_function(lambda m: 1)])
def test_otherwise_the_lane_comes_from_the_key(order: Order) -> None:
    m = message(properties={"p": 1}, metadata={"correlation_id": 1})
    assert not order.by_stream
    assert lanes_of([m, message(stream="other-1")], ["1", "1"], 16) == 2 * [bucket_of("1") % 16]


def test_orders_are_equal_when_they_mean_the_same() -> None:
    assert by_property("a") == by_property("a") != by_property("b")
    assert order_from_option("stream") == BY_STREAM != NO_ORDER


@pytest.mark.parametrize("function", [len, hash, lambda m, n=1: 1, lambda *all: 1, max])
def test_a_function_that_can_be_called_with_a_message_will_do(function: Any) -> None:
    by_function(function)
