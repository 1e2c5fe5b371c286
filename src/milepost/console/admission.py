"""Looks at every request before its handler does: who makes it, whether they may, and where a form comes from."""

import asyncio
import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from litestar.connection import ASGIConnection, Request
from litestar.handlers import BaseRouteHandler

from milepost.console.cookies import SESSION, VISIT, cookies_of
from milepost.console.entry import Entry
from milepost.console.live import Live
from milepost.console.session import opened
from milepost.console.visit import Visit, csrf_of
from milepost.server.access.entrance import check_role
from milepost.server.access.reach import Within
from milepost.server.access.role import Role
from milepost.server.access.visitor import ANYBODY, Visitor
from milepost.server.asgi import Scope, header
from milepost.server.beside import Served
from milepost.server.body import BODY
from milepost.server.hosts import authority_of
from milepost.server.http.admission import refuse_options
from milepost.server.problems import FORBIDDEN, INVALID, Refused
from milepost.server.segments import names

NOBODY = Visitor(frozenset())
"""Somebody who is not logged in."""
MOST_FIELDS = 20_000
"""Of a form: a page of messages has a few hundred."""
QUICK_FORM_BYTES = 64 * 2**10
"""A larger form is read in a thread, so that it holds nobody up."""
UNQUOTED_BYTES = 2**14
"""How much of a field is unquoted in one go."""


def needs(role: Role | None, within: Within | None = None) -> dict[str, Any]:
    """Return the options of a handler.

    Args:
        role: The role that it takes; None: also for those who are not logged in.
        within: How it keeps to the scope of a token. Defaults to none: it refuses tokens with a scope.
    """
    return {"role": role, "within": within}


class LogInFirst(Exception):
    """A page that is not for somebody who is not logged in."""


class FromElsewhere(Exception):
    """A link of another site was followed: a browser keeps its cookies back then, and sends them next time."""


class Admission:
    """Makes a visit of a request, or refuses it."""

    def __init__(self, served: Served, live: Live, entries: Sequence[Entry]) -> None:
        self._served = served
        self._live = live
        self._entries = entries

    async def admit(self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        """Called for every request that has a handler."""
        refuse_options(connection)
        scope: Any = connection.scope
        scope["path_params"] = names(scope["path_params"])
        if _is_from_elsewhere(scope):
            raise FromElsewhere
        role: Role | None = handler.opt["role"]
        if role is not None:
            # Said at once: each question would wait for a connection for seconds.
            self._live.watch.check()
        visitor = await self._visitor(scope)
        form: Mapping[str, Sequence[str]] = {}
        if scope["method"] != "GET" and isinstance(connection, Request):
            _check_origin(scope)
            if visitor is None:
                scope[BODY].comes_from_stranger()
            form = await _form(connection)
        visit = self.visit(scope, visitor or NOBODY, form)
        scope["state"]["visit"] = visit
        if scope["method"] != "GET":
            _check_form(visit)
        if role is None:
            return
        if visitor is None:
            raise LogInFirst
        check_role(visitor, role)
        await visit.reach.admit(handler.opt["within"], scope["path_params"])
        if scope["method"] == "GET":
            await self._live.watch.look_if_old()

    def visit(self, scope: Scope, visitor: Visitor, form: Mapping[str, Sequence[str]]) -> Visit:
        """A visit of somebody."""
        cookies = cookies_of(scope)
        cookie = cookies.get(VISIT if visitor.token is None else SESSION, "")
        return Visit(
            scope=scope,
            served=self._served,
            live_pages=self._live,
            entries=self._entries,
            visitor=visitor,
            cookie=cookie or secrets.token_urlsafe(24),
            is_new=not cookie,
            cookies=cookies,
            form=form,
        )

    async def _visitor(self, scope: Scope) -> Visitor | None:
        if not self._served.entrance.asks:
            return ANYBODY
        session = await opened(cookies_of(scope).get(SESSION, ""), self._served.doorkeeper)
        return None if session is None else Visitor(session.token.roles, session.token, session.nonce)


def _is_from_elsewhere(scope: Scope) -> bool:
    came_from, mode = header(scope, b"sec-fetch-site"), header(scope, b"sec-fetch-mode")
    return (
        scope["method"] == "GET"
        and came_from in ("cross-site", "same-site")
        and mode == "navigate"
        and not cookies_of(scope)
    )


async def _form(request: Request[Any, Any, Any]) -> Mapping[str, Sequence[str]]:
    body = await request.body()
    try:
        if len(body) <= QUICK_FORM_BYTES:
            return _fields_of(body)
        return await asyncio.to_thread(_fields_of, body)
    except ValueError as error:
        raise Refused(INVALID, f"The form cannot be read: {error}") from None


def _fields_of(form: bytes) -> Mapping[str, Sequence[str]]:
    """Return the values of each field.

    The function of the standard library takes a text of a million characters apart in one go, and has no thread
    look after anything else meanwhile.
    """
    if form.count(b"&") >= MOST_FIELDS:
        raise ValueError(f"it has more than {MOST_FIELDS:,} fields")
    fields: dict[str, list[str]] = {}
    for pair in filter(None, form.split(b"&")):
        name, _, value = pair.partition(b"=")
        fields.setdefault(_unquoted(name), []).append(_unquoted(value))
    return fields


def _unquoted(text: bytes) -> str:
    text = text.replace(b"+", b" ")
    parts = []
    begin = 0
    while begin < len(text):
        end = begin + UNQUOTED_BYTES
        # The three characters that stand for one byte stay together.
        if (divided := text.rfind(b"%", end - 2, end)) > begin:
            end = divided
        parts.append(unquote_to_bytes(text[begin:end]))
        begin = end
    return b"".join(parts).decode()


def _check_origin(scope: Scope) -> None:
    """Refuses what a page of another site sent; browsers say so."""
    origin = header(scope, b"origin")
    came_from = header(scope, b"sec-fetch-site")
    is_other = origin is not None and authority_of(origin) != header(scope, b"host")
    if is_other or came_from not in (None, "same-origin"):
        raise Refused(FORBIDDEN, "A page of another site sent this")


def _check_form(visit: Visit) -> None:
    if visit.is_new or not hmac.compare_digest(visit.sent("csrf").encode(), csrf_of(visit.cookie).encode()):
        raise Refused(
            FORBIDDEN,
            "The form is from before you logged in or out, or your browser keeps no cookies: send it again",
        )
