"""Appending, by the library and over the network."""

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from contract.both import Both, order
from milepost import (
    ANY,
    NO_STREAM,
    STREAM_EXISTS,
    Appended,
    IdReused,
    InvalidMessage,
    MilepostError,
    NewMessage,
    TooLarge,
    WrongVersion,
)


async def test_each_expected_version(both: Both) -> None:
    first = await both.append("order-1", order(1), expected=NO_STREAM)
    assert first == Appended("order-1", 1, first.position, False, 1)
    second = await both.append("order-1", [order(2), order(3)], expected=1)
    assert (second.version, second.count, second.duplicate) == (3, 2, False)
    assert (await both.append("order-1", order(4), expected=STREAM_EXISTS)).version == 4
    assert (await both.append("order-1", order(5), expected=ANY)).version == 5
    assert (await both.append("order-1", order(6))).version == 6


@pytest.mark.parametrize(("stream", "expected", "actual"), [("a-1", 3, 1), ("a-1", NO_STREAM, 1), ("b-1", -1, 0)])
async def test_a_wrong_version(both: Both, stream: str, expected: int, actual: int) -> None:
    await both.append("a-1", order(1))
    with pytest.raises(WrongVersion) as raised:
        await both.append(stream, order(2), expected=expected)
    error = raised.value
    assert (error.stream, error.expected, error.actual, error.transient) == (stream, expected, actual, False)
    assert str(error) == str(WrongVersion(stream, expected, actual))
    assert await both.last(stream) == actual


async def test_a_message_with_an_id_is_written_once(both: Both) -> None:
    message = NewMessage("a", {"n": 1}, id=uuid4())
    first = await both.append("a-1", message, expected=NO_STREAM)
    again = await both.append("a-1", message, expected=NO_STREAM)
    assert (first.duplicate, again.duplicate, again.position) == (False, True, first.position)
    assert await both.last("a-1") == 1


async def test_an_id_with_other_content(both: Both) -> None:
    known = uuid4()
    await both.append("a-1", NewMessage("a", 1, id=known))
    with pytest.raises(IdReused) as raised:
        await both.append("a-1", NewMessage("a", 2, id=known))
    assert (raised.value.stream, raised.value.id, raised.value.transient) == ("a-1", str(known), False)
    with pytest.raises(IdReused):
        await both.append("a-1", [NewMessage("a", 1, id=known), NewMessage("a", 2)])


async def test_several_streams_all_or_nothing(both: Both) -> None:
    made = await both.append_many({"a-1": [order(1), order(2)], "b-1": order(3)}, expected={"b-1": NO_STREAM})
    assert {stream: each.version for stream, each in made.items()} == {"a-1": 2, "b-1": 1}
    with pytest.raises(WrongVersion):
        await both.append_many({"a-1": order(4), "b-1": order(5)}, expected={"b-1": NO_STREAM})
    assert [await both.last(stream) for stream in ("a-1", "b-1")] == [2, 1]
    with pytest.raises(InvalidMessage) as raised:
        await both.append_many({"a-1": order(4)}, expected={"c-1": 1})
    assert raised.value.field == "expected"


async def test_results_come_in_the_order_of_the_streams_given(both: Both) -> None:
    streams = ["c-1", "a-2", "b-1", "a-1"]
    made = await both.append_many({stream: order(1) for stream in streams})
    assert list(made) == [each.stream for each in made.values()] == streams


REFUSED: list[tuple[str, Any, str]] = [
    ("", order(1), "stream"),
    ("-1", order(1), "stream"),
    ("a\0b", order(1), "stream"),
    ("a-1", [], "messages"),
    ("a-1", object(), "message"),
    ("a-1", NewMessage(""), "type"),
    ("a-1", NewMessage("a", float("nan")), "data"),
    ("a-1", NewMessage("a", "a\0"), "data"),
    ("a-1", NewMessage("a", object()), "data"),
    ("a-1", NewMessage("a", properties={"a b": 1}), "properties['a b']"),
    ("a-1", NewMessage("a", properties={"a": 1.5}), "properties['a']"),  # type: ignore[dict-item]
    ("a-1", NewMessage("a", id="one"), "id"),
]


