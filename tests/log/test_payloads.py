"""Payloads, properties and names: what is stored comes back, what cannot be stored is refused by name."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from milepost import InvalidMessage, Message, Milepost, NewMessage, TooLarge


@dataclass
class Placed:
    order: int
    amount: int
    region: str | None = None


class Shipped(msgspec.Struct):
    order: int
    at: datetime


class Paid(BaseModel):
    order: int
    note: str = ""


async def stored(mp: Milepost, message: Any) -> Message[Any]:
    """The message as it is read after it was appended."""
    await mp.append("thing-1", message)
    return [found async for found in mp.read("thing-1")][-1]


@pytest.mark.parametrize("cls", [Placed, Shipped, Paid])
async def test_classes_of_three_kinds_come_back(mp: Milepost, cls: type) -> None:
    mp.message("thing.happened", properties=["order"])(cls)
    instances = {
        Placed: Placed(1, 2),
        Shipped: Shipped(1, datetime(2026, 1, 2, tzinfo=UTC)),
        Paid: Paid(order=1, note="ü"),
    }
    message = await stored(mp, instances[cls])
    assert message.data == instances[cls]
    assert isinstance(message.data, cls)
    assert (message.type, message.properties) == ("thing.happened", {"order": 1})


async def test_a_class_is_stored_under_its_own_name_by_default(mp: Milepost) -> None:
    mp.message()(Placed)
    assert (await stored(mp, Placed(1, 2))).type == "Placed"


async def test_a_property_that_is_none_is_left_out(mp: Milepost) -> None:
    mp.message(properties=["amount", "region"])(Placed)
    assert (await stored(mp, Placed(1, 2))).properties == {"amount": 2}


async def test_an_unregistered_class_is_refused(mp: Milepost) -> None:
    with pytest.raises(InvalidMessage, match="Placed is not a registered class"):
        await mp.append("thing-1", Placed(1, 2))
    assert (await stored(mp, NewMessage("placed", Placed(1, 2)))).data == {"order": 1, "amount": 2, "region": None}


async def test_older_names_decode_to_the_class(mp: Milepost, make_mp: Any) -> None:
    await mp.append("thing-1", NewMessage("OrderPlaced", {"order": 1, "amount": 2}))
    mp.message("order.placed", aliases=["OrderPlaced"])(Placed)
    assert [m.data async for m in mp.read("thing-1")] == [Placed(1, 2)]


async def test_upcasts_take_old_payloads_along(mp: Milepost, make_mp: Any) -> None:
    mp.message("order.placed", version=1)(Placed)
    await mp.append("thing-1", NewMessage("order.placed", {"order": 1}))
    newer: Milepost = make_mp()
    newer.message("order.placed", version=3)(Placed)

    @newer.upcast("order.placed", from_version=1)
    def with_cents(data: dict[str, Any]) -> dict[str, Any]:
        return data | {"cents": 500}

    @newer.upcast("order.placed", from_version=2)
    def with_amount(data: dict[str, Any]) -> dict[str, Any]:
        return {"order": data["order"], "amount": data["cents"] // 100}

    async with newer:
        await newer.append("thing-1", Placed(2, 7))
        assert [m.data async for m in newer.read("thing-1")] == [Placed(1, 5), Placed(2, 7)]
    assert with_cents({}) == {"cents": 500}


async def test_a_missing_upcast_says_what_to_declare(mp: Milepost) -> None:
    await mp.append("thing-1", NewMessage("order.placed", {"order": 1}))
    mp.message("order.placed", version=2)(Placed)
    [message] = [m async for m in mp.read("thing-1")]
    with pytest.raises(InvalidMessage, match="from_version=1"):
        _ = message.data
    assert message.raw == '{"order": 1}'


async def test_a_payload_that_does_not_fit_its_class(mp: Milepost) -> None:
    mp.message("order.placed")(Placed)
    message = await stored(mp, NewMessage("order.placed", {"order": "one"}))
    with pytest.raises(InvalidMessage, match="does not decode as Placed") as failure:
        _ = message.data
    assert failure.value.field == "data"


def test_two_classes_of_one_name_are_refused() -> None:
    mp = Milepost("postgresql://nowhere")
    mp.message("order.placed")(Placed)
    with pytest.raises(ValueError, match=r"'order\.placed' belongs to Placed"):
        mp.message("order.placed")(Paid)


def test_one_class_of_two_names_is_refused() -> None:
    mp = Milepost("postgresql://nowhere")
    mp.message("order.placed")(Placed)
    words = (
        r"^Placed is registered as 'order\.placed' already: .*\('order\.placed', aliases=\['order\.created'\]\)"
    )
    for options in ({}, {"aliases": ["order.placed"]}, {"version": 2}):
        with pytest.raises(ValueError, match=words):
            mp.message("order.created", **options)(Placed)
    # The same again, as when a module is imported twice, is no other name.
    mp.message("order.placed", aliases=["order.created"])(Placed)


async def test_the_aliases_reach_the_handler_of_the_class(mp: Milepost) -> None:
    mp.message("order.placed", aliases=["order.created"])(Placed)
    seen: list[int] = []

    @mp.subscription("orders")
    async def handle(event: Placed) -> None:
        seen.append(event.order)

    old = NewMessage("order.created", {"order": 1, "amount": 2})
    await mp.append("order-1", [old, Placed(2, 2)])
    await mp.run_until_idle()
    assert seen == [1, 2]


@pytest.mark.parametrize("names", [{"name": "order.*"}, {"name": "a>b"}, {"name": "a", "aliases": [">"]}])
def test_a_type_that_would_be_a_pattern_is_refused(names: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match=r"^type: '.*' has \* or >"):
        Milepost("postgresql://nowhere").message(**names)(Placed)


def test_a_declared_property_that_the_class_does_not_have() -> None:
    with pytest.raises(ValueError, match="no such field"):
        Milepost("postgresql://nowhere").message(properties=["amuont"])(Placed)


@pytest.mark.parametrize(
    "data",
    [
        None,
        True,
        0,
        -(2**63),
        2**64 - 1,
        1.5,
        "",
        "😀\U0010ffff",
        "\\u0000",
        [],
        {},
        {"a": {"b": [1, None]}},
        {"": 1},
    ],
)
async def test_json_values_come_back(mp: Milepost, data: Any) -> None:
    assert (await stored(mp, NewMessage("t", data))).data == data


@pytest.mark.shard("variants", fast=["embedded-a\\x00b", "embedded-\\ud800", "embedded-nan", "embedded-data7"])
@pytest.mark.parametrize(
    "data",
    [
        "a\0b",
        {"a\0b": 1},
        {"deep": ["x", "\\\0"]},
        "\ud800",
        {"\udfff": 1},
        math.nan,
        {"a": [math.inf, None]},
        Placed(1, math.nan),  # type: ignore[arg-type]
        object(),
        {1j: 2},
    ],
)
async def test_what_json_in_postgresql_cannot_hold_is_refused(mp: Milepost, data: Any) -> None:
    with pytest.raises(InvalidMessage, match="^data: ") as failure:
        await mp.append("thing-1", NewMessage("t", data))
    assert failure.value.field == "data"
    assert await mp.head() == 0


async def test_a_payload_in_itself_is_refused(mp: Milepost) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidMessage, match="^data: "):
        await mp.append("thing-1", NewMessage("t", endless))


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**400])
async def test_huge_integers_keep_their_digits(mp: Milepost, number: int) -> None:
    assert (await stored(mp, NewMessage("t", number))).data == number


async def test_properties_come_back_typed(mp: Milepost) -> None:
    properties: dict[str, int | str | bool] = {"i": -(2**63), "j": 2**63 - 1, "s": "é\n\"'", "b": False}
    properties |= {"dotted.name_1": ""}
    message = await stored(mp, NewMessage("t", properties=properties))
    assert message.properties == properties
    assert message.properties["b"] is False


@pytest.mark.shard("variants", fast=["embedded-1.0", "embedded-value3", "embedded--9223372036854775809"])
@pytest.mark.parametrize("value", [1.0, None, [1], {"a": 1}, 2**63, -(2**63) - 1, b"x", "a\0", "\ud800"])
async def test_a_value_that_is_no_property(mp: Milepost, value: Any) -> None:
    with pytest.raises(InvalidMessage, match="properties") as failure:
        await mp.append("thing-1", NewMessage("t", properties={"good": 1, "bad": value}))
    assert failure.value.field in ("properties['bad']", "properties")


@pytest.mark.shard("variants", fast=["embedded-1a", "embedded-and", "embedded-a'; drop table x; --"])
@pytest.mark.parametrize(
    "name", ["", "1a", "_a", "a-b", "a b", "é", "and", "true", "a'; drop table x; --", "a\n", "x" * 513, "\0", 1]
)
async def test_a_name_that_no_filter_can_say(mp: Milepost, name: Any) -> None:
    with pytest.raises(InvalidMessage, match="properties") as failure:
        await mp.append("thing-1", NewMessage("t", properties={name: 1}))
    assert repr(name) in failure.value.field


async def test_the_number_of_properties_is_limited(mp: Milepost) -> None:
    await mp.append("thing-1", NewMessage("t", properties={f"p{number}": number for number in range(255)}))
    with pytest.raises(TooLarge, match="256"):
        await mp.append("thing-1", NewMessage("t", properties={f"p{number}": number for number in range(256)}))


async def test_the_size_of_a_message_is_limited(mp: Milepost, make_mp: Any) -> None:
    await mp.append("thing-1", NewMessage("t", "x" * (2**20 - 2)))
    with pytest.raises(TooLarge, match="1,048,577 bytes"):
        await mp.append("thing-1", NewMessage("t", "x" * (2**20 - 1)))
    async with make_mp(max_message_bytes=100) as small:
        with pytest.raises(TooLarge, match="max_message_bytes"):
            await small.append("thing-1", NewMessage("t", metadata={"x": "y" * 100}))


@pytest.mark.shard("variants", fast=["embedded-order-42", "embedded-order", "embedded-%s-1"])
@pytest.mark.parametrize(
    "stream", ["order-42", "order", "order-", "a-b-c", "ü-😀", "x" * 512, "a b-'\"; --", "%s-1"]
)
async def test_names_of_streams(mp: Milepost, stream: str) -> None:
    await mp.append(stream, NewMessage("t"))
    [message] = [m async for m in mp.read(stream)]
    assert (message.stream, message.category) == (stream, stream.split("-")[0])
    assert [m.stream async for m in mp.read(category=stream.split("-")[0])] == [stream]


@pytest.mark.parametrize("stream", ["", "-", "-42", "a\0", "\ud800", "x" * 513, "é" * 257, None, 5])
async def test_names_that_no_stream_can_have(mp: Milepost, stream: Any) -> None:
    with pytest.raises(InvalidMessage, match="^stream: ") as failure:
        await mp.append(stream, NewMessage("t"))
    assert failure.value.field == "stream"
    with pytest.raises(InvalidMessage, match="^stream: "):
        await mp.append_many({stream: NewMessage("t")})


@pytest.mark.parametrize("type_", ["", "a\0", "\ud800", "x" * 513, None])
async def test_names_that_no_type_can_have(mp: Milepost, type_: Any) -> None:
    with pytest.raises(InvalidMessage, match="^type: "):
        await mp.append("thing-1", NewMessage(type_))


@pytest.mark.parametrize("field", ["properties", "metadata"])
@pytest.mark.parametrize("value", [[1], "x", 5])
async def test_what_is_no_dict(mp: Milepost, field: str, value: Any) -> None:
    with pytest.raises(InvalidMessage, match=f"^{field}: a dict is wanted"):
        await mp.append("thing-1", NewMessage("t", **{field: value}))


async def test_metadata_comes_back(mp: Milepost) -> None:
    metadata = {"correlation_id": "c", "causation_id": "d", "trace": {"traceparent": "00-…"}}
    assert (await stored(mp, NewMessage("t", metadata=metadata))).metadata == metadata
