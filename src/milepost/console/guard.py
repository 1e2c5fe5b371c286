"""Check every request before its handler runs: session, role, scope, and the origin of a form."""

import asyncio
import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from litestar.connection import ASGIConnection, Request
from litestar.handlers import BaseRouteHandler

from milepost.console.live import LivePages
from milepost.console.request import ConsoleRequest, NavItem, csrf_token
from milepost.console.session import BROWSER_COOKIE, SESSION_COOKIE, open_session, request_cookies
from milepost.server.access.authentication import ANONYMOUS, Principal, check_role
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeRule
from milepost.server.http.asgi import Scope, decode_path_names, header
from milepost.server.http.body import BODY_SCOPE_KEY
from milepost.server.http.handlers import refuse_options
from milepost.server.http.origin import origin_authority
from milepost.server.mount import ServerParts
from milepost.server.problems import FORBIDDEN, INVALID, RequestRefused

NOT_LOGGED_IN = Principal(frozenset())
"""The principal of a request that is not logged in."""
MAX_FORM_FIELDS = 20_000
"""Fields of a form; a page of messages has a few hundred."""
QUICK_FORM_BYTES = 64 * 2**10
"""Bytes of a form that is read at once; a larger one is read in a thread, so that other requests go on."""
UNQUOTE_CHUNK_BYTES = 2**14
"""Bytes of a field that are unquoted in one go."""


def needs(role: TokenRole | None, scope_rule: ScopeRule | None = None) -> dict[str, Any]:
    """Return the options of a handler.

    Args:
        role: The role that it takes; None: also for those who are not logged in.
        scope_rule: How it keeps to the scope of a token. Defaults to none: it refuses tokens with a scope.
    """
    return {"role": role, "scope_rule": scope_rule}


class LoginRequired(Exception):
    """The page needs a login."""


class CrossSiteNavigation(Exception):
    """A link of another site was followed: the browser then keeps its cookies back, and sends them next time."""


class ConsoleGuard:
    """The guard of every page: it refuses a request, or adds what handlers need."""

    def __init__(self, served: ServerParts, live: LivePages, entries: Sequence[NavItem]) -> None:
        self._served = served
        self._live = live
        self._entries = entries

    async def admit(self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        """Admit or refuse a request that has a handler."""
        refuse_options(connection)
        scope: Any = connection.scope
        scope["path_params"] = decode_path_names(scope["path_params"])
        if _is_cross_site_navigation(scope):
            raise CrossSiteNavigation
        role: TokenRole | None = handler.opt["role"]
        if role is not None:
            # Said at once: each question would wait for a connection for seconds.
            self._live.poller.check()
        principal = await self._authenticate(scope)
        form: Mapping[str, Sequence[str]] = {}
        if scope["method"] != "GET" and isinstance(connection, Request):
            _check_origin(scope)
            if principal is None:
                scope[BODY_SCOPE_KEY].apply_stranger_limits()
            form = await _read_form(connection)
        console = self.console_request(scope, principal or NOT_LOGGED_IN, form)
        scope["state"]["console"] = console
        if scope["method"] != "GET":
            _check_csrf(console)
        if role is None:
            return
        if principal is None:
            raise LoginRequired
        check_role(principal, role)
        await console.scope_guard.admit(handler.opt["scope_rule"], scope["path_params"])
        if scope["method"] == "GET":
            await self._live.poller.refresh_if_old()

    def console_request(
        self, scope: Scope, principal: Principal, form: Mapping[str, Sequence[str]]
    ) -> ConsoleRequest:
        """Return what a handler is given: the request, and who makes it."""
        cookies = request_cookies(scope)
        cookie = cookies.get(BROWSER_COOKIE if principal.token is None else SESSION_COOKIE, "")
        return ConsoleRequest(
            scope=scope,
            served=self._served,
            live_pages=self._live,
            entries=self._entries,
            principal=principal,
            cookie=cookie or secrets.token_urlsafe(24),
            is_new=not cookie,
            cookies=cookies,
            form=form,
        )

    async def _authenticate(self, scope: Scope) -> Principal | None:
        if not self._served.authenticator.asks_for_tokens:
            return ANONYMOUS
        session = await open_session(request_cookies(scope).get(SESSION_COOKIE, ""), self._served.token_cache)
        return None if session is None else Principal(session.token.roles, session.token, session.nonce)


def _is_cross_site_navigation(scope: Scope) -> bool:
    came_from, mode = header(scope, b"sec-fetch-site"), header(scope, b"sec-fetch-mode")
    return (
        scope["method"] == "GET"
        and came_from in ("cross-site", "same-site")
        and mode == "navigate"
        and not request_cookies(scope)
    )


async def _read_form(request: Request[Any, Any, Any]) -> Mapping[str, Sequence[str]]:
    body = await request.body()
    try:
        if len(body) <= QUICK_FORM_BYTES:
            return _parse_form(body)
        return await asyncio.to_thread(_parse_form, body)
    except ValueError as error:
        raise RequestRefused(INVALID, f"The form cannot be read: {error}") from None


def _parse_form(form: bytes) -> Mapping[str, Sequence[str]]:
    """Return the values of each field.

    The function of the standard library takes a text of a million characters apart in one go, and has no thread
    look after anything else meanwhile.
    """
    if form.count(b"&") >= MAX_FORM_FIELDS:
        raise ValueError(f"it has more than {MAX_FORM_FIELDS:,} fields")
    fields: dict[str, list[str]] = {}
    for pair in filter(None, form.split(b"&")):
        name, _, value = pair.partition(b"=")
        fields.setdefault(_unquote(name), []).append(_unquote(value))
    return fields


def _unquote(text: bytes) -> str:
    text = text.replace(b"+", b" ")
    parts = []
    begin = 0
    while begin < len(text):
        end = begin + UNQUOTE_CHUNK_BYTES
        # The three characters that stand for one byte stay together.
        if (divided := text.rfind(b"%", end - 2, end)) > begin:
            end = divided
        parts.append(unquote_to_bytes(text[begin:end]))
        begin = end
    return b"".join(parts).decode()


def _check_origin(scope: Scope) -> None:
    """Refuse what a page of another site sent; browsers say so."""
    origin = header(scope, b"origin")
    came_from = header(scope, b"sec-fetch-site")
    is_other = origin is not None and origin_authority(origin) != header(scope, b"host")
    if is_other or came_from not in (None, "same-origin"):
        raise RequestRefused(FORBIDDEN, "A page of another site sent this")


def _check_csrf(console: ConsoleRequest) -> None:
    if console.is_new or not hmac.compare_digest(
        console.sent("csrf").encode(), csrf_token(console.cookie).encode()
    ):
        raise RequestRefused(
            FORBIDDEN,
            "The form is from before you logged in or out, or your browser keeps no cookies: send it again",
        )
