"""Each frame, and what answers it."""

import asyncio
from typing import Any

import pytest

from engine.consuming.taking import orders, until
from milepost import Milepost
from server.websocket.conftest import Serving
from server.websocket.talking import consuming, talking, witnessing


async def test_a_hello_is_welcome(server: Serving) -> None:
    async with talking(server.address, subprotocols=["milepost.v1"]) as talk:
        assert talk.connection.subprotocol == "milepost.v1"
        welcome = await talk.hello(consumer="packing")
        assert welcome["consumer"].startswith("packing-")
        assert welcome["node"] == server.address
        assert (welcome["standby"], welcome["timeout"], welcome["resumed"], welcome["open"]) == (
            False,
            30,
            False,
            [],
        )


async def test_deliveries_are_settled(mp: Milepost, server: Serving) -> None:
    await orders(mp, 5)
    async with consuming(server.address) as talk:
        first, second, third, fourth, fifth = await talk.take(5)
        assert [each["message"]["data"]["n"] for each in (first, second, third, fourth, fifth)] == [0, 1, 2, 3, 4]
        assert (first["attempt"], first["route"], first["replay"]) == (1, "everything", False)
        await talk.say(
            "settle",
            ref=7,
            ack=[first["id"]],
            retry=[{"id": second["id"], "after": 0, "reason": "no van", "error": "Traceback …"}],
            park=[{"id": third["id"], "reason": "broken"}],
            skip=[{"id": fourth["id"]}],
        )
        moved = [each["id"] for each in (first, second, third, fourth)]
        await talk.expect("settled", ref=7, moved=moved, refused=[])
        [again] = await talk.take(1)
        assert (again["attempt"], again["message"]["data"]["n"]) == (2, 1)
        assert again["id"] != second["id"]
        await talk.say("settle", ref="late", ack=[second["id"], fifth["id"], again["id"], again["id"], 99])
        settled = await talk.expect("settled", ref="late", moved=[fifth["id"], again["id"]])
        assert [each["id"] for each in settled["refused"]] == [second["id"], again["id"], 99]
        assert "not open" in settled["refused"][0]["reason"]
    parked = [each async for each in mp.manage("shipping").deliveries(state="parked")]
    assert [(each.message.data["n"], each.reason) for each in parked if each.message] == [(2, "broken")]
    await until(lambda: is_done(mp))


async def is_done(mp: Milepost) -> bool:
    info = await mp.manage("shipping").info()
    return info.lag.positions == 0 and info.in_flight == 0


async def test_without_a_ref_only_what_is_refused_is_answered(mp: Milepost, server: Serving) -> None:
    await orders(mp, 1)
    async with consuming(server.address) as talk:
        [delivery] = await talk.take(1)
        await talk.say("settle", ack=[delivery["id"]])
        await talk.say("ping", ref=1)
        await talk.expect("pong", ref=1)
        await talk.say("settle", ack=[delivery["id"]])
        await talk.expect("settled", ref=None, moved=[])


async def test_what_nobody_has_begun_with_goes_back(mp: Milepost, server: Serving) -> None:
    await orders(mp, 2)
    async with consuming(server.address) as talk:
        first, second = await talk.take(2)
        await talk.say("settle", ref=1, ack=[first["id"]], back=[second["id"], first["id"], 99])
        settled = await talk.expect("settled", ref=1, moved=[first["id"], second["id"]])
        assert [each["id"] for each in settled["refused"]] == [first["id"], 99]
        [again] = await talk.take(1)
        assert (again["message"]["data"]["n"], again["attempt"], again["id"] > second["id"]) == (1, 1, True)
        await talk.say("settle", ref=2, back=[second["id"]])
        settled = await talk.expect("settled", ref=2, moved=[])
        assert [each["id"] for each in settled["refused"]] == [second["id"]]


async def test_what_nobody_has_begun_with_is_called_back(mp: Milepost, server: Serving) -> None:
    await orders(mp, 3)
    async with consuming(server.address) as talk:
        first, *others = [each["id"] for each in await talk.take(3)]
        pausing = asyncio.create_task(mp.manage("shipping").pause())
        await talk.expect("recall")
        await talk.say("settle", ref=1, ack=[first], back=others)
        await talk.expect("settled", ref=1, moved=[first, *others])
        await pausing
        await mp.manage("shipping").resume()
        assert [each["attempt"] for each in await talk.take(2)] == [1, 1]


async def test_routes_by_priority_and_filter(mp: Milepost, server: Serving) -> None:
    routes = [{"where": "n == 1", "priority": 2, "name": "one"}, {"where": "n > 1"}]
    async with consuming(server.address) as rest, consuming(server.address, routes=routes) as talk:
        await rest.say("configure", ref=1, routes=[{"priority": -1}])
        await rest.expect("done", ref=1)
        await orders(mp, 3)
        assert [(each["route"], each["message"]["data"]["n"]) for each in await talk.take(2)] == [
            ("one", 1),
            ("n > 1", 2),
        ]
        assert [each["message"]["data"]["n"] for each in await rest.take(1)] == [0]


