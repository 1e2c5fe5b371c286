"""A request to the console: its principal, the context of its templates, and the forms of an answer."""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from markupsafe import Markup

from milepost.app import Milepost
from milepost.console.live import LivePages, LiveRegions
from milepost.console.session import BROWSER_COOKIE, FLASH_COOKIE, THEME_COOKIE, clear_cookie, set_cookie
from milepost.console.snapshot import OverviewSnapshot, narrow_to_scope
from milepost.console.templating import render, static_edition
from milepost.engine.operate.manage import ManagedSubscription
from milepost.server.access.authentication import Principal
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeGuard
from milepost.server.http.asgi import Receive, Scope, Send, header
from milepost.server.http.body import BODY_SCOPE_KEY, RequestBody
from milepost.server.http.sse import SSE_MEDIA_TYPE, EventStream
from milepost.server.limits import Limits
from milepost.server.mount import CONSOLE_PATH_PREFIX, ServerParts
from milepost.server.problems import INTERNAL, Problem, problem_response

Header = tuple[bytes, bytes]

SECURITY_HEADERS: Sequence[Header] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    # Without a referrer a browser does not say either where a form comes from.
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
"""The headers of every page: nothing is loaded from other sites, nothing inline runs."""


class ConsoleResponse:
    """An ASGI application that answers one request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        raise NotImplementedError


class PageResponse(ConsoleResponse):
    """An answer that is sent as a whole."""

    def __init__(
        self,
        body: bytes,
        *,
        status: int = 200,
        kind: str = "text/html; charset=utf-8",
        headers: Sequence[Header] = (),
    ) -> None:
        self.body = body
        self.status = status
        self.headers: Sequence[Header] = (
            (b"content-type", kind.encode()),
            (b"content-length", str(len(body)).encode()),
            *SECURITY_HEADERS,
            *headers,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
        await send({"type": "http.response.body", "body": self.body})


def redirect_to(path: str, *, headers: Sequence[Header] = ()) -> PageResponse:
    """Return a redirect to another page, which is loaded with GET."""
    return PageResponse(b"", status=303, headers=[(b"location", path.encode("ascii")), *headers])


FlashTone = Literal["done", "problem"]

MAX_FLASH_CHARACTERS = 1500
"""Characters of a flash: a cookie has to stay small."""
FLASH_SECONDS = 30
"""Seconds after which a flash that was not shown is dropped."""


class Flash(msgspec.Struct, frozen=True):
    """A message that the next page shows once."""

    words: str
    tone: FlashTone = "done"

    def encoded(self) -> str:
        """Return the value of a cookie."""
        short = Flash(
            self.words if len(self.words) <= MAX_FLASH_CHARACTERS else f"{self.words[:MAX_FLASH_CHARACTERS]}…",
            self.tone,
        )
        return urlsafe_b64encode(msgspec.json.encode(short)).decode()


def read_flash(cookie: str | None) -> Flash | None:
    """Return the flash of a cookie; None if it has none."""
    try:
        return msgspec.json.decode(urlsafe_b64decode(cookie), type=Flash) if cookie else None
    except (Error, ValueError, RecursionError, msgspec.DecodeError):
        return None


@dataclass(frozen=True)
class NavItem:
    """An entry of the navigation."""

    title: str
    path: str
    """Its segment below the console; empty for the first page."""
    role: TokenRole | None = None
    """The role that it is shown to. None means every role."""


LoadContext = Callable[[OverviewSnapshot], Awaitable[Mapping[str, Any]]]
"""Loads the context of a template for a snapshot."""
LoadStaticContext = Callable[[], Awaitable[Mapping[str, Any]]]
"""Loads the context that stands still while the page is open."""
SINCE_PARAMETER = "since"
"""The parameter that says from which snapshot a page was drawn; it is not one of the page's own."""


