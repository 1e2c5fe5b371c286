"""The server within another application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx
import pytest
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.routing import Mount

from milepost import Milepost
from milepost.server import create_app
from milepost.server.problems import NOT_FOUND
from server.answers import done, problem
from support import MakeMilepost


def mounted(mp: Milepost, framework: str) -> object:
    """An application that has a server at /milepost."""
    inner = create_app(mp, access="open")
    if framework == "starlette":
        return Starlette(routes=[Mount("/milepost", app=inner)])

    @asgi("/milepost", is_mount=True, copy_scope=True)
    async def server(scope: object, receive: object, send: object) -> None:
        await inner(scope, receive, send)  # type: ignore[arg-type]

    return Litestar([server], openapi_config=None, logging_config=None)


@pytest.mark.parametrize("framework", ["starlette", "litestar"])
async def test_at_a_path_of_another_application(mp: Milepost, framework: str) -> None:
    transport = httpx.ASGITransport(mounted(mp, framework))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.example/milepost") as client:
        for stream in ("order-42", "order-ä b", "order-%"):
            appended = done(await client.post(f"/v1/streams/{quote(stream)}", json={"type": "a"}))
            assert appended["stream"] == stream
            assert len(done(await client.get(f"/v1/streams/{quote(stream)}"))["messages"]) == 1
        problem(await client.get("/v1/nothing"), NOT_FOUND)
        assert (await client.get("/openapi.json")).json()["openapi"].startswith("3.1")


async def test_a_slash_in_a_name(mp: Milepost) -> None:
    transport = httpx.ASGITransport(mounted(mp, "starlette"))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.example/milepost") as client:
        assert done(await client.post("/v1/streams/order-a%2Fb", json={"type": "a"}))["stream"] == "order-a/b"


@asynccontextmanager
async def lifespan(app: object) -> AsyncIterator[None]:
    """What a server of ASGI does around requests."""
    import asyncio

    events: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    answers: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    running = asyncio.create_task(app({"type": "lifespan", "state": {}}, events.get, answers.put))  # type: ignore[operator]
    for word in ("startup", "shutdown"):
        await events.put({"type": f"lifespan.{word}"})
        assert (await answers.get())["type"] == f"lifespan.{word}.complete"
        if word == "startup":
            yield
    await running


async def test_alone_it_opens_and_closes_what_it_serves(make_mp: MakeMilepost) -> None:
    mp = make_mp()
    app = create_app(mp, access="local")
    async with lifespan(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert done(await client.get("/v1/head")) == {"position": 0}
    with pytest.raises(Exception, match="not open"):
        await mp.head()
