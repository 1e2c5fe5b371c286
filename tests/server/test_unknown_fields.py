"""A field that nobody knows is refused with the one that was probably meant, wherever it is in a body."""

from typing import Any

import httpx
import pytest

from milepost import Milepost
from milepost.server.problems import INVALID
from server.answers import done, problem

NAMES = "/v1/subscriptions"
SHIPPING = f"{NAMES}/default/shipping"


@pytest.mark.parametrize(
    ("method", "path", "body", "field", "words"),
    [
        ("POST", "/v1/streams/order-1", {"typ": "a"}, "typ", "There is no field 'typ': did you mean 'type'?"),
        (
            "POST",
            "/v1/streams/order-1",
            [{"type": "a"}, {"type": "a", "dta": 1}],
            "[1].dta",
            "[1]: there is no field 'dta': did you mean 'data'?",
        ),
        (
            "POST",
            "/v1/streams",
            [{"stream": "order-1", "messages": [{"type": "a", "propertys": {}}]}],
            "[0].messages[0].propertys",
            "did you mean 'properties'?",
        ),
        ("POST", NAMES, {"name": "emails", "categroy": "mail"}, "categroy", "did you mean 'category'?"),
        ("POST", NAMES, {"name": "emails", "retry": {"atempts": 3}}, "retry.atempts", "did you mean 'attempts'?"),
        (
            "PATCH",
            SHIPPING,
            {"max_consumer": 2},
            "max_consumer",
            "did you mean 'max_consumers'?",
        ),
        ("POST", f"{SHIPPING}/move", {"too": "now"}, "too", "did you mean 'to'?"),
        (
            "POST",
            f"{SHIPPING}/replay",
            {"begin": 1},
            "begin",
            "There is no field 'begin'; it has start, end",
        ),
        (
            "POST",
            f"{SHIPPING}/deliveries/retry",
            {"position": [1]},
            "position",
            "did you mean 'positions'?",
        ),
        ("POST", "/v1/settle", {"aks": []}, "aks", "did you mean 'ack'?"),
        (
            "POST",
            "/v1/settle",
            {"retry": {"1-1-a": {"reason": "no", "eror": ""}}},
            "retry.1-1-a.eror",
            "did you mean 'error'?",
        ),
        ("POST", "/v1/settle", {"x" * 100_000: 1}, "x" * 200, "There is no field 'xxxx"),
    ],
)
async def test_in_a_body(
    mp: Milepost, client: httpx.AsyncClient, method: str, path: str, body: Any, field: str, words: str
) -> None:
    await mp.create_subscription("shipping")
    answer = await client.request(method, path, json=body)
    found = problem(answer, INVALID, words)
    assert found["field"] == field
    assert len(found["detail"]) < 1000
    assert await mp.head() == 0


async def test_what_is_not_ours_to_know_may_have_any_field(mp: Milepost, client: httpx.AsyncClient) -> None:
    message = {"type": "a", "data": {"dta": 1}, "properties": {"propertys": 1}, "metadata": {"meta": {"data": 1}}}
    done(await client.post("/v1/streams/order-1", json=message))
    [read] = [each async for each in mp.read()]
    assert read.properties == {"propertys": 1}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{SHIPPING}/pull", {"limit": 4}),
        ("POST", f"{SHIPPING}/pause", {"force": True}),
        ("DELETE", SHIPPING, {"force": True}),
        ("GET", "/v1/messages", {"limit": 1}),
    ],
)
async def test_a_body_where_none_is_taken(
    mp: Milepost, client: httpx.AsyncClient, method: str, path: str, body: Any
) -> None:
    """What it says is a parameter of the address: left unread it would be the default."""
    sub = await mp.create_subscription("shipping", tracking="all")
    [name] = body
    answer = await client.request(method, path, json=body)
    found = problem(answer, INVALID, "takes no body", name, "in the address")
    assert found["field"] == "body"
    assert (await sub.info()).status != "paused"
    done(await client.request("POST", f"{SHIPPING}/pull", json={}))
