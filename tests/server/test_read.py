"""Reading over HTTP."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from milepost import Milepost, NewMessage
from milepost.server import Limits, create_app, messages
from milepost.server.problems import FILTER, INVALID, TOOK_TOO_LONG
from server.answers import done, problem


@pytest.fixture
async def log(mp: Milepost) -> None:
    """Ten orders with an amount each, and a payment after each of the first three."""
    for number in range(1, 11):
        await mp.append(f"order-{number % 2}", NewMessage("order.placed", number, properties={"amount": number}))
        if number <= 3:
            await mp.append("payment-1", NewMessage("payment.received", number))


def data(page: Any) -> list[Any]:
    return [message["data"] for message in page["messages"]]


@pytest.mark.usefixtures("log")
async def test_a_stream_in_pages(client: httpx.AsyncClient) -> None:
    first = done(await client.get("/v1/streams/order-1", params={"limit": 3}))
    assert (data(first), first["next"], first["more"]) == ([1, 3, 5], 3, True)
    second = done(await client.get("/v1/streams/order-1", params={"limit": 3, "after_version": first["next"]}))
    assert (data(second), second["next"], second["more"]) == ([7, 9], 5, False)
    third = done(await client.get("/v1/streams/order-1", params={"after_version": second["next"]}))
    assert third == {"messages": [], "next": 5, "more": False}


@pytest.mark.usefixtures("log")
async def test_a_page_that_is_just_full_has_no_more(client: httpx.AsyncClient) -> None:
    page = done(await client.get("/v1/streams/order-1", params={"limit": 5}))
    assert (len(page["messages"]), page["more"]) == (5, False)


async def test_what_a_message_looks_like(mp: Milepost, client: httpx.AsyncClient) -> None:
    given = NewMessage("a", {"x": None}, properties={"p": "v"}, metadata={"m": [1]})
    await mp.append("order-42", given)
    [read] = [message async for message in mp.read("order-42")]
    [found] = done(await client.get("/v1/streams/order-42"))["messages"]
    assert datetime.fromisoformat(found.pop("time")) == read.time
    assert found == {
        "position": 1,
        "stream": "order-42",
        "version": 1,
        "id": str(read.id),
        "type": "a",
        "data": {"x": None},
        "properties": {"p": "v"},
        "metadata": {"m": [1]},
    }


@pytest.mark.usefixtures("log")
async def test_across_streams_in_pages(client: httpx.AsyncClient) -> None:
    found: list[Any] = []
    page: dict[str, Any] = {"next": 0, "more": True}
    while page["more"]:
        page = done(await client.get("/v1/messages", params={"limit": 4, "after": page["next"]}))
        found += [message["position"] for message in page["messages"]]
    assert found == list(range(1, 14))
    assert page["next"] == 13


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"category": "payment"}, [1, 2, 3]),
        ({"category": ["payment", "order"], "types": "payment.*"}, [1, 2, 3]),
        ({"stream": ["payment-1", "order-1"], "where": "amount > 6"}, [7, 9]),
        ({"stream": "order-0"}, [2, 4, 6, 8, 10]),
        ({"types": ["order.placed"], "where": "amount >= 9"}, [9, 10]),
        ({"where": "amount >= 9", "backwards": "true"}, [10, 9]),
        ({"after": "11"}, [9, 10]),
        ({"types": "none.such"}, []),
    ],
)
async def test_choosing(client: httpx.AsyncClient, params: dict[str, Any], expected: list[int]) -> None:
    assert data(done(await client.get("/v1/messages", params=params))) == expected


@pytest.mark.usefixtures("log")
async def test_since(client: httpx.AsyncClient) -> None:
    hour = timedelta(hours=1)
    for since, count in ((datetime.now(UTC) - hour, 13), (datetime.now(UTC) + hour, 0)):
        page = done(await client.get("/v1/messages", params={"since": since.isoformat()}))
        assert len(page["messages"]) == count
    answer = await client.get("/v1/messages", params={"since": "2026-01-01T00:00:00"})
    assert problem(answer, INVALID, "time zone")["field"] == "since"


@pytest.mark.usefixtures("log")
async def test_backwards_goes_on_before_the_last_page(client: httpx.AsyncClient) -> None:
    for path, name, expected in (
        ("/v1/messages", "before", [[10, 9], [8, 7]]),
        ("/v1/streams/order-1", "before_version", [[9, 7], [5, 3]]),
    ):
        params: dict[str, str | int] = {"backwards": "true", "limit": 2}
        for numbers in expected:
            page = done(await client.get(path, params=params))
            assert (data(page), page["more"]) == (numbers, True)
            params[name] = page["next"]


@pytest.mark.usefixtures("log")
async def test_a_stream_is_read_after_a_position_too(client: httpx.AsyncClient) -> None:
    whole = done(await client.get("/v1/streams/order-1"))["messages"]
    page = done(await client.get("/v1/streams/order-1", params={"after": whole[1]["position"]}))
    assert page["messages"] == whole[2:]


@pytest.mark.usefixtures("log")
async def test_head_and_last(client: httpx.AsyncClient) -> None:
    assert done(await client.get("/v1/head")) == {"position": 13}
    assert done(await client.get("/v1/streams/order-0/last")) == {"stream": "order-0", "version": 5}
    assert done(await client.get("/v1/streams/nothing-1/last")) == {"stream": "nothing-1", "version": 0}


async def test_a_page_is_bounded_in_bytes(mp: Milepost, client: httpx.AsyncClient) -> None:
    await mp.append("a-1", [NewMessage("a", "x" * 1_000_000) for _ in range(12)])
    first = done(await client.get("/v1/streams/a-1"))
    assert (len(first["messages"]), first["more"]) == (8, True)
    second = done(await client.get("/v1/streams/a-1", params={"after_version": first["next"]}))
    assert (len(second["messages"]), second["more"]) == (4, False)


async def test_a_message_larger_than_a_page_comes_alone(
    mp: Milepost, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "PAGE_BYTES", 10)
    await mp.append("a-1", [NewMessage("a", "x" * 100) for _ in range(2)])
    page = done(await client.get("/v1/streams/a-1"))
    assert (len(page["messages"]), page["more"]) == (1, True)


async def test_a_read_that_takes_too_long(mp: Milepost) -> None:
    await mp.append("a-1", NewMessage("a"))
    app = create_app(mp, access="local", limits=Limits(read_seconds=0))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert problem(await client.get("/v1/messages"), TOOK_TOO_LONG, "narrow it")["next"] is None


async def test_a_wrong_filter_shows_its_place(client: httpx.AsyncClient) -> None:
    for path in ("/v1/messages", "/v1/streams/a-1", "/v1/follow"):
        found = problem(await client.get(path, params={"where": "amount >"}), FILTER, "expected a value")
        assert (found["kind"], found["offset"]) == ("syntax", 8)


@pytest.mark.parametrize(
    ("path", "params", "field", "words"),
    [
        ("/v1/messages", {"limit": "0"}, "limit", ">= 1"),
        ("/v1/messages", {"limit": "1001"}, "limit", "<= 1000"),
        ("/v1/messages", {"limit": "many"}, "limit", "int"),
        ("/v1/messages", {"after": "-1"}, "after", ">= 0"),
        ("/v1/messages", {"after": str(2**63)}, "after", "<="),
        ("/v1/messages", {"after_version": "1"}, "after_version", "it has after, backwards"),
        ("/v1/messages", {"catgory": "a"}, "catgory", "did you mean 'category'?"),
        ("/v1/messages", {"types": "a*"}, "types", "whole parts"),
        ("/v1/messages", {"stream": "-1"}, "stream", "no category"),
        ("/v1/messages", {"since": "yesterday"}, "since", "datetime"),
        ("/v1/streams/-1", {}, "stream", "no category"),
        ("/v1/head", {"x": "1"}, "x", "it takes none"),
    ],
)
async def test_what_cannot_be_asked(
    client: httpx.AsyncClient, path: str, params: dict[str, str], field: str, words: str
) -> None:
    assert problem(await client.get(path, params=params), INVALID, words)["field"] == field