async def test_what_cannot_be_stored(both: Both) -> None:
    for stream, message, field in REFUSED:
        with pytest.raises(InvalidMessage) as raised:
            await both.append(stream, message)
        assert raised.value.field == field, (stream, message)
    assert await both.head() == 0


async def test_what_is_nested_too_deeply_for_readers(both: Both) -> None:
    deep = json.loads("[" * 502 + "]" * 502)
    for field, message in (("data", NewMessage("a", deep)), ("metadata", NewMessage("a", metadata={"a": deep}))):
        for append in (
            both.append("a-1", [order(1), message]),
            both.append_many({"a-1": message, "b-1": order(2)}),
        ):
            with pytest.raises(InvalidMessage, match="nested too deeply: 500 levels are the most") as raised:
                await append
            assert raised.value.field == field
    assert [await both.last(stream) for stream in ("a-1", "b-1")] == [0, 0]


async def test_what_is_too_large(both: Both) -> None:
    with pytest.raises(TooLarge) as raised:
        await both.append("a-1", NewMessage("a", "x" * 2**20))
    assert raised.value.field == "message"
    with pytest.raises(TooLarge):
        await both.append("a" * 513, order(1))


async def test_too_many_messages(both: Both) -> None:
    """Nobody appends a part of them instead."""
    half = [NewMessage("a")] * 5_001
    for messages in ({"a-1": half, "b-1": half}, {"a-1": half * 2}):
        with pytest.raises(TooLarge, match="10,002 of them, over the limit of 10,000 an append") as raised:
            await both.append_many(messages)
        assert raised.value.field == "messages"
    with pytest.raises(TooLarge, match="10,002 of them"):
        await both.append("a-1", half * 2)
    assert await both.head() == 0


NAMES = ["a-1/2", "a-%2F", "a-ä€😀", "a-?b=c&d", "a- #+", "a-..", "..", "a-\n"]


async def test_any_name(both: Both) -> None:
    for stream in NAMES:
        appended = await both.append(stream, NewMessage("a/b ä", {"k": stream}, properties={"k": stream}))
        assert appended.stream == stream
        [message] = [message async for message in both.read(stream)]
        assert (message.stream, message.type, message.data, message.properties) == (
            stream,
            "a/b ä",
            {"k": stream},
            {"k": stream},
        )
        assert await both.last(stream) == 1


async def test_what_is_read_is_what_was_written(both: Both) -> None:
    known = uuid4()
    big = msgspec.Raw(b'{"n": 12345678901234567890123, "f": 0.10, "e": 1e40}')
    metadata = {"correlation_id": "c", "deep": [{"x": None}]}
    await both.append(
        "a-1", NewMessage("a", big, properties={"n": 2**63 - 1, "b": True}, metadata=metadata, id=known)
    )
    [message] = [message async for message in both.read("a-1")]
    assert (message.id, message.version, message.category) == (known, 1, "a")
    assert isinstance(message.id, UUID)
    assert "12345678901234567890123" in message.raw
    assert message.properties == {"n": 2**63 - 1, "b": True}
    assert message.metadata == metadata
    assert message.time.tzinfo is not None


async def test_registered_classes(both: Both) -> None:
    @both.message("order.placed", version=2, aliases=["placed"], properties=["amount"])
    @dataclass
    class Placed:
        amount: int
        region: str

    @both.upcast("order.placed", from_version=1)
    def add_region(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "region": "EU"}

    await both.append("order-1", Placed(120, "US"))
    await both.append("order-1", NewMessage("placed", {"amount": 5}))
    await both.append("order-1", NewMessage("order.placed", {"amount": "many"}, metadata={"schema_version": 2}))
    read = [message async for message in both.read("order-1")]
    assert [message.data for message in read[:2]] == [Placed(120, "US"), Placed(5, "EU")]
    assert read[0].properties == {"amount": 120}
    with pytest.raises(InvalidMessage):
        _ = read[2].data


async def test_outside_of_its_block(both: Both) -> None:
    closed = type(both).__new__(type(both))
    closed.__dict__.update(both.__dict__)
    closed.__dict__.update({"_log": None, "_open": None})
    with pytest.raises(MilepostError, match="not open"):
        await closed.append("a-1", order(1))
