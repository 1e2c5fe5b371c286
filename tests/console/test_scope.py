"""What a token with a scope sees in the console, and what it may do there: over all pages."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import httpx
import pytest

from console.test_pages import text_of
from milepost import Milepost, NewMessage
from milepost.console import Console, live, poller
from milepost.console.pages import PAGES, log, subscription
from milepost.console.pages.subscription import ShownDefinition, load_definition
from milepost.server import create_app
from milepost.server.access import authentication
from milepost.server.access.permissions import ALL_ROLES
from milepost.server.access.scope_guard import ScopeRule
from milepost.server.access.tokens import TokenStore
from server.websocket.conftest import serving
from support import MakeMilepost, expire_token

ORDER, WAGES = UUID(int=1), UUID(int=2)
"""Ids of messages."""
FOREIGN = re.compile("wages|orderline|shipping|parcels|widest|stranger")
"""What no page may have in it."""
OUTSIDE = ("shipping/parcels", "billing/widest", "billing/wagess")
REFUSED = "Your token is for the group billing and the category order"


@dataclass(frozen=True)
class Call:
    """One request."""

    path: str
    form: dict[str, str] = field(default_factory=dict)
    says: str = ""
    """What the page has in it then."""
    status: int = 200


@dataclass(frozen=True)
class Case:
    """Requests of one route: those that a token for group billing and category order may make, and others."""

    inside: Sequence[Call]
    outside: Sequence[Call] = ()
    """Each is answered 403 and `REFUSED`, unless it says otherwise. Empty: it is the same for all."""


def _of_subscription(page: str, rest: str, *, form: dict[str, str] | None = None, says: str = "") -> Case:
    return Case(
        [Call(f"{page}/billing/invoices{rest}", form or {}, says)],
        [Call(f"{page}/{address}{rest}", form or {}, REFUSED, 403) for address in OUTSIDE],
    )


def _said(*calls: tuple[str, dict[str, str]]) -> list[Call]:
    """What is refused on the page that one is led to."""
    return [Call(path, form, REFUSED, 200) for path, form in calls]


MESSAGE = {"type": "a", "data": "{}", "properties": "", "metadata": "", "id": "", "expected": "any"}
ONE = "{group:str}/{name:str}"

CASES: dict[tuple[str, str], Case] = {
    ("GET", "/"): Case([Call("", says="billing/invoices")]),
    ("GET", "/subscriptions"): Case([Call("subscriptions")]),
    ("GET", f"/subscriptions/{ONE}"): _of_subscription("subscriptions", "", says="billing/invoices"),
    ("GET", f"/subscriptions/{ONE}/plan/{{action:str}}"): _of_subscription("subscriptions", "/plan/pause"),
    ("POST", f"/subscriptions/{ONE}/pause"): _of_subscription("subscriptions", "/pause", says="is paused"),
    ("POST", f"/subscriptions/{ONE}/resume"): _of_subscription("subscriptions", "/resume", says="goes on"),
    ("POST", f"/subscriptions/{ONE}/move"): _of_subscription("subscriptions", "/move", form={"to": "beginning"}),
    ("POST", f"/subscriptions/{ONE}/replay"): _of_subscription(
        "subscriptions", "/replay", form={"start": "beginning"}
    ),
    ("POST", f"/subscriptions/{ONE}/delete"): _of_subscription("subscriptions", "/delete", says="is deleted"),
    ("POST", f"/subscriptions/{ONE}/settings"): Case(
        [Call("subscriptions/billing/invoices/settings", {"timeout": "20"}, "timeout changed")],
        [
            *(Call(f"subscriptions/{address}/settings", {"timeout": "20"}, REFUSED, 403) for address in OUTSIDE),
            *_said(
                ("subscriptions/billing/invoices/settings", {"category": "order, wages"}),
                ("subscriptions/billing/invoices/settings", {"category": ""}),
            ),
        ],
    ),
    ("POST", "/subscriptions"): Case(
        [Call("subscriptions", {"name": "new", "category": "order"}, "consumers may come")],
        _said(
            ("subscriptions", {"name": "x", "category": "wages"}),
            ("subscriptions", {"name": "x", "category": "order, orderline"}),
            ("subscriptions", {"name": "x"}),
        ),
    ),
    ("GET", "/parked"): Case([Call("parked", says="billing/invoices")]),
    ("GET", f"/parked/{ONE}"): _of_subscription("parked", "", says="no reason at all"),
    ("GET", f"/parked/{ONE}/{{position:int}}"): _of_subscription("parked", "/1", says="no reason at all"),
    ("GET", f"/parked/{ONE}/plan/{{action:str}}"): _of_subscription("parked", "/plan/skip?scope=all"),
    ("POST", f"/parked/{ONE}/{{action:str}}"): _of_subscription(
        "parked", "/skip", form={"scope": "all"}, says="skipped"
    ),
    ("GET", "/trace"): Case(
        [Call("trace?q=order-1", says="billing/invoices"), Call(f"trace?q={WAGES}"), Call(f"trace?q={ORDER}")],
        [
            Call("trace?q=wages-1", says=REFUSED),
            Call("trace?q=orderline-1", says=REFUSED),
            Call("trace?q=order-1&subscription=shipping%2Fparcels", says=REFUSED),
            Call("trace?q=order-1&subscription=parcels", says="there is no subscription '*/parcels'"),
        ],
    ),
    ("GET", "/log"): Case(
        [
            Call("log", says="order-1"),
            Call("log?order=oldest", says="order-1"),
            Call("log?after=0", says="order-1"),
            Call("log?category=order&stream=order-1", says="order-1"),
        ],
        [
            Call("log?category=wages", says=REFUSED, status=403),
            Call("log?category=orderline", says=REFUSED, status=403),
            Call("log?stream=wages-1", says=REFUSED, status=403),
        ],
    ),
    ("GET", "/log/check"): Case(
        [Call("log/check?where=kind+%3D%3D+1", says="Matches 4 of the newest 4 messages")],
        [Call("log/check?where=kind+%3D%3D+1&category=wages", says=REFUSED, status=403)],
    ),
    # What it sends is looked at below: it does not end by itself.
    ("GET", "/log/tail"): Case(
        [], [Call(f"log/tail?{of}", says=REFUSED, status=403) for of in ("category=wages", "stream=orderline-1")]
    ),
    ("GET", "/log/find"): Case(
        [Call("log/find?message=1", says="order-1"), Call(f"log/find?message={ORDER}", says="order-2")],
        [
            Call(f"log/find?message={WAGES}", says="No message has this id."),
            Call("log/find?message=3", says="There is no message at position 3", status=404),
        ],
    ),
    ("GET", "/log/{position:int}"): Case(
        [Call("log/1", says="order-1"), Call("log/6?further=1", says="order-2")],
        [
            Call(f"log/{position}", says="There is no message at position", status=404)
            for position in (2, 3, 7, 99)
        ],
    ),
    ("GET", "/log/streams"): Case(
        [Call("log/streams", says="order-1"), Call("log/streams?prefix=wag", says="No stream begins with that")],
        [Call("log/streams?prefix=orderl", says="No stream begins with that")],
    ),
    ("GET", "/log/categories"): Case(
        [Call("log/categories", says="order"), Call("log/categories?prefix=w")],
        [Call("log/categories?prefix=orderl", says="No category begins with that")],
    ),
    ("GET", "/log/types"): Case(
        [Call("log/types", says="order.a")],
        [Call("log/types?category=wages", says=REFUSED, status=403)],
    ),
    ("GET", "/log/append"): Case([Call("log/append")]),
    ("POST", "/log/append"): Case(
        [
            Call("log/append", {"stream": "order-9", **MESSAGE}, "Appended to order-9"),
            Call("log/append", {"stream": "order", **MESSAGE}, "Appended to order"),
        ],
        [
            Call("log/append", {"stream": stream, **MESSAGE}, REFUSED, 403)
            for stream in ("wages-1", "orderline-1", "orde")
        ],
    ),
    ("GET", "/filter"): Case(
        [Call("filter?where=kind+%3D%3D+1&message=1", says="match"), Call("filter")],
        [
            Call("filter?where=kind+%3D%3D+1&message=3", says="there is no message 3"),
            Call(f"filter?where=kind+%3D%3D+1&message={WAGES}", says="there is no message"),
        ],
    ),
    ("GET", "/tokens"): Case([Call("tokens", says="scoped")]),
}


@pytest.fixture
async def mp(make_mp: MakeMilepost) -> AsyncIterator[Milepost]:
    """Streams of three categories, and subscriptions of two groups; each has parked what it takes."""
    async with make_mp(group="billing") as mp:
        for stream in ("order-1", "orderline-1", "wages-1", "order", "order-1"):
            await mp.append(stream, NewMessage(f"{stream.partition('-')[0]}.a", {}, properties={"kind": 1}))
        same = {"correlation_id": "c"}
        await mp.append("order-2", NewMessage("order.a", {}, id=ORDER, metadata=same, properties={"kind": 1}))
        await mp.append("wages-2", NewMessage("wages.a", {}, id=WAGES, metadata=same, properties={"kind": 1}))
        for address, category in (
            ("billing/invoices", "order"),
            ("billing/wagess", "wages"),
            ("billing/widest", None),
            ("shipping/parcels", "order"),
        ):
            await mp.create_subscription(address, category=category, tracking="all")
            await mp.settle(park=await mp.pull(address, limit=100), reason="no reason at all")
        tokens = TokenStore(mp)
        await tokens.make("stranger", ALL_ROLES)
        yield mp


class Browser:
    """Asks for pages and sends forms, logged in."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def log_in(self, secret: str) -> None:
        form = await self._client.get("/console/login")
        data = {"csrf": _csrf(form.text), "token": secret}
        assert (await self._client.post("/console/login", data=data)).status_code == 200

    async def does(self, method: str, call: Call) -> httpx.Response:
        """The page that a request leads to."""
        if method == "GET":
            return await self._client.get(f"/console/{call.path}".rstrip("/"))
        form = await self._client.get("/console/log/append")
        return await self._client.post(f"/console/{call.path}", data={"csrf": _csrf(form.text), **call.form})


