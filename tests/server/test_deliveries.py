"""Deliveries and progress over HTTP."""

from typing import Any

import httpx
import pytest

from milepost import Message, Milepost, NewMessage, Park
from milepost.server.problems import INVALID, NOT_HANDLED, NOT_HANDLED_YET
from server.answers import done, problem

INVOICES = "/v1/subscriptions/default/invoices"
DELIVERIES = f"{INVOICES}/deliveries"


@pytest.fixture
async def parked(mp: Milepost) -> None:
    """Five streams with a parked message each; the first also has one that waits behind it."""

    @mp.subscription("invoices", category="order", lanes=2)
    async def invoice(message: Message[Any]) -> None:
        if message.type == "odd":
            raise Park(f"odd number {message.data}")

    for number in range(5):
        await mp.append(f"order-{number}", NewMessage("odd", number))
    await mp.append("order-0", NewMessage("even"))
    await mp.run_until_idle(errors="park")


@pytest.mark.usefixtures("parked")
class TestLooking:
    async def test_in_pages(self, client: httpx.AsyncClient) -> None:
        first = done(await client.get(DELIVERIES, params={"limit": 4}))
        assert [each["position"] for each in first["deliveries"]] == [1, 2, 3, 4]
        assert (first["next"], first["more"]) == (4, True)
        second = done(await client.get(DELIVERIES, params={"limit": 4, "after": 4}))
        assert [each["position"] for each in second["deliveries"]] == [5, 6]
        assert (second["next"], second["more"]) == (6, False)

    async def test_what_it_says(self, client: httpx.AsyncClient) -> None:
        [found] = done(await client.get(DELIVERIES, params={"key": "order-0", "state": "parked"}))["deliveries"]
        assert (found["state"], found["reason"], found["attempts"]) == ("parked", "odd number 0", 1)
        assert (found["message"]["stream"], found["message"]["data"]) == ("order-0", 0)
        assert found["waiting_behind"] == 1

    async def test_choosing(self, client: httpx.AsyncClient) -> None:
        for params, expected in (
            ({"state": "waiting"}, [6]),
            ({"state": ["waiting", "parked"], "up_to": 2}, [1, 2]),
            ({"reason": "NUMBER 3"}, [4]),
        ):
            found = done(await client.get(DELIVERIES, params=params))["deliveries"]  # type: ignore[arg-type]
            assert [each["position"] for each in found] == expected
        assert done(await client.get(f"{DELIVERIES}/count", params={"state": "parked"})) == {"count": 5}
        assert problem(await client.get(DELIVERIES, params={"state": "odd"}), INVALID)["field"] == "state"


