"""The guard before all requests: checks address, host and origin, bounds the body, completes the answer's
headers."""

import logging
from collections.abc import Collection

from milepost.server.http.asgi import (
    SECURITY_HEADERS,
    Application,
    Event,
    Receive,
    Scope,
    Send,
    check_address_text,
    routed_path,
)
from milepost.server.http.body import BODY_SCOPE_KEY, FORM_TYPE, JSON_TYPE, BodyBudgets, RequestBody, WorkTurns
from milepost.server.http.origin import TrustedProxies, check_host, check_local
from milepost.server.http.traffic import ServerTraffic
from milepost.server.limits import Limits
from milepost.server.mount import is_page_path
from milepost.server.problems import PROBLEM_MEDIA_TYPE, URL_TOO_LONG, RequestRefused, problem_response
from milepost.server.websocket.endpoint import CONSUME_PATH, refuse_upgrade

logger = logging.getLogger("milepost.server")

HSTS = (b"strict-transport-security", b"max-age=31536000")
"""What every answer over TLS has."""


class RequestGuard:
    """An ASGI application before another one."""

    def __init__(
        self,
        inner: Application,
        consuming: Application,
        limits: Limits,
        traffic: ServerTraffic,
        turns: WorkTurns,
        *,
        hosts: Collection[str] | None,
        local: bool,
        proxies: TrustedProxies,
    ) -> None:
        self._inner = inner
        self._consuming = consuming
        self._limits = limits
        self._budgets = BodyBudgets(limits, turns)
        self._traffic = traffic
        self._hosts = hosts
        self._local = local
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or lets pass."""
        match scope["type"]:
            case "http":
                await self._answer(self._proxies.original_scope(scope), receive, send)
            case "websocket":
                await self._connect(self._proxies.original_scope(scope), receive, send)
            case _:
                await self._inner(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = _GuardedAnswer(scope, send)
        inner = _as_get({**scope})
        try:
            self._check(scope)
            inner["path"] = path = routed_path(scope)
            # Only a page takes a form: what another site can send without asking is not for the API.
            with RequestBody(
                scope, receive, self._budgets, FORM_TYPE if is_page_path(path) else JSON_TYPE
            ) as body:
                inner[BODY_SCOPE_KEY] = body
                await self._inner(inner, body.receive, answering.send)
        except RequestRefused as refused:
            await answering.refuse(refused)
        except Exception as error:
            logger.exception("a request failed")
            await answering.refuse(error)
        finally:
            if answering.status is not None:
                self._traffic.answered(scope["method"], inner.get("path_template"), answering.status)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(event: Event) -> None:
            if (status := _upgrade_status(event)) is not None:
                self._traffic.answered("GET", CONSUME_PATH, status)
            await send(event)

        try:
            self._check(scope)
        except RequestRefused as refused:
            await receive()
            await refuse_upgrade(scope, counted, refused)
            return
        await self._consuming({**scope, "path": routed_path(scope)}, receive, counted)

    def _check(self, scope: Scope) -> None:
        query: bytes = scope.get("query_string", b"")
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        if len(path) + len(query) > self._limits.url_bytes:
            raise RequestRefused(URL_TOO_LONG, f"The address has more than {self._limits.url_bytes:,} bytes")
        check_address_text(path, "path")
        check_address_text(query, "query")
        if self._hosts is not None:
            check_host(scope, self._hosts)
        if self._local:
            check_local(scope)


def _upgrade_status(event: Event) -> int | None:
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


class _GuardedAnswer:
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
        added = [(name, value) for name, value in SECURITY_HEADERS.items() if name not in given]
        return [*headers, *added, *([HSTS] if self._is_encrypted else [])]

    async def refuse(self, error: Exception) -> None:
        """Answers with a problem, if nothing was answered yet."""
        if self.status is not None:
            return
        answer = problem_response(error)
        headers = {"content-type": PROBLEM_MEDIA_TYPE, "content-length": str(len(answer.body)), **answer.headers}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": answer.status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": answer.body})
