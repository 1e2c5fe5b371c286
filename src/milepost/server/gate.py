"""What every request passes before anybody looks at it, and every answer on its way out."""

import logging
from collections.abc import Collection

from milepost.server.asgi import Application, Event, Receive, Scope, Send
from milepost.server.beside import is_page
from milepost.server.body import BODY, FORM, JSON, Body, Budgets
from milepost.server.headers import HEADERS
from milepost.server.hosts import check_host, check_local
from milepost.server.limits import Limits
from milepost.server.problems import MEDIA_TYPE, URL_TOO_LONG, Refused, answer_to
from milepost.server.proxies import Proxies
from milepost.server.segments import check_text, routed
from milepost.server.traffic import Traffic
from milepost.server.turns import Turns
from milepost.server.websocket.endpoint import CONSUME, refuse

logger = logging.getLogger("milepost.server")

HSTS = (b"strict-transport-security", b"max-age=31536000")
"""What every answer over TLS has."""


class Gate:
    """An ASGI application before another one."""

    def __init__(
        self,
        inner: Application,
        consuming: Application,
        limits: Limits,
        traffic: Traffic,
        turns: Turns,
        *,
        hosts: Collection[str] | None,
        local: bool,
        proxies: Proxies,
    ) -> None:
        self._inner = inner
        self._consuming = consuming
        self._limits = limits
        self._budgets = Budgets(limits, turns)
        self._traffic = traffic
        self._hosts = hosts
        self._local = local
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or lets pass."""
        match scope["type"]:
            case "http":
                await self._answer(self._proxies.as_sent(scope), receive, send)
            case "websocket":
                await self._connect(self._proxies.as_sent(scope), receive, send)
            case _:
                await self._inner(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = _Answering(scope, send)
        inner = _as_get({**scope})
        try:
            self._check(scope)
            inner["path"] = path = routed(scope)
            # Only a page takes a form: what another site can send without asking is not for the API.
            with Body(scope, receive, self._budgets, FORM if is_page(path) else JSON) as body:
                inner[BODY] = body
                await self._inner(inner, body.receive, answering.send)
        except Refused as refused:
            await answering.refuse(refused)
        except Exception as error:
            logger.exception("a request failed")
            await answering.refuse(error)
        finally:
            if answering.status is not None:
                self._traffic.answered(scope["method"], inner.get("path_template"), answering.status)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(event: Event) -> None:
            if (status := _upgraded(event)) is not None:
                self._traffic.answered("GET", CONSUME, status)
            await send(event)

        try:
            self._check(scope)
        except Refused as refused:
            await receive()
            await refuse(scope, counted, refused)
            return
        await self._consuming({**scope, "path": routed(scope)}, receive, counted)

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


def _upgraded(event: Event) -> int | None:
    """The status of the answer to a request for a WebSocket, if this is where it begins."""
    match event["type"]:
        case "websocket.accept":
            return 101
        case "websocket.http.response.start":
            return int(event["status"])
    return None


def _as_get(scope: Scope) -> Scope:
    """A request for the head of an answer is one for all of it, of which the rest is not sent."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


class _Answering:
    """Sends an answer with the headers that all have."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._is_encrypted = scope.get("scheme") == "https"
        self._only_head = scope["method"] == "HEAD"
        self.status: int | None = None
        """Of the answer, once it has begun."""

    async def send(self, event: Event) -> None:
        """Sends a part."""
        if event["type"] == "http.response.start":
            self.status = event["status"]
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
        if self.status is not None:
            return
        answer = answer_to(error)
        headers = {"content-type": MEDIA_TYPE, "content-length": str(len(answer.body)), **answer.headers}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": answer.status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": answer.body})
