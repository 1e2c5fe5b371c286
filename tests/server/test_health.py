"""Probes, metrics, and the headers of every answer."""

import asyncio

import httpx
import pytest

from milepost import Milepost, NewMessage, Unavailable
from milepost.server import Server, health
from server.answers import done
from support import MakeMilepost


async def test_healthy(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "READINESS_TIMEOUT_SECONDS", 60)
    for path in ("/healthz", "/readyz"):
        assert done(await client.get(path)) == {"status": "ok", "reasons": []}
        answer = await client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


async def test_who_holds_the_horizon_is_told_and_it_is_ready(
    mp: Milepost, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "READINESS_TIMEOUT_SECONDS", 60)
    monkeypatch.setattr(health, "READINESS_FRESH_SECONDS", 0.0)
    monkeypatch.setattr("milepost.log.protocol.HOLDER_NAMED_SECONDS", 0.0)
    async with mp.log.database.connection() as holder:
        async with holder.transaction():
            await mp.append("order-1", NewMessage("placed"), connection=holder)
            await mp.append("order-2", NewMessage("placed"))
            answer = await client.get("/readyz")
        assert answer.status_code == 200
        body = answer.json()
        seconds = body["horizon"].pop("held_seconds")
        assert 0 < seconds < 60
        held = {"held_positions": 2, "held_by": f"pid {holder.info.backend_pid}"}
        assert body == {"status": "ok", "reasons": [], "horizon": held}
    assert done(await client.get("/readyz")) == {"status": "ok", "reasons": []}


async def test_not_ready_without_the_database(
    mp: Milepost, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> int:
        raise Unavailable("PostgreSQL: no route to db-7.internal")

    monkeypatch.setattr(mp, "head", away)
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {"status": "unavailable", "reasons": ["the database does not answer"]}
    assert (await client.get("/healthz")).status_code == 200


async def test_not_ready_with_a_database_that_hangs(
    mp: Milepost, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs() -> int:
        return await asyncio.Future[int]()

    monkeypatch.setattr(health, "READINESS_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(mp, "head", hangs)
    assert (await client.get("/readyz")).status_code == 503


async def test_many_probes_ask_once(
    mp: Milepost, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def counted() -> int:
        nonlocal asked
        asked += 1
        return 0

    monkeypatch.setattr(health, "READINESS_FRESH_SECONDS", 3600)
    monkeypatch.setattr(mp, "head", counted)
    await asyncio.gather(*(client.get("/readyz") for _ in range(20)))
    assert asked == 1


async def test_not_ready_while_it_is_stopped(app: Server, client: httpx.AsyncClient) -> None:
    app.shutdown.begin()
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["reasons"]) == (503, ["the server is being stopped"])


async def test_metrics(mp: Milepost, make_mp: MakeMilepost, client: httpx.AsyncClient) -> None:
    await mp.create_subscription("shipping")
    async with make_mp(group="billing") as other:
        await other.create_subscription("invoices")
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    lines = answer.text.splitlines()
    assert 'milepost_lag_positions{group="default",subscription="shipping"} 0.0' in lines
    assert 'milepost_lag_positions{group="billing",subscription="invoices"} 0.0' in lines
    assert 'milepost_log_horizon_position{group="default"} 0.0' in lines


async def test_requests_are_counted(client: httpx.AsyncClient) -> None:
    """By route, not by path: who makes up paths and methods makes no figures of their own."""
    for stream in ("order-1", "order-2"):
        done(await client.post(f"/v1/streams/{stream}", json={"type": "a"}))
    await client.get("/v1/subscriptions/default/nobody")
    for method, path in (("GET", "/made/up"), ("GET", "/made/up/too"), ("PUT", "/v1/head"), ("BREW", "/v1/head")):
        await client.request(method, path)
    await client.head("/healthz")
    lines = (await client.get("/metrics")).text.splitlines()
    counted = {line for line in lines if line.startswith("milepost_server_requests_total{")}
    assert counted == {
        'milepost_server_requests_total{method="POST",route="/v1/streams/{stream}",status="200"} 2.0',
        'milepost_server_requests_total{method="GET",route="/v1/subscriptions/{group}/{name}",status="404"} 1.0',
        'milepost_server_requests_total{method="GET",route="other",status="404"} 2.0',
        'milepost_server_requests_total{method="PUT",route="other",status="405"} 1.0',
        'milepost_server_requests_total{method="other",route="other",status="405"} 1.0',
        'milepost_server_requests_total{method="HEAD",route="/healthz",status="200"} 1.0',
    }


@pytest.mark.parametrize(
    "path", ["/v1/head", "/healthz", "/openapi.json", "/metrics", "/nothing", "/v1/messages?x=1"]
)
async def test_headers(client: httpx.AsyncClient, path: str) -> None:
    headers = (await client.get(path)).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "strict-transport-security" not in headers
    assert "server" not in headers


async def test_strict_transport_over_tls(app: Server) -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as client:
        assert "max-age=" in (await client.get("/healthz")).headers["strict-transport-security"]