@pytest.mark.usefixtures("parked")
class TestDeciding:
    async def test_positions(self, client: httpx.AsyncClient) -> None:
        decided = done(await client.post(f"{DELIVERIES}/skip", json={"positions": [1, 99]}))
        assert decided["moved"] == 1
        assert "it has no delivery" in decided["refused"]["99"]

    async def test_retry(self, mp: Milepost, client: httpx.AsyncClient) -> None:
        assert done(await client.post(f"{DELIVERIES}/retry", json={"positions": [2]}))["moved"] == 1
        assert (await mp.manage("invoices").info()).retrying == 1

    async def test_at_most_so_many_up_to_a_position(self, client: httpx.AsyncClient) -> None:
        assert done(await client.post(f"{DELIVERIES}/skip", json={"up_to": 4, "limit": 3}))["moved"] == 3
        assert done(await client.post(f"{DELIVERIES}/skip", json={"up_to": 4, "limit": 3}))["moved"] == 1
        assert done(await client.get(f"{DELIVERIES}/count", params={"state": "parked"})) == {"count": 1}

    async def test_all_of_a_reason(self, client: httpx.AsyncClient) -> None:
        decided = done(await client.post(f"{DELIVERIES}/retry", json={"all": True, "reason": "number 3"}))
        assert decided == {"moved": 1, "refused": {}}

    async def test_all_of_a_key(self, client: httpx.AsyncClient) -> None:
        count = {"state": "parked", "key": "order-2"}
        for action, moved in (("retry", 1), ("skip", 0)):
            body = {"all": True, "key": "order-2"}
            assert done(await client.post(f"{DELIVERIES}/{action}", json=body))["moved"] == moved
            assert done(await client.get(f"{DELIVERIES}/count", params=count)) == {"count": 0}
        body = {"up_to": 5, "key": "order-3"}
        assert done(await client.post(f"{DELIVERIES}/skip", json=body)) == {"moved": 1, "refused": {}}
        assert done(await client.get(f"{DELIVERIES}/count", params={"state": "parked"})) == {"count": 3}

    @pytest.mark.shard(
        "variants",
        fast=[
            "body0-exactly one of positions, all and up_to",
            "body4-takes no state",
            "body7-a number from 0 on",
            "body9-an empty list",
            "body11-Invalid enum value",
        ],
    )
    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ({}, "exactly one of positions, all and up_to"),
            ({"all": True, "up_to": 3}, "exactly one"),
            ({"all": True, "limit": 10_001}, "from 0 to 10,000"),
            ({"all": True, "limit": -1}, "from 0 to 10,000"),
            ({"positions": [1], "state": ["running"]}, "takes no state"),
            ({"positions": [1], "key": "order-0"}, "go with all"),
            ({"positions": [-1]}, "a number from 0 on"),
            ({"positions": [2**64]}, "a number from 0 on"),
            ({"positions": list(range(10_001))}, "10,001 of them"),
            ({"all": True, "state": []}, "an empty list"),
            ({"all": True, "state": ["running"]}, "takes no state"),
            ({"all": True, "state": ["odd"]}, "Invalid enum value"),
            ({"positions": "1"}, "Expected `array | null`"),
        ],
    )
    async def test_what_is_not_meant(self, client: httpx.AsyncClient, body: dict[str, Any], words: str) -> None:
        for action in ("retry", "skip"):
            problem(await client.post(f"{DELIVERIES}/{action}", json=body), INVALID, words)


@pytest.mark.usefixtures("parked")
class TestProgress:
    async def test_of_a_stream(self, client: httpx.AsyncClient) -> None:
        found = done(await client.get(f"{INVOICES}/progress/order-0"))
        assert found == {"stream": "order-0", "handled": 0, "known": 2, "lagging": True, "exact": True}

    async def test_caught_up(self, mp: Milepost, client: httpx.AsyncClient) -> None:
        other = await mp.append("payment-1", [NewMessage("a"), NewMessage("b")])
        await mp.run_until_idle(errors="park")
        for params in (
            {"position": other.position},
            {"stream": "payment-1", "version": 2, "messages": 2},
        ):
            answer = await client.get(f"{INVOICES}/caught-up", params=params)  # type: ignore[arg-type]
            assert (answer.status_code, answer.content) == (204, b"")

    async def test_not_caught_up(self, mp: Milepost, client: httpx.AsyncClient) -> None:
        answer = await client.get(f"{INVOICES}/caught-up", params={"position": 1})
        assert problem(answer, NOT_HANDLED, "parked")["state"] == "parked"
        await mp.append("order-9", NewMessage("even"))
        answer = await client.get(f"{INVOICES}/caught-up", params={"position": 7, "timeout": 0})
        found = problem(answer, NOT_HANDLED_YET)
        assert (found["state"], found["transient"]) == ("not reached", True)

    async def test_what_is_to_be_caught_up_with(self, client: httpx.AsyncClient) -> None:
        for params in ({}, {"stream": "a-1"}, {"position": 1, "stream": "a-1", "version": 1}, {"version": 1}):
            answer = await client.get(f"{INVOICES}/caught-up", params=params)  # type: ignore[arg-type]
            problem(answer, INVALID, "either a position is wanted")
