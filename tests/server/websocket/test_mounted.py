"""Consumers of a server within another application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from websockets.exceptions import InvalidStatus

from engine.consuming.taking import orders
from milepost import Milepost
from milepost.server import create_app
from milepost.server.process import listen
from server.websocket.talking import consuming, talking


@pytest.mark.parametrize("implementation", ["websockets-sansio", "wsproto"])
async def test_within_another_application(mp: Milepost, shipping: str, implementation: str) -> None:
    """Whatever serves it: what the server itself bounds is bounded there too."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with mp:
            yield

    app = Starlette(lifespan=lifespan, routes=[Mount("/milepost", app=create_app(mp, access="open"))])
    config = uvicorn.Config(app, ws=implementation, log_config=None, timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listener:
        running = asyncio.create_task(server._serve(sockets=[listener]))
        while not server.started:
            assert not running.done(), running
            await asyncio.sleep(0.01)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/milepost"
        await orders(mp, 2)
        async with consuming(address) as talk:
            assert talk.welcome["node"] is None
            first, second = await talk.take(2)
            await talk.say("settle", ref=1, ack=[first["id"], second["id"]])
            await talk.expect("settled", ref=1, refused=[])
            await talk.connection.send("{" + " " * 2**20)
            await talk.ended("bad frame", 1008)
        with pytest.raises(InvalidStatus) as refused:
            async with talking(address, "nowhere"):
                pass
        assert refused.value.response.status_code == 404
        server.should_exit = True
        await running
