"""Bounded uvicorn protocols for HTTP, TLS and WebSocket. All that leans on private parts of uvicorn is here."""

import asyncio
import http
import ssl
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from milepost.server.http.traffic import ServerTraffic
from milepost.server.limits import Limits
from milepost.server.problems import (
    HEAD_TOO_LARGE,
    INVALID,
    PROBLEM_MEDIA_TYPE,
    TOO_MANY,
    TOO_SLOW,
    RequestRefused,
    problem_response,
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection that ends when its other side is too slow or too much. The limits are the application's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits: Limits = self.config.app.limits  # type: ignore[union-attr]
        self._traffic: ServerTraffic = self.config.app.traffic  # type: ignore[union-attr]
        self._arriving: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        self._in_head = True
        self._head_size = 0
        """Bytes that came since the last piece of a body: of a head, or of what stands around pieces."""
        self._refused = False

    # Coming and going

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._traffic.connections += 1
        if len(self.connections) > self._limits.connections and not self._make_room():
            self._refuse(RequestRefused(TOO_MANY, "There are too many connections: come back later"))
        else:
            self._traffic.silent[transport] = None
            self._arrives_within(self._limits.head_seconds)

    def _make_room(self) -> bool:
        """End the connection that has been silent for longest: else whoever opens many keeps all others out."""
        for transport in self._traffic.silent:
            # One whose last answer is not taken yet has its own time for that.
            if not transport.get_write_buffer_size():
                del self._traffic.silent[transport]
                transport.abort()
                return True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._traffic.connections -= 1
        self._traffic.silent.pop(self.transport, None)
        self._arrives_within(None)
        self.resume_writing()
        super().connection_lost(exc)

    # Requests that arrive

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._head_size += len(data)
        if self._in_head and self._arriving is None:
            self._arrives_within(self._limits.head_seconds)
        super().data_received(data)
        if self._head_size > self._limits.head_bytes:
            self._refuse_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Nobody wants a trailer, and there may be any number of them: the parser calls them headers, too.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._refused:
            return
        if len(self.pipeline) >= self._limits.pipelined:
            self._end_after_answers()
            return
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self._limits.head_bytes:
            self._refuse_head()
            return
        self._in_head, self._head_size = False, 0
        self._traffic.silent.pop(self.transport, None)
        self._arrives_within(self._limits.body_seconds + self._limits.rest_seconds)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_size = 0
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._arrives_within(None)
        if self._refused:
            return
        self._in_head, self._head_size = True, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._in_head:
            self._arrives_within(self._limits.rest_seconds)
        elif self.cycle.response_complete and not self.transport.is_closing():
            self._traffic.silent[self.transport] = None

    def _arrives_within(self, seconds: float | None) -> None:
        """What arrives now has to be complete by then; None: nothing is waited for."""
        if self._arriving is not None:
            self._arriving.cancel()
        self._arriving = None if seconds is None else self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._arriving = None
        if self._in_head and self._head_size:
            self._refuse(
                RequestRefused(TOO_SLOW, f"The head did not arrive within {self._limits.head_seconds:g} seconds")
            )
        else:
            self.transport.abort()

    def handle_websocket_upgrade(self) -> None:
        if self._refused:
            return
        self._arrives_within(None)
        if self._taking is not None or not (self.cycle is None or self.cycle.response_complete):
            # The other protocol would not tell an answer that is under way that its client has gone.
            self._refused = True
            self.transport.abort()
            return
        # From here on it is another protocol's.
        self._traffic.connections -= 1
        super().handle_websocket_upgrade()

    # Answers that are taken

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._taking is None:
            self._taking = self.loop.call_later(self._limits.stalled_seconds, self.transport.abort)
            self._traffic.begin_unread_answer(self.transport, self._limits.answers_bytes)

    def resume_writing(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
            self._traffic.end_unread_answer(self.transport)
        super().resume_writing()

    # Refusing

    def send_400_response(self, msg: str) -> None:
        self._refuse(RequestRefused(INVALID, "This is no request in HTTP/1.1", field="request"))

    def _end_after_answers(self) -> None:
        """Read nothing more, and close the connection when the requests that wait have their answers."""
        self._refused = True
        self._arrives_within(None)
        # The one that was read last: a client sees from its answer that what it sent after that was not looked at.
        self.cycle.keep_alive = False

    def _refuse_head(self) -> None:
        if not self._in_head and (self.cycle.response_started or self.pipeline):
            # An answer in another one would be nobody's.
            self._refused = True
            self.transport.abort()
            return
        limit = self._limits.head_bytes
        self._refuse(RequestRefused(HEAD_TOO_LARGE, f"Address and headers have more than {limit:,} bytes"))

    def _refuse(self, refused: RequestRefused) -> None:
        """Answers on this connection for the last time."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        answer = problem_response(refused)
        status = http.HTTPStatus(answer.status)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {PROBLEM_MEDIA_TYPE}\r\n"
            f"content-length: {len(answer.body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + answer.body)
        self.transport.close()


class BoundedTlsProtocol(BoundedHttpProtocol):
    """A connection that begins with TLS: it counts, and its time runs, from its first byte on.

    Where the event loop does this by itself, a protocol hears of a connection only when TLS has begun on it.
    """

    def __init__(self, context: ssl.SSLContext, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._context = context
        self._beginning: asyncio.Task[None] | None = None
        self._has_begun = self._is_lost = False
        self._early = b""
        """What was encrypted already and came before this connection was told that TLS has begun."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self._limits.connections and not self._make_room():
            # To say why would take an encrypted answer.
            transport.abort()
            return
        self.transport = transport
        self.connections.add(self)
        self._traffic.silent[transport] = None
        # What comes now is for TLS.
        transport.pause_reading()
        self._beginning = self.loop.create_task(self._begin(transport))

    async def _begin(self, transport: asyncio.Transport) -> None:
        encrypted: asyncio.Transport | None = None
        # The other side may speak something else, be too slow, or leave.
        with suppress(OSError):
            encrypted = await self.loop.start_tls(
                transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._limits.head_seconds,
                ssl_shutdown_timeout=self._limits.rest_seconds,
            )
        self._traffic.silent.pop(transport, None)
        if self._is_lost or encrypted is None:
            self.connections.discard(self)
            return
        self._has_begun = True
        super().connection_made(encrypted)
        if self._early:
            self.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        if self._has_begun:
            super().data_received(data)
        else:
            self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self._has_begun:
            super().connection_lost(exc)


MAX_FRAGMENTS = 1024
"""Pieces of one message: each costs something, even if it is empty."""
MAX_READ_BYTES = 16_384
"""Bytes that are read at once."""
LAST_FRAME_TAKEN_SECONDS = 5.0
"""Seconds for the other side to take the last frame."""


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
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
            transport.max_size = MAX_READ_BYTES

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
            self._ending = self.loop.call_later(LAST_FRAME_TAKEN_SECONDS, self.transport.abort)

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
        if len(self.frames) >= MAX_FRAGMENTS:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)
