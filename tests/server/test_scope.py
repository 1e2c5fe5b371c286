"""What a token with a scope reaches, and what it does not: over all operations."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from milepost import InvalidMessage, Milepost, NewMessage, UnknownSubscription
from milepost.engine.operate.info import SubscriptionOverview
from milepost.engine.operate.trace.results import Neighbour
from milepost.progress.memory import MemoryProgress
from milepost.server import create_app
from milepost.server.access import authentication
from milepost.server.access.permissions import ALL_ROLES, MAX_SCOPE_NAMES, UNLIMITED_SCOPE, TokenRole, TokenScope
from milepost.server.access.scope_guard import ScopeGuard, ScopeRule
from milepost.server.access.tokens import TokenStore
from milepost.server.problems import FORBIDDEN, UNKNOWN_SUBSCRIPTION, RequestRefused
from milepost.server.routes import make_application
from milepost.server.websocket import registry
from server.answers import done, problem
from server.followers import following
from server.websocket.conftest import Serve
from server.websocket.talking import talking

ORDER, PAYMENT = UUID(int=1), UUID(int=2)
"""Ids of messages."""
IN, OUT = "/v1/subscriptions/billing/invoices", "/v1/subscriptions/shipping/parcels"
WIDE, OTHER = "/v1/subscriptions/billing/widest", "/v1/subscriptions/billing/payments"
OUTSIDE = (OUT, WIDE, OTHER)
"""Another group; in the group, and of every category or of another one."""


FOREIGN = re.compile("payment|orderline|shipping|parcels|widest")
"""What nothing that is answered may have in it."""


@dataclass(frozen=True)
class Call:
    """One request."""

    method: str
    path: str
    body: Any = None

    async def send(self, client: httpx.AsyncClient, **names: str) -> httpx.Response:
        """Send it, with these names in place of `{…}`."""
        body = None if self.body is None else json.loads(_named(json.dumps(self.body), names))
        return await client.request(self.method, _named(self.path, names), json=body)


def _named(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"<{name}>", value)
    return text


@dataclass(frozen=True)
class Case:
    """Requests of one operation: those that a token for group billing and category order may make, and others."""

    inside: Sequence[Call]
    outside: Sequence[Call] = ()
    """Empty: it is the same for all."""


def _of_subscription(method: str, rest: str, body: Any = None) -> Case:
    """An operation on the subscription of its path."""
    return Case([Call(method, IN + rest, body)], [Call(method, path + rest, body) for path in OUTSIDE])


def _message(**fields: Any) -> dict[str, Any]:
    return {"type": "a", "data": {}, **fields}


CASES: dict[str, Case] = {
    "append": Case(
        [Call("POST", "/v1/streams/order-9", _message()), Call("POST", "/v1/streams/order", _message())],
        [
            Call("POST", f"/v1/streams/{name}", _message())
            for name in ("payment-9", "orderline-9", "orde", "order%2F1")
        ],
    ),
    "append_many": Case(
        [Call("POST", "/v1/streams", [{"stream": "order-8", "messages": [_message()]}])],
        [
            Call(
                "POST",
                "/v1/streams",
                [{"stream": name, "messages": [_message()]} for name in ("order-8", "orderline-8")],
            )
        ],
    ),
    "read_stream": Case(
        [Call("GET", "/v1/streams/order-1"), Call("GET", "/v1/streams/order")],
        [Call("GET", f"/v1/streams/{name}") for name in ("payment-1", "orderline-1", "Order-1", "order%2F1")],
    ),
    "last": Case(
        [Call("GET", "/v1/streams/order-1/last")],
        [Call("GET", f"/v1/streams/{name}/last") for name in ("payment-1", "orderline-1")],
    ),
    "read": Case(
        [Call("GET", "/v1/messages"), Call("GET", "/v1/messages?stream=order-1&category=order")],
        [
            Call("GET", "/v1/messages?category=payment"),
            Call("GET", "/v1/messages?category=order&category=orderline"),
            Call("GET", "/v1/messages?stream=payment-1"),
            Call("GET", "/v1/messages?stream=order-1&stream=orderline-1&category=order"),
        ],
    ),
    "head": Case([Call("GET", "/v1/head")]),
    # What it sends is looked at below: it does not end by itself.
    "follow": Case(
        [],
        [
            Call("GET", "/v1/follow?category=payment"),
            Call("GET", "/v1/follow?stream=payment-1"),
            Call("GET", "/v1/follow?category=orderline&after=now"),
        ],
    ),
    "trace": Case(
        [Call("GET", "/v1/trace/order-1"), Call("GET", f"/v1/trace/{ORDER}"), Call("GET", f"/v1/trace/{PAYMENT}")],
        [
            Call("GET", "/v1/trace/payment-1"),
            Call("GET", "/v1/trace/orderline-1"),
            Call("GET", "/v1/trace/order-1?group=shipping"),
            Call("GET", "/v1/trace/order-1?subscription=shipping%2Fparcels"),
        ],
    ),
    "list_subscriptions": Case(
        [Call("GET", "/v1/subscriptions"), Call("GET", "/v1/subscriptions?group=billing")],
        [Call("GET", "/v1/subscriptions?group=shipping")],
    ),
    "create_subscription": Case(
        [
            Call("POST", "/v1/subscriptions", {"name": "new", "group": "billing", "category": "order"}),
            Call("POST", "/v1/subscriptions", {"name": "new", "group": "billing", "stream": ["order-1", "order"]}),
        ],
        [
            # The server's own group is another one.
            Call("POST", "/v1/subscriptions", {"name": "new", "category": "order"}),
            Call("POST", "/v1/subscriptions", {"name": "new", "group": "shipping", "category": "order"}),
            Call("POST", "/v1/subscriptions", {"name": "x", "group": "billing"}),
            Call("POST", "/v1/subscriptions", {"name": "x", "group": "billing", "category": ["order", "payment"]}),
            Call("POST", "/v1/subscriptions", {"name": "x", "group": "billing", "category": "orderline"}),
            Call(
                "POST", "/v1/subscriptions", {"name": "x", "group": "billing", "stream": ["order-1", "payment-1"]}
            ),
            Call("POST", "/v1/subscriptions", {"name": "x", "group": "billing", "types": "order.*"}),
            # One that is there would be taken over, or told about.
            Call("POST", "/v1/subscriptions", {"name": "payments", "group": "billing", "category": "order"}),
            Call(
                "POST",
                "/v1/subscriptions",
                {"name": "widest", "group": "billing", "category": "order", "if_exists": "ignore"},
            ),
        ],
    ),
    "show_subscription": _of_subscription("GET", ""),
    "statistics": _of_subscription("GET", "/statistics"),
    "update_subscription": Case(
        [Call("PATCH", IN, {"timeout": 20}), Call("PATCH", IN, {"stream": "order-1"})],
        [
            *(Call("PATCH", path, {"timeout": 20}) for path in OUTSIDE),
            *(Call("PATCH", path, {"category": "order"}) for path in OUTSIDE),
            Call("PATCH", IN, {"category": ["order", "payment"]}),
            Call("PATCH", IN, {"category": "orderline"}),
        ],
    ),
    "pause_subscription": _of_subscription("POST", "/pause"),
    "resume_subscription": _of_subscription("POST", "/resume"),
    "plan_move": _of_subscription("GET", "/move?to=now"),
    "move_subscription": _of_subscription("POST", "/move", {"to": "beginning"}),
    "plan_replay": _of_subscription("GET", "/replay?start=0"),
    "replay_subscription": _of_subscription("POST", "/replay", {"start": 0}),
    "list_deliveries": _of_subscription("GET", "/deliveries"),
    "count_deliveries": _of_subscription("GET", "/deliveries/count"),
    "retry_deliveries": _of_subscription("POST", "/deliveries/retry", {"all": True}),
    "skip_deliveries": _of_subscription("POST", "/deliveries/skip", {"all": True}),
    "progress": Case(
        [Call("GET", f"{IN}/progress/order-1")],
        [
            Call("GET", f"{IN}/progress/payment-1"),
            Call("GET", f"{IN}/progress/orderline-1"),
            *(Call("GET", f"{path}/progress/order-1") for path in OUTSIDE),
        ],
    ),
    "caught_up": Case(
        [Call("GET", f"{IN}/caught-up?position=1&timeout=0")],
        [
            Call("GET", f"{IN}/caught-up?stream=payment-1&version=1&timeout=0"),
            *(Call("GET", f"{path}/caught-up?position=1&timeout=0") for path in OUTSIDE),
        ],
    ),
    "pull": _of_subscription("POST", "/pull?limit=1"),
    "settle": Case(
        [Call("POST", "/v1/settle", {"ack": ["<claim>"]}), Call("POST", "/v1/settle", {"ack": ["nothing"]})],
        [
            *(
                Call("POST", "/v1/settle", {how: ["<foreign>"]})
                for how in ("ack", "retry", "park", "skip", "extend")
            ),
            Call("POST", "/v1/settle", {"ack": {"<claim>": "", "<foreign>": ""}}),
            Call("POST", "/v1/settle", {"skip": ["<payment>"]}),
        ],
    ),
    "check_filter": Case([Call("POST", "/v1/filter/check", {"where": "a > 1"})]),
    "evaluate_filter": Case([Call("POST", "/v1/filter/evaluate", {"where": "a > 1", "properties": {"a": 1}})]),
    "explain_filter": Case([Call("POST", "/v1/filter/explain", {"where": "a > 1", "properties": {"a": 1}})]),
    "list_nodes": Case([Call("GET", "/v1/nodes")]),
    "metrics": Case([Call("GET", "/metrics")]),
    "delete_subscription": _of_subscription("DELETE", ""),
}


@pytest.fixture
def tokens(mp: Milepost) -> TokenStore:
    return TokenStore(mp)


@pytest.fixture
async def log(mp: Milepost) -> Milepost:
    """Streams of three categories, and subscriptions of two groups, to be pulled from."""
    for stream in ("order-1", "orderline-1", "payment-1", "order", "order-1"):
        await mp.append(stream, NewMessage("a", {"of": stream}))
    await mp.append("order-2", NewMessage("a", {}, id=ORDER, metadata={"correlation_id": "c"}))
    await mp.append("payment-2", NewMessage("a", {}, id=PAYMENT, metadata={"correlation_id": "c"}))
    for address, category in (
        ("billing/invoices", "order"),
        ("billing/payments", "payment"),
        ("billing/widest", None),
        ("shipping/parcels", "order"),
    ):
        await mp.create_subscription(address, category=category, tracking="all")
    return mp


@pytest.fixture
async def app(log: Milepost) -> Any:
    return create_app(log)


@pytest.fixture(autouse=True)
def _known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "UNKNOWN_TOKEN_FRESH_SECONDS", 0.0)


@pytest.fixture
async def scoped(app: Any, tokens: TokenStore) -> AsyncIterator[httpx.AsyncClient]:
    """A client with a token of every role for one group and one category."""
    secret = await tokens.make("scoped", ALL_ROLES, groups=["billing"], categories=["order"])
    async with client_of(app, secret) as client:
        yield client


@pytest.fixture
async def unscoped(app: Any, tokens: TokenStore) -> AsyncIterator[httpx.AsyncClient]:
    """A client with a token for everything."""
    async with client_of(app, await tokens.make("unscoped", ALL_ROLES)) as client:
        yield client


def client_of(app: Any, secret: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://milepost.example",
        headers={"authorization": f"Bearer {secret}"},
    )


class TestEveryOperation:
    def test_is_here(self) -> None:
        """One that is new says how it keeps to a scope, and is tried below."""
        handlers = [
            handler
            for route in make_application().routes
            for handler in getattr(route, "route_handlers", ())
            if handler.opt.get("role") is not None
        ]
        assert {handler.operation_id for handler in handlers} == set(CASES)
        assert [handler.operation_id for handler in handlers if handler.opt["scope_rule"] is None] == []
        everywhere = {
            handler.operation_id for handler in handlers if handler.opt["scope_rule"] is ScopeRule.ANY_SCOPE
        }
        assert everywhere == {name for name, case in CASES.items() if not case.outside} - {"metrics"}

    async def test_is_refused_without_a_decision(self, mp: Milepost) -> None:
        await ScopeGuard(mp, UNLIMITED_SCOPE).admit(None, {})
        for scope in (TokenScope.of(["billing"], None), TokenScope.of(None, ["order"])):
            with pytest.raises(RequestRefused, match="This takes a token for everything"):
                await ScopeGuard(mp, scope).admit(None, {})

    @pytest.mark.parametrize("name", CASES)
    async def test_keeps_to_the_scope(
        self, log: Milepost, scoped: httpx.AsyncClient, unscoped: httpx.AsyncClient, name: str
    ) -> None:
        claims = {
            "claim": (await log.pull("billing/invoices", limit=1))[0].token,
            "foreign": (await log.pull("shipping/parcels", limit=1))[0].token,
            "payment": (await log.pull("billing/payments", limit=1))[0].token,
        }
        head = await log.head()
        for call in CASES[name].outside:
            answer = await call.send(scoped, **claims)
            problem(answer, FORBIDDEN, "Your token is for the group billing and the category order")
        assert await log.head() == head, "nothing was appended"
        assert len(await log.subscriptions()) == 4
        for call in CASES[name].inside:
            answer = await call.send(scoped, **claims)
            assert answer.status_code not in (401, 403, 404, 429, 500), (call, answer.text)
            assert not FOREIGN.search(answer.text), (call, answer.text)
        # A token for everything may do what this one may not.
        for call in CASES[name].outside:
            if "follow" not in call.path:
                answer = await call.send(unscoped, **claims)
                assert answer.status_code not in (401, 403, 429, 500), (call, answer.text)


async def streams_of(client: httpx.AsyncClient, **parameters: Any) -> set[str]:
    """The streams of all messages that a read of the log gives."""
    found = done(await client.get("/v1/messages", params=parameters))
    return {message["stream"] for message in found["messages"]}


class TestMessages:
    async def test_a_read_of_the_log_is_narrowed(
        self, scoped: httpx.AsyncClient, app: Any, tokens: TokenStore, unscoped: httpx.AsyncClient
    ) -> None:
        assert await streams_of(scoped) == {"order", "order-1", "order-2"}
        assert await streams_of(scoped, backwards=True, types="a") == {"order", "order-1", "order-2"}
        assert await streams_of(scoped, stream="order") == {"order"}
        assert await streams_of(unscoped) >= {"payment-1", "orderline-1", "order-1"}
        async with client_of(
            app, await tokens.make("two", {TokenRole.READ}, categories=["payment", "orderline"])
        ) as two:
            assert await streams_of(two) == {"payment-1", "payment-2", "orderline-1"}
            assert await streams_of(two, category="payment") == {"payment-1", "payment-2"}
        # Groups are of subscriptions: this one reads every stream.
        async with client_of(app, await tokens.make("group", {TokenRole.READ}, groups=["billing"])) as group:
            assert await streams_of(group) == await streams_of(unscoped)

    async def test_nothing_of_a_refused_append_is_written(self, log: Milepost, scoped: httpx.AsyncClient) -> None:
        streams = ["order-1", "payment-1"]
        body = [{"stream": stream, "messages": [_message()]} for stream in streams]
        problem(
            await scoped.post("/v1/streams", json=body), FORBIDDEN, "stream 'payment-1' is of category 'payment'"
        )
        assert [await log.last(stream) for stream in streams] == [2, 1]

    async def test_whoever_follows_is_sent_only_what_is_theirs_wherever_they_go_on(
        self, log: Milepost, serve: Serve, tokens: TokenStore
    ) -> None:
        secret = await tokens.make("scoped", {TokenRole.READ}, categories=["order"])
        everything = await tokens.make("unscoped", {TokenRole.READ})
        server = await serve(access="tokens")
        async with server.client(headers={"authorization": f"Bearer {everything}"}) as client:
            async with following(client) as events:
                ids = [(await events.next())["id"] for _ in range(7)]
        theirs = ["order-1", "order", "order-1", "order-2"]
        starts = [{}, {"last-event-id": ids[1]}, {"last-event-id": ids[2]}, {"last-event-id": "2"}]
        async with server.client(headers={"authorization": f"Bearer {secret}"}) as client:
            for number, headers in enumerate(starts):
                async with following(client, headers=headers) as events:
                    missed = theirs[bool(headers) :]
                    assert [each["stream"] for each in await events.messages(len(missed))] == missed
                    theirs.append(f"order-3{number}")
                    for stream in (f"payment-{number}", f"orderline-{number}", theirs[-1]):
                        await log.append(stream, NewMessage("a"))
                    assert [each["stream"] for each in await events.messages(1)] == theirs[-1:]

    async def test_a_trace_by_id_tells_of_ones_own_alone(
        self, log: Milepost, scoped: httpx.AsyncClient, unscoped: httpx.AsyncClient
    ) -> None:
        found = done(await scoped.get(f"/v1/trace/{ORDER}"))
        assert [each["stream"] for each in found["messages"]] == ["order-2"]
        assert [(each["group"], each["subscription"]) for each in found["traced"]] == [("billing", "invoices")]
        assert len(done(await unscoped.get(f"/v1/trace/{ORDER}"))["traced"]) == 4
        # What is not theirs is as if it were not there.
        unknown = done(await scoped.get(f"/v1/trace/{UUID(int=99)}"))
        assert done(await scoped.get(f"/v1/trace/{PAYMENT}")) == unknown
        # The same id in a stream of theirs.
        await log.append("order-7", NewMessage("a", {}, id=PAYMENT))
        found = done(await scoped.get(f"/v1/trace/{PAYMENT}"))
        assert [each["stream"] for each in found["messages"]] == ["order-7"]

    async def test_a_trace_does_not_name_what_is_waited_for_elsewhere(self, mp: Milepost) -> None:
        neighbour = Neighbour(3, "parked", "payment-1", 1)
        scope_guard = ScopeGuard(mp, TokenScope.of(None, ["order"]))
        assert scope_guard._shown(neighbour) == Neighbour(3, "parked", None, None)
        assert scope_guard._shown(Neighbour(3, "parked", "order-1", 1)).stream == "order-1"


class TestSubscriptions:
    async def test_a_list_has_those_within(
        self, scoped: httpx.AsyncClient, app: Any, tokens: TokenStore, unscoped: httpx.AsyncClient
    ) -> None:
        async def listed(client: httpx.AsyncClient) -> set[str]:
            found = done(await client.get("/v1/subscriptions"))["subscriptions"]
            return {f"{each['group']}/{each['name']}" for each in found}

        assert await listed(scoped) == {"billing/invoices"}
        async with client_of(app, await tokens.make("group", {TokenRole.READ}, groups=["billing"])) as client:
            assert await listed(client) == {"billing/invoices", "billing/payments", "billing/widest"}
            metrics = (await client.get("/metrics")).text
            assert 'subscription="payments"' in metrics
            assert "parcels" not in metrics
        async with client_of(app, await tokens.make("category", {TokenRole.READ}, categories=["order"])) as client:
            assert await listed(client) == {"billing/invoices", "shipping/parcels"}
        assert len(await listed(unscoped)) == 4

    @pytest.mark.parametrize(
        "path",
        [
            "billing/shipping%2Fparcels",
            "billing%2Fshipping/parcels",
            "billing%2F../parcels",
            "billing/..%2Fshipping%2Fparcels",
            "billing%252F/parcels",
            "billing/%2F",
            "Billing/invoices",
            "billing%20/invoices",
        ],
    )
    async def test_no_way_of_writing_leads_out_of_the_group(
        self, log: Milepost, scoped: httpx.AsyncClient, path: str
    ) -> None:
        for method, rest, body in (("GET", "", None), ("POST", "/pause", None), ("POST", "/pull", None)):
            answer = await scoped.request(method, f"/v1/subscriptions/{path}{rest}", json=body)
            assert answer.status_code in (403, 404), (path, answer.text)
        assert {info.status for info in await log.subscriptions()} == {"running"}

    async def test_who_asks_for_one_that_is_not_there_is_told_of_no_other(
        self, scoped: httpx.AsyncClient, unscoped: httpx.AsyncClient
    ) -> None:
        for path in ("/v1/subscriptions/billing/parcel", "/v1/trace/order-1?subscription=parcels"):
            found = problem(await scoped.get(path), UNKNOWN_SUBSCRIPTION)
            assert "shipping" not in found["detail"]
            assert "widest" not in found["detail"]
        problem(await unscoped.get("/v1/subscriptions/billing/parcel"), UNKNOWN_SUBSCRIPTION, "shipping/parcels")

    async def test_what_it_selects_cannot_be_widened_in_two_steps(
        self, log: Milepost, scoped: httpx.AsyncClient
    ) -> None:
        done(await scoped.patch(IN, json={"stream": "order-1", "category": None}))
        for change in (
            {"stream": None},
            {"stream": ["order-1", "payment-1"]},
            {"category": "payment", "stream": None},
        ):
            problem(await scoped.patch(IN, json=change), FORBIDDEN)
        done(await scoped.patch(IN, json={"stream": None, "category": ["order"]}))
        settings = (await log.manage("billing/invoices").info()).settings
        assert settings is not None
        assert (settings["category"], settings["stream"]) == (["order"], None)

    async def test_what_it_selected_before_is_not_shown(
        self, log: Milepost, scoped: httpx.AsyncClient, unscoped: httpx.AsyncClient
    ) -> None:
        for address in (OUT, WIDE):
            group, name = address.split("/")[-2:]
            pulled = await log.pull(f"{group}/{name}", limit=100)
            await log.settle(park=pulled, reason="no")
        await log.manage("billing/widest").update(category="order")
        found = done(await scoped.get(f"{WIDE}/deliveries"))["deliveries"]
        assert {each["message"]["stream"] for each in found} == {"order", "order-1", "order-2"}
        assert len(done(await unscoped.get(f"{WIDE}/deliveries"))["deliveries"]) == 7
        await log.manage("billing/widest").retry(all=True)
        problem(await scoped.post(f"{WIDE}/pull"), FORBIDDEN, "stream 'orderline-1'")

    @pytest.mark.parametrize("path", ["/v1/subscriptions/billing/growing", "/v1/subscriptions"])
    async def test_what_is_shown_is_checked_after_it_was_read(
        self, log: Milepost, scoped: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        """Another program changes what a subscription selects after the request was admitted."""
        await log.create_subscription("billing/growing", category="order")
        assert "growing" in (await scoped.get(path)).text
        changed = log.manage("billing/growing")

        def changed_before(read: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def change_and_read(*arguments: Any) -> Any:
                await changed.update(category=["order", "payment"])
                return await read(*arguments)

            return change_and_read

        monkeypatch.setattr(SubscriptionOverview, "one", changed_before(SubscriptionOverview.one))
        monkeypatch.setattr(SubscriptionOverview, "all", changed_before(SubscriptionOverview.all))
        answer = await scoped.get(path)
        assert not re.search("payment|growing.*category", answer.text)

    @pytest.mark.parametrize(
        ("method", "path", "body"),
        [
            ("POST", "/billing/growing/pause", None),
            ("POST", "/billing/growing/resume", None),
            ("PATCH", "/billing/growing", {"timeout": 7}),
            ("POST", "", {"group": "billing", "name": "growing", "category": "order", "if_exists": "ignore"}),
        ],
    )
    async def test_what_a_change_answers_is_checked_too(
        self,
        log: Milepost,
        scoped: httpx.AsyncClient,
        monkeypatch: pytest.MonkeyPatch,
        method: str,
        path: str,
        body: dict[str, Any] | None,
    ) -> None:
        """A pause waits for a minute: what is said of the subscription then is not what was admitted."""
        await log.create_subscription("billing/growing", category="order")
        changed, read = log.manage("billing/growing"), SubscriptionOverview.one

        async def change_and_read(*arguments: Any) -> Any:
            await changed.update(category=["order", "payment"])
            return await read(*arguments)

        assert (await scoped.request(method, f"/v1/subscriptions{path}", json=body)).status_code == 200
        monkeypatch.setattr(SubscriptionOverview, "one", change_and_read)
        answer = await scoped.request(method, f"/v1/subscriptions{path}", json=body)
        problem(answer, FORBIDDEN)
        assert "payment" not in answer.text

    async def test_where_progress_is_not_known_nothing_is_within(self, database_url: str, schema: str) -> None:
        async with Milepost(database_url, schema=schema, progress=MemoryProgress()) as mp:
            scope_guard = ScopeGuard(mp, TokenScope.of(["billing"], ["order"]))
            assert not (await scope_guard.visible_subscriptions())("billing", "invoices")
            with pytest.raises(UnknownSubscription):
                await scope_guard.check_subscription("billing", "invoices")


class TestConsumers:
    async def test_whoever_connects_needs_its_subscription_within(
        self, log: Milepost, serve: Serve, tokens: TokenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registry, "TOKEN_CHECK_SECONDS", 0.05)
        server = await serve(access="tokens")
        secret = await tokens.make("scoped", {TokenRole.CONSUME}, groups=["billing"], categories=["order"])
        headers = {"authorization": f"Bearer {secret}"}
        for name, category in (("taken", "order"), ("all", None), ("others", "payment")):
            await log.create_subscription(f"billing/{name}", category=category)
        await log.create_subscription("shipping/taken", category="order")
        for address, status in (
            ("billing/all", 403),
            ("billing/others", 403),
            ("shipping/taken", 403),
            ("billing/nothing", 404),
            ("billing/shipping%2Ftaken", 404),
            ("billing%2Fshipping/taken", 403),
        ):
            with pytest.raises(InvalidStatus) as refused:
                async with talking(server.address, address, additional_headers=headers):
                    pass
            assert refused.value.response.status_code == status, address
        async with talking(server.address, "billing/taken", additional_headers=headers) as talk:
            await talk.hello()
            streams = [each["message"]["stream"] for each in await talk.take(4)]
            assert streams == ["order-1", "order", "order-1", "order-2"]
            # It selects more from now on: nothing of that is sent, and the connection ends.
            await log.manage("billing/taken").update(category=["order", "payment"])
            await talk.ended("access", 1008)


class TestMaking:
    async def test_names(self, tokens: TokenStore) -> None:
        for groups, categories, words in (
            ([], None, "groups: must be 1 to 100 names, got 0"),
            (None, [str(number) for number in range(MAX_SCOPE_NAMES + 1)], "must be 1 to 100 names, got 101"),
            (["a/b"], None, "group: 'a/b': a name without / is wanted"),
            ([""], None, "group: ''"),
            (None, ["order-1"], "category: 'order-1': a category ends before the first dash"),
            (None, [""], "category: it is empty"),
            (None, ["-"], "category: '-'"),
            (None, ["a\0"], "category"),
        ):
            with pytest.raises(InvalidMessage) as refused:
                await tokens.make("x", {TokenRole.READ}, groups=groups, categories=categories)
            assert words in str(refused.value)
        assert await tokens.all() == []
        await tokens.make("x", {TokenRole.READ}, groups=["b", "a"], categories=["c"])
        [only] = await tokens.all()
        assert (only.groups, only.categories) == (("a", "b"), ("c",))

    def test_a_selection_is_within_if_one_of_its_kinds_is(self) -> None:
        scope = TokenScope.of(None, ["order", "payment"])
        for categories, streams, within in (
            (None, None, False),
            (["order"], None, True),
            (["order", "payment"], None, True),
            (["order", "orderline"], None, False),
            (None, ["order-1", "payment"], True),
            (None, ["order-1", "orderline-1"], False),
            (["order", "orderline"], ["order-1", "orderline-1"], False),
            (["order"], ["orderline-1", "order-1"], True),
            (["order", "orderline"], ["order-1"], True),
        ):
            assert scope.has_selection(categories, streams) is within, (categories, streams)
