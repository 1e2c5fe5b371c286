"""What every request passes before anybody looks at it, and every answer on its way out."""

import logging
from collections.abc import Collection

from milepost.server.asgi import Application, Event, Receive, Scope, Send
from milepost.server.body import Bodies, Body
from milepost.server.hosts import check_host, check_local
from milepost.server.limits import Limits
from milepost.server.problems import MEDIA_TYPE, URL_TOO_LONG, Refused, answer_to
from milepost.server.segments import check_text, routed

logger = logging.getLogger("milepost.server")

HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
}
"""What every answer has, unless it says otherwise itself."""
HSTS = (b"strict-transport-security", b"max-age=31536000")
"""What every answer over TLS has."""
FORBIDDEN_CODE = 1008
"""Of a WebSocket that is closed because the request is not allowed."""


class Gate:
    """An ASGI application before another one."""

    def __init__(self, inner: Application, limits: Limits, *, hosts: Collection[str] | None, local: bool) -> None:
        self._inner = inner
        self._limits = limits
        self._bodies = Bodies(limits)
        self._hosts = hosts
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or lets pass."""
        match scope["type"]:
            case "http":
                await self._answer(scope, receive, send)
            case "websocket":
                await self._connect(scope, receive, send)
            case _:
                await self._inner(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = _Answering(scope, send)
        try:
            self._check(scope)
            with Body(scope, receive, self._bodies) as body:
                await self._inner(_as_get({**scope, "path": routed(scope)}), body.receive, answering.send)
        except Refused as refused:
            await answering.refuse(refused)
        except Exception as error:
            logger.exception("a request failed")
            await answering.refuse(error)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
        except Refused as refused:
            await receive()
            await send({"type": "websocket.close", "code": FORBIDDEN_CODE, "reason": refused.kind.slug})
            return
        await self._inner({**scope, "path": routed(scope)}, receive, send)

    def _check(self, scope: Scope) -> None:
        query: bytes = scope.get("query_string", b"")
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        if len(path) + len(query) > self._limits.url_bytes:
            raise Refused(URL_TOO_LONG, f"The address has more than {self._limits.url_bytes:,} bytes")
        check_text(path, "path")
        check_text(query, "query")
        if self._hosts is not None:
            check_host(scope, self._hosts)
        if self._local:
            check_local(scope)


def _as_get(scope: Scope) -> Scope:
    """A request for the head of an answer is one for all of it, of which the rest is not sent."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


class _Answering:
    """Sends an answer with the headers that all have."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._is_encrypted = scope.get("scheme") == "https"
        self._only_head = scope["method"] == "HEAD"
        self._has_begun = False

    async def send(self, event: Event) -> None:
        """Sends a part."""
        if event["type"] == "http.response.start":
            self._has_begun = True
            await self._send({**event, "headers": self._completed(event.get("headers", ()))})
            if self._only_head:
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        elif not self._only_head:
            await self._send(event)

    def _completed(self, headers: Collection[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        given = {name.lower() for name, _ in headers}
        added = [(name, value) for name, value in HEADERS.items() if name not in given]
        return [*headers, *added, *([HSTS] if self._is_encrypted else [])]

    async def refuse(self, error: Exception) -> None:
        """Answers with a problem, if nothing was answered yet."""
        if self._has_begun:
            return
        answer = answer_to(error)
        headers = {"content-type": MEDIA_TYPE, "content-length": str(len(answer.body)), **answer.headers}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": answer.status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": answer.body})
