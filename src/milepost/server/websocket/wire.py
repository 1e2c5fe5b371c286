"""A WebSocket as frames, in and out."""

import asyncio
from contextlib import suppress

from milepost.engine.consuming.endings import LEFT
from milepost.server.asgi import Receive, Scope, Send
from milepost.server.limits import Limits
from milepost.server.websocket.endings import BAD_FRAME, CODES, TOO_SLOW, Ended, Ending, Fate
from milepost.server.websocket.outgoing import End, Outgoing, text_of

SUBPROTOCOL = "milepost.v1"
CLEAN = frozenset({1000, 1001})
"""Codes with which a client closes in good order."""
LAST = 5.0
"""Seconds for the last frame."""


class Wire:
    """Receives one text after the other, and sends; raises `Ended` where that does not go on."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits) -> None:
        self._wants_subprotocol = SUBPROTOCOL in scope.get("subprotocols", ())
        self._receive = receive
        self._send = send
        self._limits = limits

    async def accept(self) -> None:
        """Says that this is a WebSocket from now on."""
        subprotocol = SUBPROTOCOL if self._wants_subprotocol else None
        await self._send({"type": "websocket.accept", "subprotocol": subprotocol})

    async def text(self) -> str:
        """The next one."""
        event = await self._receive()
        if event["type"] == "websocket.disconnect":
            is_clean = event.get("code") in CLEAN
            raise Ended(Ending(None, Fate.LEAVES if is_clean else Fate.KEPT))
        text: str | None = event.get("text")
        if text is None:
            raise Ended(Ending(BAD_FRAME, Fate.LOST, "a frame is text, not bytes"))
        if len(text) > self._limits.frame_bytes:
            raise Ended(Ending(BAD_FRAME, Fate.LOST, f"a frame has at most {self._limits.frame_bytes:,} bytes"))
        return text

    async def send(self, frame: Outgoing) -> None:
        """Sends a frame."""
        await self.send_text(text_of(frame))

    async def send_text(self, text: str) -> None:
        """Sends a frame that is ready; returns when there is room for the next."""
        try:
            async with asyncio.timeout(self._limits.stalled_seconds):
                await self._send({"type": "websocket.send", "text": text})
        except TimeoutError:
            raise Ended(Ending(TOO_SLOW, Fate.LOST)) from None
        except OSError:
            raise Ended(Ending(None, Fate.KEPT)) from None

    async def end(self, ending: Ending) -> None:
        """Says why it ends, unless the client ended it, and closes, if the client is there to read it."""
        if ending.reason == TOO_SLOW:
            return
        with suppress(OSError, TimeoutError, RuntimeError):
            async with asyncio.timeout(LAST):
                if ending.reason is not None:
                    frame = End(reason=ending.reason, detail=ending.detail, to=ending.to)
                    await self._send({"type": "websocket.send", "text": text_of(frame)})
                await self._send({"type": "websocket.close", "code": CODES.get(ending.reason or LEFT, 1011)})
