"""Subscriptions over HTTP: created, looked at, operated."""

from typing import Any

import httpx
import pytest

from milepost import Message, Milepost, NewMessage
from milepost.server.problems import (
    ALREADY_EXISTS,
    DECLARED_IN_CODE,
    FILTER,
    INVALID,
    NOT_CONFIRMED,
    UNKNOWN_SUBSCRIPTION,
)
from server.answers import done, problem
from support import MakeMilepost

SHIPPING = "/v1/subscriptions/default/shipping"
INVOICES = "/v1/subscriptions/default/invoices"


@pytest.fixture
async def shipping(client: httpx.AsyncClient) -> None:
    """A subscription for consumers."""
    done(await client.post("/v1/subscriptions", json={"name": "shipping", "category": "order"}))


@pytest.fixture
async def handled(mp: Milepost) -> list[int]:
    """A program that has handled five orders; what it handles."""
    seen: list[int] = []

    @mp.subscription("invoices", category="order", lanes=2)
    async def invoice(message: Message[Any]) -> None:
        seen.append(message.position)

    for number in range(5):
        await mp.append(f"order-{number}", NewMessage("placed"))
    await mp.run_until_idle()
    return seen


class TestCreating:
    async def test_with_every_setting(self, mp: Milepost, client: httpx.AsyncClient) -> None:
        body = {
            "name": "shipping",
            "category": "order",
            "types": ["order.placed", "order.changed"],
            "where": "amount > 3",
            "start": "now",
            "ordered_by": {"property": "customer"},
            "strategy": "pinned",
            "on_park": "block",
            "timeout": 5,
            "retry": {"attempts": 3, "delay": 0.5},
            "checkpoint": {"messages": 10},
            "window": 50,
            "lease": 10,
            "stall_after": 7,
            "max_waiting": 8,
            "max_consumers": 2,
            "max_unrouted": 9,
            "keep_done": 60,
            "if_exists": "error",
        }
        info = done(await client.post("/v1/subscriptions", json=body))
        assert (info["group"], info["name"], info["status"]) == ("default", "shipping", "waiting")
        settings = info["settings"]
        assert settings["category"] == ["order"]
        assert settings["types"] == ["order.changed", "order.placed"]
        assert settings["ordered_by"] == "property customer"
        assert settings["retry"]["attempts"] == 3
        assert settings["retry"]["delay"] == 0.5
        assert settings["checkpoint"] == {"seconds": 0.2, "messages": 10}
        for name in ("where", "strategy", "on_park", "timeout", "window", "lease", "stall_after", "max_waiting"):
            assert settings[name] == body[name]
        for name in ("max_consumers", "max_unrouted", "keep_done"):
            assert settings[name] == body[name]

    @pytest.mark.parametrize(
        ("start", "position"), [("beginning", 0), ("now", 5), (3, 3), ("4", 4), ("2020-01-01T00:00:00Z", 0)]
    )
    async def test_where_it_begins(
        self, mp: Milepost, client: httpx.AsyncClient, start: str | int, position: int
    ) -> None:
        await mp.append("order-1", [NewMessage("placed")] * 5)
        info = done(await client.post("/v1/subscriptions", json={"name": "shipping", "start": start}))
        assert info["lanes"][0]["position"] == position

    @pytest.mark.usefixtures("shipping")
    async def test_one_that_exists(self, client: httpx.AsyncClient) -> None:
        body = {"name": "shipping", "category": "payment"}
        answer = await client.post("/v1/subscriptions", json={**body, "if_exists": "error"})
        problem(answer, ALREADY_EXISTS, "exists already")
        kept = done(await client.post("/v1/subscriptions", json={**body, "if_exists": "ignore"}))
        assert kept["settings"]["category"] == ["order"]
        changed = done(await client.post("/v1/subscriptions", json=body))
        assert changed["settings"]["category"] == ["payment"]
        answer = await client.post("/v1/subscriptions", json={**body, "tracking": "all"})
        problem(answer, INVALID, "create another subscription")

    @pytest.mark.usefixtures("handled")
    async def test_one_that_a_program_declares(self, client: httpx.AsyncClient) -> None:
        problem(await client.post("/v1/subscriptions", json={"name": "invoices"}), DECLARED_IN_CODE)

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ({}, "name"),
            ({"name": ""}, "it is empty"),
            ({"name": "a/b"}, "without /"),
            ({"name": "a", "lanes": 3}, "no field 'lanes'"),
            ({"name": "a", "timeout": 0}, "more than 0"),
            ({"name": "a", "strategy": "random"}, "round_robin"),
            ({"name": "a", "retry": {"attempts": 0}}, ">= 1"),
            ({"name": "a", "retry": {"factor": 0.5}}, "factor is a number from 1"),
            ({"name": "a", "retry": {"attempt": 1}}, "did you mean 'attempts'"),
            ({"name": "a", "checkpoint": {"messages": 0}}, ">= 1"),
            ({"name": "a", "checkpoint": {"seconds": -1}}, "at least 0"),
            ({"name": "a", "window": 2**31}, "<= 2147483647"),
            ({"name": "a", "ordered_by": {"property": "x y"}}, "property's name"),
            ({"name": "a", "start": "later"}, "2026-03-01T12:00:00Z"),
            ({"name": "a", "start": -1}, "a position is wanted"),
            ({"name": "a", "start": "2026-01-01T00:00:00"}, "2026-03-01T12:00:00Z"),
            ({"name": "a", "category": []}, "selects nothing"),
        ],
    )
    async def test_what_cannot_be_created(
        self, client: httpx.AsyncClient, body: dict[str, Any], words: str
    ) -> None:
        problem(await client.post("/v1/subscriptions", json=body), INVALID, words)
        assert done(await client.get("/v1/subscriptions")) == {"subscriptions": []}

    async def test_a_wrong_filter(self, client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/subscriptions", json={"name": "a", "where": '1 == "a"'})
        assert problem(answer, FILTER)["kind"] == "type"


class TestLooking:
    @pytest.mark.usefixtures("shipping")
    async def test_all_of_them(self, make_mp: MakeMilepost, client: httpx.AsyncClient) -> None:
        async with make_mp(group="billing eu") as other:
            await other.create_subscription("invoices")
        found = done(await client.get("/v1/subscriptions"))["subscriptions"]
        assert [(each["group"], each["name"]) for each in found] == [
            ("billing eu", "invoices"),
            ("default", "shipping"),
        ]
        [only] = done(await client.get("/v1/subscriptions", params={"group": "default"}))["subscriptions"]
        assert only["name"] == "shipping"
        shown = done(await client.get("/v1/subscriptions/billing%20eu/invoices"))
        assert shown["group"] == "billing eu"

    async def test_one_that_is_not_there(self, client: httpx.AsyncClient) -> None:
        for method, path in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/pause"),
            ("POST", "/resume"),
            ("GET", "/move?to=now"),
            ("GET", "/replay?start=0"),
            ("GET", "/deliveries"),
            ("GET", "/deliveries/count"),
            ("GET", "/progress/order-1"),
            ("GET", "/caught-up?position=1"),
        ):
            found = problem(await client.request(method, SHIPPING + path), UNKNOWN_SUBSCRIPTION)
            assert found["name"] == "default/shipping"

    @pytest.mark.usefixtures("shipping")
    async def test_a_name_that_is_nearly_right(self, client: httpx.AsyncClient) -> None:
        answer = await client.get("/v1/subscriptions/default/shiping")
        problem(answer, UNKNOWN_SUBSCRIPTION, "did you mean 'default/shipping'?")


