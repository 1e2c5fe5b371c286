"""Appending over HTTP."""

from typing import Any
from uuid import uuid4

import httpx
import pytest

from milepost import Milepost
from milepost.server.problems import ID_REUSED, INVALID, TOO_LARGE, WRONG_VERSION
from server.answers import done, problem


async def test_one_message(mp: Milepost, client: httpx.AsyncClient) -> None:
    body = {
        "type": "order.placed",
        "data": {"amount": 120},
        "properties": {"amount": 120, "express": True},
        "metadata": {"correlation_id": "c1"},
    }
    appended = done(await client.post("/v1/streams/order-42", json=body))
    assert appended == {"stream": "order-42", "version": 1, "position": 1, "duplicate": False, "count": 1}
    [message] = [message async for message in mp.read("order-42")]
    assert (message.type, message.data) == ("order.placed", {"amount": 120})
    assert message.properties == {"amount": 120, "express": True}
    assert message.metadata == {"correlation_id": "c1"}


async def test_several_messages(mp: Milepost, client: httpx.AsyncClient) -> None:
    body = [{"type": "a"}, {"type": "b", "data": [1]}, {"type": "c", "data": None}]
    appended = done(await client.post("/v1/streams/order-42", json=body))
    assert (appended["version"], appended["count"]) == (3, 3)
    assert [message.type async for message in mp.read("order-42")] == ["a", "b", "c"]


async def test_no_digit_is_lost(mp: Milepost, client: httpx.AsyncClient) -> None:
    content = b'{"type": "a", "data": {"price": 1.10, "large": 123456789012345678901234567890.125}}'
    done(await client.post("/v1/streams/a-1", content=content, headers={"content-type": "application/json"}))
    [message] = [message async for message in mp.read("a-1")]
    assert message.raw == '{"large": 123456789012345678901234567890.125, "price": 1.10}'
    answer = await client.get("/v1/streams/a-1")
    assert b'"data":{"large": 123456789012345678901234567890.125, "price": 1.10}' in answer.content


async def test_to_several_streams(client: httpx.AsyncClient) -> None:
    body: list[dict[str, Any]] = [
        {"stream": "order-2", "messages": [{"type": "a"}, {"type": "b"}], "expected": "no_stream"},
        {"stream": "order-1", "messages": [{"type": "c"}]},
    ]
    found = done(await client.post("/v1/streams", json=body))["appended"]
    assert [(each["stream"], each["version"]) for each in found] == [("order-2", 2), ("order-1", 1)]
    body[1]["expected"] = 7
    wrong = problem(await client.post("/v1/streams", json=body[1:]), WRONG_VERSION, "read it again")
    assert (wrong["stream"], wrong["expected"], wrong["actual"]) == ("order-1", 7, 1)


async def test_all_or_nothing(mp: Milepost, client: httpx.AsyncClient) -> None:
    body = [
        {"stream": "order-1", "messages": [{"type": "a"}]},
        {"stream": "order-2", "messages": [{"type": "a"}], "expected": 3},
    ]
    problem(await client.post("/v1/streams", json=body), WRONG_VERSION)
    assert await mp.last("order-1") == 0


async def test_a_stream_is_named_once(client: httpx.AsyncClient) -> None:
    body = [{"stream": "order-1", "messages": [{"type": name}]} for name in "ab"]
    found = problem(await client.post("/v1/streams", json=body), INVALID, "'order-1' is there 2 times")
    assert found["field"] == "stream"


@pytest.mark.parametrize(
    ("expected", "status"),
    [("any", 200), ("1", 200), ("stream_exists", 200), ("no_stream", 409), ("0", 409), ("2", 409), ("-1", 400)],
)
async def test_expected_versions(client: httpx.AsyncClient, expected: str, status: int) -> None:
    await client.post("/v1/streams/order-42", json={"type": "a"})
    answer = await client.post("/v1/streams/order-42", params={"expected": expected}, json={"type": "b"})
    assert answer.status_code == status


async def test_a_wrong_version_tells_which_it_is(client: httpx.AsyncClient) -> None:
    await client.post("/v1/streams/order-42", json=[{"type": "a"}, {"type": "a"}])
    answer = await client.post("/v1/streams/order-42", params={"expected": 1}, json={"type": "b"})
    found = problem(answer, WRONG_VERSION, "read it again and decide anew")
    assert (found["stream"], found["expected"], found["actual"]) == ("order-42", 1, 2)
    assert found["transient"] is False