def _csrf(page: str) -> str:
    return page.split('name="csrf" value="')[1].split('"')[0]


@pytest.fixture
async def browser(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Browser]:
    """Somebody with a token of every role for one group and one category."""
    monkeypatch.setattr(authentication, "UNKNOWN_TOKEN_FRESH_SECONDS", 0.0)
    tokens = TokenStore(mp)
    secret = await tokens.make("scoped", ALL_ROLES, groups=["billing"], categories=["order"])
    transport = httpx.ASGITransport(create_app(mp, pages=Console))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://milepost.example", follow_redirects=True
    ) as client:
        client.headers["accept"] = "text/html"
        browser = Browser(client)
        await browser.log_in(secret)
        yield browser


def test_every_route_is_here() -> None:
    """One that is new says how it keeps to a scope, and is tried below."""
    handlers = {
        (method, path if path.startswith("/") else f"/{path}"): handler
        for page in PAGES
        for handler in page.HANDLERS
        if handler.opt["role"] is not None
        for path in handler.paths
        for method in handler.http_methods
        if method in ("GET", "POST")
    }
    assert set(handlers) == set(CASES)
    assert [route for route, handler in handlers.items() if handler.opt["scope_rule"] is None] == []
    alike = {route for route, handler in handlers.items() if handler.opt["scope_rule"] is ScopeRule.ANY_SCOPE}
    narrowed = {("GET", "/"), ("GET", "/parked"), ("GET", "/tokens")}
    assert alike | narrowed == {route for route, case in CASES.items() if not case.outside}


