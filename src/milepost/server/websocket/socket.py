"""A WebSocket as frames, in and out."""

import asyncio
from contextlib import suppress

from milepost.engine.consumers.consumer import REASON_LEFT
from milepost.server.http.asgi import Receive, Scope, Send
from milepost.server.limits import Limits
from milepost.server.websocket.frames import encode_frame
from milepost.server.websocket.session_end import CLOSE_CODES, ConsumerDisposition, SessionEnd, SessionEnded
from milepost.wire.frames import BAD_FRAME_REASON, SUBPROTOCOL, TOO_SLOW_REASON, EndFrame, ServerFrame

CLEAN_CLOSE_CODES = frozenset({1000, 1001})
"""Codes with which a client closes in good order."""
LAST_FRAME_SECONDS = 5.0
"""Seconds for the last frame."""


class FrameSocket:
    """Receives one text after the other, and sends; raises `SessionEnded` where that does not go on."""

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
            is_clean = event.get("code") in CLEAN_CLOSE_CODES
            raise SessionEnded(
                SessionEnd(None, ConsumerDisposition.LEAVES if is_clean else ConsumerDisposition.KEPT)
            )
        text: str | None = event.get("text")
        if text is None:
            raise SessionEnded(
                SessionEnd(BAD_FRAME_REASON, ConsumerDisposition.LOST, "a frame is text, not bytes")
            )
        if len(text) > self._limits.frame_bytes:
            raise SessionEnded(
                SessionEnd(
                    BAD_FRAME_REASON,
                    ConsumerDisposition.LOST,
                    f"a frame has at most {self._limits.frame_bytes:,} bytes",
                )
            )
        return text

    async def send(self, frame: ServerFrame) -> None:
        """Sends a frame."""
        await self.send_text(encode_frame(frame))

    async def send_text(self, text: str) -> None:
        """Sends a frame that is ready; returns when there is room for the next."""
        try:
            async with asyncio.timeout(self._limits.stalled_seconds):
                await self._send({"type": "websocket.send", "text": text})
        except TimeoutError:
            raise SessionEnded(SessionEnd(TOO_SLOW_REASON, ConsumerDisposition.LOST)) from None
        except OSError:
            raise SessionEnded(SessionEnd(None, ConsumerDisposition.KEPT)) from None

    async def end(self, ending: SessionEnd) -> None:
        """Says why it ends, unless the client ended it, and closes, if the client is there to read it."""
        if ending.reason == TOO_SLOW_REASON:
            return
        with suppress(OSError, TimeoutError, RuntimeError):
            async with asyncio.timeout(LAST_FRAME_SECONDS):
                if ending.reason is not None:
                    frame = EndFrame(reason=ending.reason, detail=ending.detail, to=ending.to)
                    await self._send({"type": "websocket.send", "text": encode_frame(frame)})
                await self._send(
                    {"type": "websocket.close", "code": CLOSE_CODES.get(ending.reason or REASON_LEFT, 1011)}
                )
