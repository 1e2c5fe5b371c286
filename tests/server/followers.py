"""Somebody who follows over HTTP."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx


class Events:
    """The events of an answer, one after the other."""

    def __init__(self, answer: httpx.Response) -> None:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        self._lines = answer.aiter_lines()

    async def block(self) -> dict[str, str]:
        """The next block of lines, a comment under no name."""
        found: dict[str, str] = {}
        async for line in self._lines:
            if not line:
                return found
            name, _, value = line.partition(":")
            found[name] = value.strip()
        raise StopAsyncIteration

    async def next(self) -> dict[str, str]:
        """The next event, with what it says of itself."""
        while "data" not in (found := await self.block()):
            pass
        return found

    async def messages(self, count: int) -> list[dict[str, Any]]:
        """The next so many messages."""
        found = [json.loads((await self.next())["data"]) for _ in range(count)]
        assert all("position" in message for message in found), found
        return found


@asynccontextmanager
async def following(client: httpx.AsyncClient, **options: Any) -> AsyncIterator[Events]:
    """Somebody who follows within this block."""
    async with client.stream("GET", "/v1/follow", **options) as answer:
        yield Events(answer)