class TestOperating:
    @pytest.mark.usefixtures("shipping")
    async def test_update(self, client: httpx.AsyncClient) -> None:
        info = done(await client.patch(SHIPPING, json={"where": "amount > 3", "timeout": 7}))
        assert (info["settings"]["where"], info["settings"]["timeout"]) == ("amount > 3", 7)
        info = done(await client.patch(SHIPPING, json={"where": None}))
        assert (info["settings"]["where"], info["settings"]["timeout"]) == (None, 7)
        problem(await client.patch(SHIPPING, json={"start": "now"}), INVALID, "move it instead")
        problem(await client.patch(SHIPPING, json={"tracking": "all"}), INVALID, "create another subscription")
        problem(await client.patch(SHIPPING, json={"timeout": 0}), INVALID, "more than 0")

    @pytest.mark.usefixtures("handled")
    async def test_update_of_what_a_program_declares(self, client: httpx.AsyncClient) -> None:
        done(await client.patch(INVOICES, json={"concurrency": 2}))
        problem(await client.patch(INVOICES, json={"where": "a > 1"}), DECLARED_IN_CODE, "change it there")
        problem(await client.patch(INVOICES, json={}), INVALID, "nothing to update")

    @pytest.mark.usefixtures("shipping")
    async def test_pause_and_resume(self, mp: Milepost, client: httpx.AsyncClient) -> None:
        assert done(await client.post(f"{SHIPPING}/pause"))["status"] == "paused"
        assert (await mp.manage("shipping").info()).status == "paused"
        assert done(await client.post(f"{SHIPPING}/resume"))["status"] == "waiting"

    async def test_a_pause_that_is_not_confirmed(self, mp: Milepost, client: httpx.AsyncClient) -> None:
        await mp.create_subscription("shipping", timeout=3600)
        await mp.append("order-1", NewMessage("placed"))
        async with mp.consumer("shipping") as consumer:
            delivery = await anext(consumer)
            answer = await client.post(f"{SHIPPING}/pause", params={"timeout": 0})
            found = problem(answer, NOT_CONFIRMED, "not confirmed by")
            assert found["workers"]
            assert found["transient"] is True
            await delivery.ack()

    async def test_move(self, client: httpx.AsyncClient, mp: Milepost, handled: list[int]) -> None:
        plan = done(await client.get(f"{INVOICES}/move", params={"to": "2"}))
        assert plan == {"position": 2, "again": 3, "passed_over": 0, "rows": {}}
        assert done(await client.post(f"{INVOICES}/move", json={"to": 2})) == {"forgotten": 0}
        handled.clear()
        await mp.run_until_idle()
        assert sorted(handled) == [3, 4, 5]

    async def test_replay(self, client: httpx.AsyncClient, mp: Milepost, handled: list[int]) -> None:
        plan = done(await client.get(f"{INVOICES}/replay", params={"start": "beginning", "end": "3"}))
        assert plan["again"] == 3
        assert done(await client.post(f"{INVOICES}/replay", json={"start": 0, "end": 3})) == {"again": 3}
        handled.clear()
        await mp.run_until_idle()
        assert sorted(handled) == [1, 2, 3]

    @pytest.mark.usefixtures("handled")
    async def test_places_that_mean_nothing(self, client: httpx.AsyncClient) -> None:
        for path, field in (
            ("move?to=later", "to"),
            ("replay?start=x", "start"),
            ("replay?start=0&end=now", "end"),
        ):
            assert problem(await client.get(f"{INVOICES}/{path}"), INVALID)["field"] == field
        problem(await client.get(f"{INVOICES}/replay?start=3&end=2"), INVALID, "has nothing in it")
        problem(await client.post(f"{INVOICES}/replay", json={"start": 3, "end": 2}), INVALID, "has nothing in it")
        problem(await client.get(f"{INVOICES}/move"), INVALID, "to")
        problem(await client.post(f"{INVOICES}/move", json={"to": 99_999}), INVALID, "the log ends at")

    @pytest.mark.usefixtures("shipping")
    async def test_delete(self, client: httpx.AsyncClient) -> None:
        answer = await client.delete(SHIPPING)
        assert (answer.status_code, answer.content) == (204, b"")
        problem(await client.get(SHIPPING), UNKNOWN_SUBSCRIPTION)


async def test_one_is_created_in_another_group(client: httpx.AsyncClient) -> None:
    made = done(await client.post("/v1/subscriptions", json={"name": "shipping", "group": "warehouse"}))
    assert (made["group"], made["name"]) == ("warehouse", "shipping")
    answer = await client.post("/v1/subscriptions", json={"name": "shipping", "group": "ware/house"})
    assert problem(answer, INVALID)["field"]


async def test_statistics_of_one_without_consumers(client: httpx.AsyncClient) -> None:
    done(await client.post("/v1/subscriptions", json={"name": "shipping"}))
    told = done(await client.get("/v1/subscriptions/default/shipping/statistics"))
    assert (told["owner"], told["consumers"], told["acked"]) == (None, [], 0)