@pytest.mark.parametrize("route", CASES, ids=" ".join)
async def test_a_page_keeps_to_the_scope(mp: Milepost, browser: Browser, route: tuple[str, str]) -> None:
    before = await mp.head(), [info.status for info in await mp.subscriptions()]
    for call in CASES[route].outside:
        answer = await browser.does(route[0], call)
        assert (answer.status_code, call.says in text_of(answer.text)) == (call.status, True), text_of(answer.text)
    assert (await mp.head(), [info.status for info in await mp.subscriptions()]) == before
    for call in CASES[route].inside:
        answer = await browser.does(route[0], call)
        assert (answer.status_code, call.says in text_of(answer.text)) == (call.status, True), text_of(answer.text)
        assert not FOREIGN.search(answer.text), answer.text


async def test_one_sees_what_the_token_is_for(browser: Browser) -> None:
    page = text_of((await browser.does("GET", Call(""))).text)
    assert "the group billing and the category order scoped · log out" in page
    page = text_of((await browser.does("GET", Call("tokens"))).text)
    assert "scoped append consume operate read billing order in force" in page


async def events_of(client: httpx.AsyncClient, path: str, until: str) -> AsyncIterator[str]:
    """The lines of the events of a page, up to one with a text."""
    async with client.stream("GET", f"/console{path}", headers={"accept": "text/event-stream"}) as answer:
        async for line in answer.aiter_lines():
            yield line
            if until in line:
                return