async def test_capacity_holds_back_and_configure_changes_it(mp: Milepost, server: Serving) -> None:
    await orders(mp, 4)
    async with consuming(server.address, routes=[{"capacity": 1}]) as talk:
        [first] = await talk.take(1)
        await talk.is_dry()
        await talk.say("settle", ref=1, ack=[first["id"]])
        await talk.expect("settled", ref=1)
        await talk.take(1)
        await talk.say("configure", ref="more", routes=[{"capacity": 3}])
        await talk.expect("done", ref="more")
        await talk.take(2)


async def test_time_runs_out_unless_it_is_extended(mp: Milepost, server: Serving) -> None:
    await mp.manage("shipping").update(timeout=4)
    await orders(mp, 2)
    async with consuming(server.address) as talk:
        first, second = await talk.take(2)
        await talk.say("extend", ref=1, deliveries=[first["id"], 77], seconds=60)
        extended = await talk.expect("settled", ref=1, moved=[first["id"]])
        assert [each["id"] for each in extended["refused"]] == [77]
        await talk.expect("lost", deliveries=[{"id": second["id"], "reason": "timed out"}])
        await talk.say("settle", ref=2, ack=[first["id"], second["id"]])
        settled = await talk.expect("settled", ref=2, moved=[first["id"]])
        assert [each["id"] for each in settled["refused"]] == [second["id"]]


async def test_drain_ends_when_all_is_settled(mp: Milepost, server: Serving) -> None:
    await orders(mp, 2)
    async with consuming(server.address) as talk, witnessing(mp, server.address) as seen:
        deliveries = await talk.take(2)
        await talk.say("drain", ref=1)
        await talk.expect("done", ref=1)
        await orders(mp, 1, first=2)
        await seen(1)
        await talk.is_dry()
        await talk.say("settle", ref=2, ack=[each["id"] for each in deliveries])
        await talk.expect("settled", ref=2)
        await talk.ended("drained", 1000)


@pytest.mark.parametrize("how", ["leave", "close"])
async def test_who_leaves_gives_back_what_is_open(mp: Milepost, server: Serving, how: str) -> None:
    await orders(mp, 3)
    async with consuming(server.address) as talk:
        await talk.take(3)
        if how == "leave":
            await talk.say("leave")
            await talk.closed()
        else:
            await talk.connection.close()
    async with consuming(server.address) as other:
        assert [each["attempt"] for each in await other.take(3)] == [1, 1, 1]


async def test_a_wrong_frame_has_no_effect(mp: Milepost, server: Serving) -> None:
    await orders(mp, 1)
    frames: list[tuple[dict[str, Any], str]] = [
        ({"type": "settle", "ref": 1, "ack": ["x"]}, "ack"),
        ({"type": "settle", "ref": 1, "retry": [{"id": 1, "after": -1}]}, "after"),
        ({"type": "settle", "ref": 1, "retry": [{"id": 1, "after": 1e300}]}, "after"),
        ({"type": "settle", "ref": 1, "acks": [1]}, "no field 'acks': did you mean 'ack'?"),
        (
            {"type": "settle", "ref": 1, "retry": [{"id": 1, "aftr": 1}]},
            "retry[0]: there is no field 'aftr': did you",
        ),
        (
            {"type": "configure", "ref": 1, "routes": [{}, {"wher": "n"}]},
            "routes[1]: there is no field 'wher': did you",
        ),
        ({"type": "extend", "ref": 1, "deliveries": [1], "seconds": 0}, "seconds"),
        ({"type": "configure", "ref": 1, "routes": []}, "routes"),
        ({"type": "configure", "ref": 1, "routes": [{"where": "1 +"}]}, "filter"),
        ({"type": "configure", "ref": 1, "routes": [{"name": "a"}, {"name": "a"}]}, "name"),
        ({"type": "configure", "ref": 1, "routes": [{"name": "a\0"}]}, "NUL"),
        ({"type": "configure", "ref": 1, "routes": [{"capacity": 2**70}]}, "capacity"),
        ({"type": "hello", "ref": 1}, "hello"),
        ({"type": "dance", "ref": 1}, "dance"),
        ({"ref": 1}, "type"),
    ]
    async with consuming(server.address) as talk:
        [delivery] = await talk.take(1)
        for frame, word in frames:
            await talk.say(**frame) if "type" in frame else await talk.connection.send('{"ref": 1}')
            problem = (await talk.expect("problem", ref=1))["problem"]
            assert problem["status"] == 400
            assert word in str(problem), problem
        await talk.say("settle", ref=2, ack=[delivery["id"]])
        await talk.expect("settled", ref=2, moved=[delivery["id"]])