async def test_an_append_can_be_repeated(mp: Milepost, client: httpx.AsyncClient) -> None:
    body = {"type": "a", "data": 1, "id": str(uuid4())}
    first = done(await client.post("/v1/streams/order-42", params={"expected": "no_stream"}, json=body))
    second = done(await client.post("/v1/streams/order-42", params={"expected": "no_stream"}, json=body))
    assert second == {**first, "duplicate": True}
    assert await mp.last("order-42") == 1


async def test_an_id_with_other_content(client: httpx.AsyncClient) -> None:
    body = {"type": "a", "data": 1, "id": str(uuid4())}
    done(await client.post("/v1/streams/order-42", json=body))
    found = problem(await client.post("/v1/streams/order-42", json={**body, "data": 2}), ID_REUSED)
    assert (found["stream"], found["id"]) == ("order-42", body["id"])


async def test_a_message_that_is_too_large(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/streams/order-42", json={"type": "a", "data": "x" * (2**20 + 1)})
    assert problem(answer, TOO_LARGE, "over the limit of 1,048,576")["field"] == "message"


class TestHowManyMessages:
    """They are counted while they arrive: what comes after the last that may be is not looked at."""

    async def test_as_many_as_may_be(self, mp: Milepost, client: httpx.AsyncClient) -> None:
        one = b'{"type": "a"}'
        done(await post(client, "/v1/streams/order-42", b"[" + b",".join([one] * 10_000) + b"]"))
        assert await mp.last("order-42") == 10_000

    async def test_one_too_many_in_a_stream(self, mp: Milepost, client: httpx.AsyncClient) -> None:
        answer = await post(client, "/v1/streams/order-42", b"[" + b'{"type": "a"},' * 10_001 + b"no JSON")
        assert problem(answer, TOO_LARGE, "more than 10,000 of them in one append")["field"] == "messages"
        assert await mp.head() == 0

    async def test_one_too_many_over_several_streams(self, mp: Milepost, client: httpx.AsyncClient) -> None:
        two = b'{"stream": "order-42", "messages": [{"type": "a"}, {"type": "a"}]},'
        answer = await post(client, "/v1/streams", b"[" + two * 5_001 + b"no JSON")
        assert problem(answer, TOO_LARGE, "more than 10,000 of them in one append")["field"] == "messages"

    async def test_a_stream_without_any(self, client: httpx.AsyncClient) -> None:
        none = b'{"stream": "order-42", "messages": []},'
        answer = await post(client, "/v1/streams", b"[" + none + b"no JSON")
        assert problem(answer, INVALID, "at least one for each stream")["field"] == "messages"


async def post(client: httpx.AsyncClient, path: str, body: bytes) -> httpx.Response:
    return await client.post(path, content=body, headers={"content-type": "application/json"})


@pytest.mark.shard(
    "variants",
    fast=[
        "body0-body-type",
        "body3-dat-did you mean 'data'",
        "body5-properties['x']-64 bits",
        "body8-id-is not a UUID",
        "body10-[1].type-Expected `str`",
    ],
)
@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "body", "type"),
        ({"type": 1}, "type", "Expected `str`"),
        ({"type": ""}, "type", "it is empty"),
        ({"type": "a", "dat": 1}, "dat", "did you mean 'data'"),
        ({"type": "a", "properties": {"x": 1.5}}, "properties[...]", "float"),
        ({"type": "a", "properties": {"x": 2**63}}, "properties['x']", "64 bits"),
        ({"type": "a", "properties": {"x y": 1}}, "properties['x y']", "a filter cannot say this name"),
        ({"type": "a", "metadata": []}, "metadata", "Expected `object`"),
        ({"type": "a", "id": "x"}, "id", "is not a UUID"),
        ([], "messages", "at least one"),
        ([{"type": "a"}, {"type": 2}], "[1].type", "Expected `str`"),
        ("a", "body", "Expected `object | array`"),
    ],
)
async def test_what_is_no_message(client: httpx.AsyncClient, body: object, field: str, words: str) -> None:
    answer = await client.post("/v1/streams/order-42", json=body)
    assert problem(answer, INVALID, words)["field"] == field


async def test_a_body_is_wanted(client: httpx.AsyncClient) -> None:
    assert problem(await client.post("/v1/streams/order-42"), INVALID, "JSON is wanted")["field"] == "body"
