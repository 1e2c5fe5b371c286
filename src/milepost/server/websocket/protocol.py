"""A connection of a WebSocket: bounded in what it keeps, and in how long its other side may take."""

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from milepost.server.limits import Limits

FRAGMENTS = 1024
"""Pieces of one message: each costs something, even if it is empty."""
AT_ONCE = 16_384
"""Bytes that are read at once."""
CLOSING = 5.0
"""Seconds for the other side to take the last frame."""


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """Ends when its other side is too slow or too much. The limits are the application's.

    When the server stops, the application ends its connections itself.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits: Limits = self.config.app.limits  # type: ignore[union-attr]
        self._taking: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._pong = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if hasattr(transport, "max_size"):
            # Of small frames there may be many in what is read at once, and nobody else has a turn before all are.
            transport.max_size = AT_ONCE

    # The other side takes too long

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._taking is None:
            self._taking = self.loop.call_later(self._limits.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_timers()
        if self._pong:
            self.transport.write(self._pong)
            self._pong = b""
        super().resume_writing()

    def keepalive_timeout(self) -> None:
        self.transport.abort()

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if not self.disconnected:
            self._ending = self.loop.call_later(CLOSING, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        if self._ending is not None:
            self._ending.cancel()
        super().connection_lost(exc)

    def _cancel_timers(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def shutdown(self) -> None:
        if not self.handshake_complete or self.close_sent:
            super().shutdown()

    # The other side sends too much

    def handle_ping(self) -> None:
        pong = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(pong)
        else:
            # Whoever does not read gets one answer for all.
            self._pong = pong

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= FRAGMENTS:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)