async def test_what_follows_keeps_to_the_scope(
    mp: Milepost, database_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "WATCHED_PACE", poller.PollPace(0.05, 0, 0.05))
    tokens = TokenStore(mp)
    secret = await tokens.make("scoped", ALL_ROLES, groups=["billing"], categories=["order"])
    async with serving(Milepost(database_url, schema=schema), access="tokens", pages=Console) as server:
        async with server.client(follow_redirects=True) as client:
            await Browser(client).log_in(secret)
            # Both change while the page is open: a region is sent when it changes.
            followed = events_of(client, "", "paused")
            seen = [await anext(followed)]
            for address in ("shipping/parcels", "billing/invoices"):
                await mp.manage(address).pause()
            seen += [line async for line in followed]
            assert "billing/invoices" in "".join(seen)
            assert not FOREIGN.search("".join(seen))
            # The tail begins at the end of the log: the first row of it is of a message that came later.
            tail = events_of(client, "/log/tail?after=0", "order-2")
            seen = [line async for line in tail]
            assert "order-1" in "".join(seen)
            assert not FOREIGN.search("".join(seen))
            # It comes to select more while the page of it is open.
            await mp.create_subscription("billing/growing", category="order")
            followed = events_of(client, "/subscriptions/billing/growing", "problem")
            seen = [await anext(followed)]
            await mp.manage("billing/growing").update(category=["order", "wages"])
            seen += [line async for line in followed]
            assert not FOREIGN.search("".join(seen).replace(REFUSED, ""))


@pytest.mark.shard("variants", fast=["-revoked", "/log/tail-expired", "-logged out"])
@pytest.mark.parametrize("how", ["revoked", "expired", "logged out"])
@pytest.mark.parametrize("path", ["", "/log/tail"])
async def test_what_follows_ends_with_the_token_and_the_session(
    mp: Milepost, database_url: str, schema: str, monkeypatch: pytest.MonkeyPatch, path: str, how: str
) -> None:
    """What is appended after that is not sent any more."""
    for module in (live, log):
        monkeypatch.setattr(module, "STAY_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(poller, "WATCHED_PACE", poller.PollPace(0.05, 0, 0.05))
    monkeypatch.setattr(authentication, "TOKENS_FRESH_SECONDS", 0.0)
    tokens = TokenStore(mp)
    secret = await tokens.make("ada", ALL_ROLES)
    async with serving(Milepost(database_url, schema=schema), access="tokens", pages=Console) as server:
        async with server.client(follow_redirects=True) as client:
            browser = Browser(client)
            await browser.log_in(secret)
            followed = events_of(client, path, "event: ended")
            seen = [await anext(followed)]
            if how == "revoked":
                await tokens.revoke("ada")
            elif how == "expired":
                await expire_token(mp, "ada")
            else:
                assert (await browser.does("POST", Call("logout"))).status_code == 200
            await mp.append("order-1", NewMessage("too-late"))
            async with asyncio.timeout(60):
                seen += [line async for line in followed]
            assert "too-late" not in "".join(seen)
            assert seen[-1] == "event: ended"


async def test_a_subscription_is_shown_only_as_far_as_the_scope_has_what_was_read_of_it(
    mp: Milepost, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes to select more after its page was admitted, before what is shown is read."""
    await mp.create_subscription("billing/growing", category="order")
    page = Call("subscriptions/billing/growing")
    assert (await browser.does("GET", page)).status_code == 200

    async def changed_before(mp: Milepost, group: str, name: str) -> ShownDefinition | None:
        await mp.manage(f"{group}/{name}").update(category=["order", "wages"])
        return await load_definition(mp, group, name)

    monkeypatch.setattr(subscription, "load_definition", changed_before)
    answer = await browser.does("GET", page)
    assert answer.status_code == 403
    assert not FOREIGN.search(answer.text)
