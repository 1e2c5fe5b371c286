"""What Prometheus is told of consumers and connections."""

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from engine.consuming.taking import orders, until
from milepost import Milepost
from server.followers import following
from server.websocket.conftest import Serving
from server.websocket.talking import consuming, talking

SHIPPING = 'group="default",subscription="shipping"'
CONSUME = 'method="GET",route="/v1/subscriptions/{group}/{name}/consume"'


async def metrics(server: Serving) -> dict[str, float]:
    """Every figure of the server itself."""
    async with httpx.AsyncClient(base_url=server.address, timeout=60) as client:
        lines = (await client.get("/metrics")).text.splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("milepost_server_"))
    return {name.removeprefix("milepost_server_"): float(value) for name, _, value in pairs}


async def test_deliveries_and_settlements(mp: Milepost, server: Serving) -> None:
    await orders(mp, 5)
    async with consuming(server.address) as talk:
        one, two, three, four, five = [each["id"] for each in await talk.take(5)]
        await talk.say("settle", ack=[one, two], park=[{"id": three}], skip=[{"id": four}])
        await talk.say("settle", ref=1, ack=[one], retry=[{"id": five, "after": 60}])
        await talk.hear_of("settled")
        found = await metrics(server)
    assert found[f"deliveries_sent_total{{{SHIPPING}}}"] == 5
    outcomes = {"ack": 2, "park": 1, "skip": 1, "retry": 1, "refused": 1}
    for outcome, count in outcomes.items():
        labels = f'group="default",outcome="{outcome}",subscription="shipping"'
        assert found[f"settlements_total{{{labels}}}"] == count
    assert found[f'requests_total{{{CONSUME},status="101"}}'] == 1


async def test_who_is_connected(mp: Milepost, server: Serving) -> None:
    async with httpx.AsyncClient(base_url=server.address, timeout=60) as client, following(client):
        async with consuming(server.address), consuming(server.address) as broken:
            found = await metrics(server)
            assert found['connections{kind="consumer"}'] == 2
            assert found['connections{kind="follower"}'] == 1
            # The follower's, and the one that asks.
            assert found['connections{kind="http"}'] == 2
            assert found[f"consumers{{{SHIPPING}}}"] == 2
            broken.vanish()
            await until(lambda: _is(server, 'connections{kind="away"}', 1))
            with pytest.raises(InvalidStatus):
                async with talking(server.address, "nowhere"):
                    pass
        await until(lambda: _is(server, 'consumers_ended_total{reason="left"}', 1))
    found = await metrics(server)
    assert found['connections{kind="consumer"}'] == 0
    assert found['consumers_ended_total{reason="broken"}'] == 1
    assert found[f'requests_total{{{CONSUME},status="404"}}'] == 1
    await until(lambda: _is(server, 'connections{kind="follower"}', 0))
    await until(lambda: _is(server, 'connections{kind="http"}', 1))


async def _is(server: Serving, name: str, value: float) -> bool:
    return (await metrics(server)).get(name) == value
