"""A plain client of the WebSocket: it says and hears frames as they are."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from milepost import Milepost

PATIENCE = 40.0
"""Seconds after which a test gives up."""

Frame = dict[str, Any]


class Talk:
    """One connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.welcome: Frame = {}

    async def say(self, type: str, **fields: Any) -> None:
        """Sends a frame."""
        await self.connection.send(json.dumps({"type": type, **fields}))

    async def hear(self) -> Frame:
        """The next frame."""
        async with asyncio.timeout(PATIENCE):
            frame: Frame = json.loads(await self.connection.recv())
        return frame

    async def expect(self, type: str, **fields: Any) -> Frame:
        """The next frame, which is of this type and says this."""
        frame = await self.hear()
        assert frame["type"] == type, frame
        assert {name: frame.get(name) for name in fields} == fields, frame
        return frame

    async def hear_of(self, type: str) -> Frame:
        """The next frame of a type; others are passed over."""
        while (frame := await self.hear())["type"] != type:
            pass
        return frame

    async def hello(self, **fields: Any) -> Frame:
        """Says hello and is welcome."""
        await self.say("hello", **fields)
        self.welcome = await self.expect("welcome")
        return self.welcome

    async def take(self, count: int) -> list[Frame]:
        """The next deliveries, so many."""
        found: list[Frame] = []
        while len(found) < count:
            found += (await self.expect("deliveries"))["deliveries"]
        assert len(found) == count, found
        return found

    async def is_dry(self) -> None:
        """Asserts that nothing was sent until now: an answer comes before it."""
        await self.say("ping", ref="dry")
        await self.expect("pong", ref="dry")

    async def ended(self, reason: str, code: int) -> Frame:
        """The last frame, and the code of the close that follows it."""
        frame = await self.expect("end", reason=reason)
        assert await self.closed() == code
        return frame

    async def closed(self) -> int:
        """The code with which the server closed it, with no frame before."""
        try:
            async with asyncio.timeout(PATIENCE):
                frame = await self.connection.recv()
        except ConnectionClosed:
            return self.connection.close_code or 0
        raise AssertionError(f"{frame!r} came")

    def vanish(self) -> None:
        """Breaks the connection without a word."""
        self.connection.transport.abort()


@asynccontextmanager
async def talking(address: str, subscription: str = "default/shipping", **options: Any) -> AsyncIterator[Talk]:
    """A connection to a server, which has said nothing yet."""
    url = f"{address.replace('http', 'ws', 1)}/v1/subscriptions/{subscription}/consume"
    async with connect(url, proxy=None, compression=None, open_timeout=PATIENCE, **options) as connection:
        yield Talk(connection)


@asynccontextmanager
async def consuming(address: str, subscription: str = "default/shipping", **hello: Any) -> AsyncIterator[Talk]:
    """A consumer that is welcome."""
    async with talking(address, subscription) as talk:
        await talk.hello(**hello)
        yield talk


@asynccontextmanager
async def witnessing(mp: Milepost, address: str) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """Waits until so many new messages have come to a consumer of another subscription: these could have, too."""
    await mp.create_subscription("witness", start="now")
    async with consuming(address, "default/witness") as talk:

        async def seen(count: int) -> None:
            found = await talk.take(count)
            await talk.say("settle", ref="seen", ack=[each["id"] for each in found])
            await talk.expect("settled", ref="seen", refused=[])

        yield seen
