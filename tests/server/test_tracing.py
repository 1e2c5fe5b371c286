"""Traces and filters over HTTP."""

import httpx
import pytest

from milepost import Milepost, NewMessage
from milepost.server.problems import FILTER, INVALID, TOO_LARGE, UNKNOWN_SUBSCRIPTION
from server.answers import done, problem


@pytest.fixture
async def order(mp: Milepost) -> str:
    """A stream of three messages that one subscription wants and another does not; the id of the last."""
    await mp.create_subscription("shipping", category="order")
    await mp.create_subscription("audit", category="payment")
    for number in range(3):
        await mp.append("order-42", NewMessage("placed", number))
    return [str(message.id) async for message in mp.read("order-42")][-1]


@pytest.mark.usefixtures("order")
async def test_a_stream(client: httpx.AsyncClient) -> None:
    trace = done(await client.get("/v1/trace/order-42"))
    assert [message["version"] for message in trace["messages"]] == [1, 2, 3]
    states = {(each["subscription"], each["state"]) for each in trace["traced"]}
    assert states == {("shipping", "not reached"), ("audit", "not selected")}


async def test_an_id(client: httpx.AsyncClient, order: str) -> None:
    trace = done(await client.get(f"/v1/trace/{order}", params={"subscription": "default/shipping"}))
    assert [(each["subscription"], each["message"]["version"]) for each in trace["traced"]] == [("shipping", 3)]


@pytest.mark.usefixtures("order")
async def test_in_pages(client: httpx.AsyncClient) -> None:
    first = done(await client.get("/v1/trace/order-42", params={"limit": 2, "group": "default"}))
    assert ([message["version"] for message in first["messages"]], first["before_version"]) == ([2, 3], 2)
    params = {"limit": 2, "before_version": first["before_version"]}
    second = done(await client.get("/v1/trace/order-42", params=params))
    assert ([message["version"] for message in second["messages"]], second["before_version"]) == ([1], None)


@pytest.mark.usefixtures("order")
async def test_a_subscription_that_is_not_there(client: httpx.AsyncClient) -> None:
    problem(await client.get("/v1/trace/order-42", params={"subscription": "nobody"}), UNKNOWN_SUBSCRIPTION)


async def test_check_a_filter(client: httpx.AsyncClient) -> None:
    body = {"where": '(amount>=100) and region = "EU"'}
    found = done(await client.post("/v1/filter/check", json=body))
    assert found == {"canonical": 'amount >= 100 && region == "EU"', "properties": ["amount", "region"]}
    answer = await client.post("/v1/filter/check", json={"where": "amount >"})
    found = problem(answer, FILTER, "expected a value, found the end")
    assert (found["kind"], found["offset"]) == ("syntax", 8)


async def test_evaluate_a_filter(client: httpx.AsyncClient) -> None:
    for amount, matches in ((120, True), (80, False)):
        body = {"where": "amount >= 100", "properties": {"amount": amount}}
        assert done(await client.post("/v1/filter/evaluate", json=body)) == {"matches": matches}
    answer = await client.post("/v1/filter/evaluate", json={"where": "amount >= 100", "properties": {}})
    assert problem(answer, FILTER, 'no property "amount"')["kind"] == "name"


async def test_explain_a_filter(client: httpx.AsyncClient) -> None:
    body = {"where": "amount >= 100 && region == 1", "properties": {"amount": 120}}
    found = done(await client.post("/v1/filter/explain", json=body))
    assert found["matches"] is False
    assert found["explanation"]["children"][1]["error"]["message"] == 'the message has no property "region"'


async def test_properties_that_no_message_has(client: httpx.AsyncClient) -> None:
    for properties, kind in (({"x y": 1}, INVALID), ({f"p{n}": n for n in range(256)}, TOO_LARGE)):
        for action in ("evaluate", "explain"):
            body = {"where": "true", "properties": properties}
            problem(await client.post(f"/v1/filter/{action}", json=body), kind)