@dataclass(frozen=True, kw_only=True)
class ConsoleRequest:
    """A request that was admitted, with its principal."""

    scope: Scope
    served: ServerParts
    live_pages: LivePages
    entries: Sequence[NavItem]
    principal: Principal
    cookie: str
    """The cookie that identifies the browser; forms carry a token made of it."""
    is_new: bool
    """True if the browser has to be given the cookie first."""
    cookies: Mapping[str, str]
    form: Mapping[str, Sequence[str]]
    """The fields of the form that was sent, if one was."""

    @property
    def mp(self) -> Milepost:
        """The `Milepost` that the console shows."""
        return self.served.mp

    @property
    def scope_guard(self) -> ScopeGuard:
        """The guard of the scope of the visitor's token."""
        return ScopeGuard(self.mp, self.principal.scope)

    def subscription(self, group: str, name: str) -> ManagedSubscription:
        """Return the subscription that a path names."""
        return self.mp.manage(f"{group}/{name}")

    @property
    def limits(self) -> Limits:
        """The limits of what may be sent."""
        body: RequestBody = self.scope[BODY_SCOPE_KEY]
        return body.limits

    @property
    def root(self) -> str:
        """The path at which an application mounts the server."""
        return str(self.scope.get("root_path", "")).rstrip("/")

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the address. Of a repeated one the last counts."""
        given = dict(parse_qsl(self.scope.get("query_string", b"").decode("latin-1")))
        return {name: value for name, value in given.items() if name != SINCE_PARAMETER}

    @property
    def since(self) -> int:
        """The snapshot that a page was drawn from whose events are asked for; 0: none is known."""
        given = dict(parse_qsl(self.scope.get("query_string", b"").decode("latin-1"))).get(SINCE_PARAMETER, "")
        return int(given) if given.isascii() and given.isdigit() and len(given) < 19 else 0

    def sent(self, name: str, default: str = "") -> str:
        """Return a field of the form."""
        return self.form.get(name, [default])[-1]

    def may(self, role: str) -> bool:
        """Return True if the visitor has a role. Pages offer only what a visitor may do."""
        return TokenRole(role) in self.principal.roles

    def url(self, *parts: str | int, **query: object) -> str:
        """Return the address of a page. Its parts become segments of the path, whatever they hold."""
        path = "/".join([f"{self.root}{CONSOLE_PATH_PREFIX}", *(quote(str(part), safe="") for part in parts)])
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{path}?{urlencode(given)}" if given else path

    @property
    def live_key(self) -> Hashable:
        """The key that readers of the same page share."""
        return (
            self.scope["path"],
            tuple(sorted(self.query.items())),
            self.principal.roles,
            self.principal.scope,
            self.root,
        )

    @property
    def csrf(self) -> str:
        """The token that every form must have: only a page of this console can know it."""
        return csrf_token(self.cookie)

    # Answers

    def page(self, template: str, *, status: int = 200, **context: Any) -> PageResponse:
        """Return a page."""
        html, _ = self._render(template, context)
        return PageResponse(html.encode(errors="backslashreplace"), status=status, headers=self._headers())

    async def live(
        self, template: str, load: LoadContext, once: LoadStaticContext | None = None
    ) -> ConsoleResponse:
        """Return a live page, or its events for a request that accepts those.

        What `once` gives is only there when the whole page is drawn, and stands still.
        """
        if SSE_MEDIA_TYPE in (header(self.scope, b"accept") or ""):
            return PageEvents(self.live_pages, self, template, load)
        still = {} if once is None else await once()
        snapshot = await narrow_to_scope(await self.live_pages.poller.now(), self.scope_guard)
        known = self.live_pages.known(self.live_key, snapshot.number)
        context = {**await load(snapshot), **still, "drawn_from": snapshot.number}
        html, regions = self._render(template, context, known, snapshot=snapshot)
        self.live_pages.remember(self.live_key, snapshot, regions.drawn)
        return PageResponse(html.encode(errors="backslashreplace"), headers=self._headers())

    def redirect_with_flash(self, path: str, words: str, tone: FlashTone = "done") -> PageResponse:
        """Redirect to a page, which shows some words once."""
        said = set_cookie(
            self.scope, FLASH_COOKIE, Flash(words, tone).encoded(), path=self._cookie_path, seconds=FLASH_SECONDS
        )
        return redirect_to(path, headers=[said])

    def fragment(self, template: str, **context: Any) -> PageResponse:
        """Return a part of a page, for a script."""
        html, _ = self._render(template, context)
        return PageResponse(html.encode(errors="backslashreplace"))

    async def apply_change(self, path: str, work: Awaitable[str], *, back: str | None = None) -> PageResponse:
        """Make a change; redirect to a page that says what was done, or to `back` with the reason if not."""
        try:
            words = await work
        except Exception as error:
            return self.redirect_with_flash(back or path, expected_problem(error).detail, "problem")
        finally:
            # The change is made, also if the new state cannot be polled.
            with suppress(Exception):
                await self.live_pages.poller.refresh()
        return self.redirect_with_flash(path, words)

    # Drawing

    async def regions(self, template: str, load: LoadContext, snapshot: OverviewSnapshot) -> Mapping[str, str]:
        """Return the live regions of a page."""
        snapshot = await narrow_to_scope(snapshot, self.scope_guard)
        _, regions = self._render(template, await load(snapshot), snapshot=snapshot)
        return regions.drawn

    def _render(
        self,
        template: str,
        context: Mapping[str, Any],
        known: Mapping[str, str] | None = None,
        *,
        snapshot: OverviewSnapshot | None = None,
    ) -> tuple[str, LiveRegions]:
        regions = LiveRegions(known)
        snapshot = snapshot or self.live_pages.poller.newest
        common = {
            "console": self,
            "url": self.url,
            "may": self.may,
            "static": self._static,
            "csrf": lambda: Markup('<input type="hidden" name="csrf" value="{}">').format(self.csrf),
            "live": regions,
            "flash": read_flash(self.cookies.get(FLASH_COOKIE)),
            "theme": theme if (theme := self.cookies.get(THEME_COOKIE)) in ("light", "dark") else None,
            "entries": self.entries,
            "held": snapshot.held if snapshot is not None and self.may(TokenRole.READ) else None,
            "follows": False,
            "drawn_from": 0,
        }
        return render(template, {**common, **context}), regions

    def _static(self, name: str) -> str:
        return self.url("static", static_edition(), name)

    def _headers(self) -> list[Header]:
        headers: list[Header] = []
        if self.is_new:
            headers.append(set_cookie(self.scope, BROWSER_COOKIE, self.cookie, path=self._cookie_path))
        if FLASH_COOKIE in self.cookies:
            headers.append(clear_cookie(self.scope, FLASH_COOKIE, path=self._cookie_path))
        return headers

    @property
    def _cookie_path(self) -> str:
        return f"{self.root}{CONSOLE_PATH_PREFIX}"


class PageEvents(ConsoleResponse):
    """An ASGI application that sends the events of a page."""

    def __init__(self, live: LivePages, console: ConsoleRequest, template: str, load: LoadContext) -> None:
        self._live = live
        self._console = console
        self._template = template
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until either side ends."""
        console = self._console
        pieces = self._live.pieces(
            console.live_key,
            self._draw,
            lambda: console.served.authenticator.is_still_allowed(console.principal),
            since=console.since,
        )
        await EventStream(pieces)(scope, receive, send)

    async def _draw(self, snapshot: OverviewSnapshot) -> Mapping[str, str]:
        return await self._console.regions(self._template, self._load, snapshot)


def problem_of(error: Exception) -> Problem:
    """Return the problem that an error is shown as."""
    return msgspec.json.decode(problem_response(error).body, type=Problem)


def expected_problem(error: Exception) -> Problem:
    """Return what is told of an error. A fault of the server's own is raised again: its page is another."""
    problem = problem_of(error)
    if problem.status == INTERNAL.status:
        raise error
    return problem


def csrf_token(cookie: str) -> str:
    """Return the token of forms, made of the browser's cookie, which no other site can read."""
    return urlsafe_b64encode(hmac.digest(cookie.encode(), b"milepost form", hashlib.sha256)).decode()
