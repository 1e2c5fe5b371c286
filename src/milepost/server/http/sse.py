"""Server-sent events: an answer that goes on until one of both sides ends it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from milepost.concurrency import cancel_and_wait
from milepost.server.http.asgi import Receive, Scope, Send, wait_until_client_left

SSE_MEDIA_TYPE = "text/event-stream"
SSE_CHUNK_BYTES = 65_536
"""Bytes after which what there is of a page is sent: no more is held for somebody slow."""


class EventStream:
    """An ASGI application that sends what a generator gives, each piece as soon as the one before was taken."""

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends until the generator ends or the client has gone."""
        # Tasks of its own, each cancelled once: what the generator has to give back it can give back in peace.
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(wait_until_client_left(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(leaving)
            await cancel_and_wait(sending)

    async def _send(self, send: Send) -> None:
        headers = [(b"content-type", SSE_MEDIA_TYPE.encode()), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(self._pieces):
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def sse_event(data: bytes, *, name: str = "", id: str | None = None) -> bytes:
    """One event. JSON has no line breaks, so its data is one line."""
    head = (f"id: {id}\n" if id is not None else "") + (f"event: {name}\n" if name else "")
    return head.encode() + b"data: " + data + b"\n\n"


def sse_id(id: str) -> bytes:
    """An id without an event: what a client sends back that is cut off before the next event."""
    return f"id: {id}\n\n".encode()


def sse_comment(text: str) -> bytes:
    """What a client does not see."""
    return f": {text}\n\n".encode()
