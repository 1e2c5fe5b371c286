"""One request to the console: who makes it, and how it can be answered."""

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from markupsafe import Markup

from milepost.app import Milepost
from milepost.console.answer import Answer, Header, Page, elsewhere
from milepost.console.cookies import FLASH, THEME, VISIT, forgotten, kept
from milepost.console.entry import Entry
from milepost.console.flash import SECONDS, Flash, Tone, flash_of
from milepost.console.live import Live
from milepost.console.regions import Regions
from milepost.console.snapshot import Snapshot, narrowed
from milepost.console.templating import edition, rendered
from milepost.server.access.reach import Reach
from milepost.server.access.role import Role
from milepost.server.access.visitor import Visitor
from milepost.server.asgi import Receive, Scope, Send, header
from milepost.server.beside import PREFIX, Served
from milepost.server.body import BODY, Body
from milepost.server.events import MEDIA_TYPE, EventStream
from milepost.server.limits import Limits
from milepost.server.problems import INTERNAL, Problem, answer_to

Load = Callable[[Snapshot], Awaitable[Mapping[str, Any]]]
"""What a template is given, for how everything stands."""
Once = Callable[[], Awaitable[Mapping[str, Any]]]
"""What it is given besides when the whole page is drawn."""
SINCE = "since"
"""The parameter that says from which snapshot a page was drawn; it is not one of the page's own."""


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A request of somebody who was let in."""

    scope: Scope
    served: Served
    live_pages: Live
    entries: Sequence[Entry]
    visitor: Visitor
    cookie: str
    """What the browser is known by; forms have to know it."""
    is_new: bool
    """Whether the browser has to be given the cookie first."""
    cookies: Mapping[str, str]
    form: Mapping[str, Sequence[str]]
    """What was sent, if something was."""

    @property
    def mp(self) -> Milepost:
        """What is looked at."""
        return self.served.mp

    @property
    def reach(self) -> Reach:
        """What the visitor may reach with the scope of their token."""
        return Reach(self.mp, self.visitor.scope)

    @property
    def limits(self) -> Limits:
        """How much may be sent."""
        body: Body = self.scope[BODY]
        return body.limits

    @property
    def root(self) -> str:
        """What an application put before the path that the server is mounted in."""
        return str(self.scope.get("root_path", "")).rstrip("/")

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the address; the last counts."""
        given = dict(parse_qsl(self.scope.get("query_string", b"").decode("latin-1")))
        return {name: value for name, value in given.items() if name != SINCE}

    @property
    def since(self) -> int:
        """The snapshot that a page was drawn from whose events are asked for; 0: none is known."""
        given = dict(parse_qsl(self.scope.get("query_string", b"").decode("latin-1"))).get(SINCE, "")
        return int(given) if given.isascii() and given.isdigit() and len(given) < 19 else 0

    def sent(self, name: str, default: str = "") -> str:
        """A field of the form."""
        return self.form.get(name, [default])[-1]

    def may(self, role: str) -> bool:
        """Whether this is somebody with a role; what one may not do is not offered."""
        return Role(role) in self.visitor.roles

    def url(self, *parts: str | int, **query: object) -> str:
        """The address of a page: its parts become segments of the path, whatever they hold."""
        path = "/".join([f"{self.root}{PREFIX}", *(quote(str(part), safe="") for part in parts)])
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{path}?{urlencode(given)}" if given else path

    @property
    def live_key(self) -> Hashable:
        """What is the same for all who see the same page."""
        return (
            self.scope["path"],
            tuple(sorted(self.query.items())),
            self.visitor.roles,
            self.visitor.scope,
            self.root,
        )

    @property
    def csrf(self) -> str:
        """What every form has to bring along: only a page of this console can know it."""
        return csrf_of(self.cookie)

    # Answers

    def page(self, template: str, *, status: int = 200, **context: Any) -> Page:
        """A page."""
        html, _ = self._drawn(template, context)
        return Page(html.encode(errors="backslashreplace"), status=status, headers=self._headers())

    async def live(self, template: str, load: Load, once: Once | None = None) -> Answer:
        """A page that follows; the same address gives a browser its events.

        What `once` gives is only there when the whole page is drawn, and stands still.
        """
        if MEDIA_TYPE in (header(self.scope, b"accept") or ""):
            return Events(self.live_pages, self, template, load)
        still = {} if once is None else await once()
        snapshot = await narrowed(await self.live_pages.watch.now(), self.reach)
        known = self.live_pages.known(self.live_key, snapshot.number)
        context = {**await load(snapshot), **still, "drawn_from": snapshot.number}
        html, regions = self._drawn(template, context, known, snapshot=snapshot)
        self.live_pages.remember(self.live_key, snapshot, regions.drawn)
        return Page(html.encode(errors="backslashreplace"), headers=self._headers())

    def done(self, path: str, words: str, tone: Tone = "done") -> Page:
        """After a change: leads to a page, which says what was done."""
        said = kept(self.scope, FLASH, Flash(words, tone).encoded(), path=self._cookie_path, seconds=SECONDS)
        return elsewhere(path, headers=[said])

    def fragment(self, template: str, **context: Any) -> Page:
        """A part of a page, for a script that asked for it."""
        html, _ = self._drawn(template, context)
        return Page(html.encode(errors="backslashreplace"))

    async def attempt(self, path: str, work: Awaitable[str], *, back: str | None = None) -> Page:
        """Makes a change, and leads to a page that says what was done; `back` to one that says why it was not."""
        try:
            words = await work
        except Exception as error:
            problem = problem_of(error)
            if problem.status == INTERNAL.status:
                raise
            return self.done(back or path, problem.detail, "problem")
        finally:
            # What was done is done, whoever cannot look at it.
            with suppress(Exception):
                await self.live_pages.watch.look_again()
        return self.done(path, words)

    # Drawing

    async def regions(self, template: str, load: Load, snapshot: Snapshot) -> Mapping[str, str]:
        """The regions of a page."""
        snapshot = await narrowed(snapshot, self.reach)
        _, regions = self._drawn(template, await load(snapshot), snapshot=snapshot)
        return regions.drawn

    def _drawn(
        self,
        template: str,
        context: Mapping[str, Any],
        known: Mapping[str, str] | None = None,
        *,
        snapshot: Snapshot | None = None,
    ) -> tuple[str, Regions]:
        regions = Regions(known)
        snapshot = snapshot or self.live_pages.watch.newest
        common = {
            "visit": self,
            "url": self.url,
            "may": self.may,
            "static": self._static,
            "csrf": lambda: Markup('<input type="hidden" name="csrf" value="{}">').format(self.csrf),
            "live": regions,
            "flash": flash_of(self.cookies.get(FLASH)),
            "theme": theme if (theme := self.cookies.get(THEME)) in ("light", "dark") else None,
            "entries": self.entries,
            "held": snapshot.held if snapshot is not None and self.may(Role.READ) else None,
            "follows": False,
            "drawn_from": 0,
        }
        return rendered(template, {**common, **context}), regions

    def _static(self, name: str) -> str:
        return self.url("static", edition(), name)

    def _headers(self) -> list[Header]:
        headers: list[Header] = []
        if self.is_new:
            headers.append(kept(self.scope, VISIT, self.cookie, path=self._cookie_path))
        if FLASH in self.cookies:
            headers.append(forgotten(self.scope, FLASH, path=self._cookie_path))
        return headers

    @property
    def _cookie_path(self) -> str:
        return f"{self.root}{PREFIX}"


class Events(Answer):
    """An ASGI application that sends the events of a page."""

    def __init__(self, live: Live, visit: Visit, template: str, load: Load) -> None:
        self._live = live
        self._visit = visit
        self._template = template
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends until one of both sides ends it."""
        visit = self._visit
        pieces = self._live.pieces(
            visit.live_key,
            self._draw,
            lambda: visit.served.entrance.may_stay(visit.visitor),
            since=visit.since,
        )
        await EventStream(pieces)(scope, receive, send)

    async def _draw(self, snapshot: Snapshot) -> Mapping[str, str]:
        return await self._visit.regions(self._template, self._load, snapshot)


def problem_of(error: Exception) -> Problem:
    """What is told of an error."""
    return msgspec.json.decode(answer_to(error).body, type=Problem)


def csrf_of(cookie: str) -> str:
    """Made of what the browser is known by, which no other page can read."""
    return urlsafe_b64encode(hmac.digest(cookie.encode(), b"milepost form", hashlib.sha256)).decode()
