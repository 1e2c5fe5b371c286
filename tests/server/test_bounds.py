"""Each limit in the table of the guide: what is just within it is taken, and what is just beyond it is refused."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest

from milepost import Milepost
from milepost.client.problems import MAX_PROBLEM_BYTES
from milepost.console import Console
from milepost.console.guard import MAX_FORM_FIELDS
from milepost.engine.pull.settle import MAX_SETTLED_DELIVERIES as MOST_SETTLED
from milepost.filter.filter import MAX_BYTES
from milepost.filter.parser import MAX_LEVELS, MAX_OPERATORS
from milepost.log.append import MAX_APPEND_MESSAGES
from milepost.log.query import MAX_CHOICES, MAX_PATTERN_CHARACTERS
from milepost.names import MAX_NAME_BYTES, MAX_PROPERTIES
from milepost.server import Limits, create_app, problems, process
from milepost.server import follow as http_following
from milepost.server.access.tokens import MAX_SECRET_CHARACTERS as LONGEST_TOKEN
from milepost.server.http import protocols as websocket
from milepost.server.http.body import UNQUEUED_WORK_BYTES
from milepost.server.limits import MAX_PAGE_ITEMS, MAX_WAIT_SECONDS, PAGE_BYTES
from milepost.server.problems import ProblemKind
from milepost.server.websocket import frames as incoming
from milepost.server.websocket import session
from milepost.wire.deliveries import MAX_DECIDED_DELIVERIES, MAX_STATES
from server.answers import problem
from server.websocket.conftest import Serve
from server.websocket.talking import talking

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guides/server.md").read_text()
SECTION = GUIDE.split("\n## Limits\n")[1].split("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line[:1] == "|"]
TABLE = {row[0]: row[1:] for row in ROWS[2:]}
JSON = {"content-type": "application/json"}


class Arena:
    """Servers with whatever limits a trial wants."""

    def __init__(self, mp: Milepost, serve: Serve) -> None:
        self.mp = mp
        self.serve = serve

    @asynccontextmanager
    async def client(self, *, access: Any = "local", **limits: Any) -> AsyncIterator[httpx.AsyncClient]:
        """A client of one, without a network between them."""
        app = create_app(self.mp, access=access, limits=Limits(**limits), pages=Console)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client


Trial = Callable[[Arena], Awaitable[None]]


def asking(
    kind: ProblemKind,
    within: Any,
    beyond: Any,
    *,
    path: str = "/v1/streams/a-1",
    method: str = "POST",
    **limits: Any,
) -> Trial:
    """A trial of two bodies: bytes, or what becomes JSON."""

    async def trial(arena: Arena) -> None:
        await arena.mp.create_subscription("shipping", if_exists="ignore")
        async with arena.client(**limits) as client:
            for body in (beyond, within):
                content = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
                answer = await client.request(method, path, content=content, headers=JSON)
                if body is beyond:
                    problem(answer, kind)
                else:
                    assert answer.status_code == 200, answer.text

    return trial


def looking(kind: ProblemKind, within: str, beyond: str, **limits: Any) -> Trial:
    """A trial of two addresses."""

    async def trial(arena: Arena) -> None:
        async with arena.client(**limits) as client:
            problem(await client.get(beyond), kind)
            answer = await client.get(within)
            assert answer.status_code == 200, answer.text

    return trial


def sending(kind: ProblemKind, within: bytes, beyond: bytes, *, access: str = "local", **limits: Any) -> Trial:
    """A trial of two forms; one that is read is refused for being of no page."""

    async def trial(arena: Arena) -> None:
        form = {"content-type": "application/x-www-form-urlencoded", "accept": "text/html"}
        path = "/console/login" if access == "tokens" else "/console/log/append"
        async with arena.client(access=access, **limits) as client:
            assert (await client.post(path, content=beyond, headers=form)).status_code == kind.status
            assert (await client.post(path, content=within, headers=form)).status_code == 403

    return trial


def padded(body: object, size: int) -> bytes:
    return json.dumps(body).encode().ljust(size)


def nested(depth: int) -> dict[str, Any]:
    data: Any = 1
    for _ in range(depth):
        data = [data]
    return {"type": "a", "data": data}


def message(size: int) -> dict[str, Any]:
    return {"type": "a", "data": "x" * (size - 2 * len('""') - len("{}{}") + 2)}


def where(text: str) -> dict[str, str]:
    return {"where": text}


def positions(count: int) -> dict[str, Any]:
    return {"positions": list(range(1, count + 1))}


async def filters(arena: Arena) -> None:
    check = "/v1/filter/check"
    deep = "(" * MAX_LEVELS + "a" + ")" * MAX_LEVELS
    for within, beyond in (
        (f'a == "{"x" * (MAX_BYTES - 7)}"', f'a == "{"x" * (MAX_BYTES - 6)}"'),
        ("!a || " * (MAX_OPERATORS // 2) + "a", "!a || " * (MAX_OPERATORS // 2) + "!a"),
        (deep, f"({deep})"),
    ):
        await asking(problems.FILTER, where(within), where(beyond), path=check)(arena)


async def choices(arena: Arena) -> None:
    def choosing(count: int) -> str:
        return "/v1/messages?" + "&".join(f"category=c{number}" for number in range(count))

    def patterns(count: int) -> str:
        return "/v1/messages?" + "&".join(f"types=*.{number:03}" for number in range(count))

    await looking(problems.TOO_LARGE, choosing(MAX_CHOICES), choosing(MAX_CHOICES + 1))(arena)
    most = (MAX_PATTERN_CHARACTERS - len("^(?:)$") + 1) // len("[^.]+\\.000|")
    await looking(problems.TOO_LARGE, patterns(most), patterns(most + 1))(arena)


async def containers(arena: Arena) -> None:
    def having(count: int) -> dict[str, Any]:
        return {"type": "a", "data": [[]] * (count - 1)}

    await asking(problems.TOO_LARGE, having(5), having(6), containers=5)(arena)
    checked = {"where": "a", "properties": {}}
    await asking(problems.TOO_LARGE, checked, [checked], path="/v1/filter/explain", containers=2)(arena)


async def tokens(arena: Arena) -> None:
    """None that is so long was ever made, so that both are refused: the longer one without a look."""
    async with arena.client(access="tokens") as client:
        for length in (LONGEST_TOKEN, LONGEST_TOKEN + 1):
            answer = await client.get("/v1/head", headers={"authorization": f"Bearer {'x' * length}"})
            problem(answer, problems.UNAUTHENTICATED)


async def waiting(arena: Arena) -> None:
    path = "/v1/subscriptions/default/jobs"
    await arena.mp.create_subscription("jobs", tracking="all")
    async with arena.client() as client:
        for name in ("pause", "resume"):
            answer = await client.post(f"{path}/{name}", params={"timeout": MAX_WAIT_SECONDS})
            assert answer.status_code == 200 or name == "resume"
        problem(await client.post(f"{path}/pause", params={"timeout": MAX_WAIT_SECONDS + 1}), problems.INVALID)
        problem(await client.post(f"{path}/pull", params={"wait": MAX_WAIT_SECONDS + 1}), problems.INVALID)


async def lists(arena: Arena) -> None:
    await arena.mp.create_subscription("shipping")
    server = await arena.serve()
    async with talking(server.address) as talk:
        await talk.hello()
        await talk.say("settle", ref=1, ack=[1] * incoming.MAX_DELIVERIES_PER_LIST)
        assert len((await talk.expect("settled", ref=1))["refused"]) == incoming.MAX_DELIVERIES_PER_LIST
        await talk.say("settle", ref=2, ack=[1] * (incoming.MAX_DELIVERIES_PER_LIST + 1))
        await talk.expect("problem", ref=2)


async def coming_back(arena: Arena) -> None:
    await arena.mp.create_subscription("shipping")
    server = await arena.serve()
    async with talking(server.address) as talk:
        await talk.say("hello", open=[1] * incoming.MAX_OPEN_DELIVERIES)
        await talk.expect("welcome")
    async with talking(server.address) as talk:
        await talk.say("hello", open=[1] * (incoming.MAX_OPEN_DELIVERIES + 1))
        await talk.expect("problem")
        await talk.ended("refused", 4005)


async def routes(arena: Arena) -> None:
    await arena.mp.create_subscription("shipping")
    server = await arena.serve()
    filter_ = 'a == "{}"'
    long = filter_.format("x" * 4000)
    fitting = incoming.MAX_FILTER_CHARACTERS // len(long)
    async with talking(server.address) as talk:
        await talk.hello(routes=[{"where": "a"}] * incoming.MAX_CONSUMER_ROUTES)
        await talk.say("configure", ref=1, routes=[{"where": "a"}] * (incoming.MAX_CONSUMER_ROUTES + 1))
        await talk.expect("problem", ref=1)
        await talk.say("configure", ref=2, routes=[{"where": long}] * fitting)
        await talk.expect("done", ref=2)
        await talk.say("configure", ref=3, routes=[{"where": long}] * (fitting + 1))
        assert (await talk.expect("problem", ref=3))["problem"]["type"] == "/problems/too-large"


async def frames(arena: Arena) -> None:
    await arena.mp.create_subscription("shipping")
    server = await arena.serve(frame_bytes=1000)
    hello = json.dumps({"type": "hello"})
    async with talking(server.address) as talk:
        await talk.connection.send(hello.ljust(1000))
        await talk.expect("welcome")
        await talk.connection.send(hello.ljust(1001))
        await talk.closed()


TRIALS: dict[str, Trial] = {
    "a body of an append, or of settlements": asking(
        problems.TOO_LARGE, padded({"type": "a"}, 1000), padded({"type": "a"}, 1001), body_bytes=1000
    ),
    "any other body": asking(
        problems.TOO_LARGE,
        padded(where("a"), 1000),
        padded(where("a"), 1001),
        path="/v1/filter/check",
        request_bytes=1000,
    ),
    "messages of an append, to all of its streams together": asking(
        problems.TOO_LARGE,
        [
            {"stream": f"a-{number}", "messages": [{"type": "a"}] * 100}
            for number in range(MAX_APPEND_MESSAGES // 100)
        ],
        [
            {"stream": f"a-{number}", "messages": [{"type": "a"}] * 101}
            for number in range(MAX_APPEND_MESSAGES // 100)
        ],
        path="/v1/streams",
    ),
    "a message": asking(problems.TOO_LARGE, message(2**20), message(2**20 + 1)),
    "arrays and objects of a message, or of a body without messages; brackets in texts count": containers,
    "arrays and objects of all messages of an append": asking(
        problems.TOO_LARGE, [{"type": "a"}] * 15, [{"type": "a"}] * 16, containers=1
    ),
    "texts of a body without messages": asking(
        problems.TOO_LARGE, where("a"), {**where("a"), "b": 1}, path="/v1/filter/check", texts=2
    ),
    "arrays and objects of a message that are in each other": asking(problems.INVALID, nested(500), nested(501)),
    "properties of a message": asking(
        problems.TOO_LARGE,
        {"type": "a", "properties": {f"p{number}": 1 for number in range(MAX_PROPERTIES)}},
        {"type": "a", "properties": {f"p{number}": 1 for number in range(MAX_PROPERTIES + 1)}},
    ),
    "a name of a stream, a type or a property": asking(
        problems.TOO_LARGE, {"type": "a" * MAX_NAME_BYTES}, {"type": "a" * (MAX_NAME_BYTES + 1)}
    ),
    "deliveries of a settlement": asking(
        problems.TOO_LARGE, {"ack": ["x"] * MOST_SETTLED}, {"ack": ["x"] * (MOST_SETTLED + 1)}, path="/v1/settle"
    ),
    "deliveries to retry or to skip at once": asking(
        problems.INVALID,
        positions(MAX_DECIDED_DELIVERIES),
        positions(MAX_DECIDED_DELIVERIES + 1),
        path="/v1/subscriptions/default/shipping/deliveries/retry",
    ),
    "states, of deliveries to retry or to skip": asking(
        problems.INVALID,
        {"all": True, "state": ["parked"] * MAX_STATES},
        {"all": True, "state": ["parked"] * (MAX_STATES + 1)},
        path="/v1/subscriptions/default/shipping/deliveries/retry",
    ),
    "categories, streams or types to choose from": choices,
    "a filter": filters,
    "an address, with its parameters": looking(
        problems.URL_TOO_LONG, f"/healthz?{'&' * (100 - 8)}", f"/healthz?{'&' * (101 - 8)}", url_bytes=100
    ),
    "a token": tokens,
    "a form of the console": sending(problems.TOO_LARGE, b"a" * 1000, b"a" * 1001, form_bytes=1000),
    "a form of somebody who has not logged in": sending(
        problems.TOO_LARGE, b"a" * 1000, b"a" * 1001, access="tokens", stranger_bytes=1000
    ),
    "fields of a form": sending(
        problems.INVALID, b"a=&" * (MAX_FORM_FIELDS - 1) + b"a=", b"a=&" * MAX_FORM_FIELDS + b"a="
    ),
    "a frame of a consumer": frames,
    "deliveries in each list of a frame": lists,
    "deliveries that a client says it still has, when it comes back": coming_back,
    "routes of a consumer": routes,
    "messages of an answer": looking(
        problems.INVALID, f"/v1/messages?limit={MAX_PAGE_ITEMS}", f"/v1/messages?limit={MAX_PAGE_ITEMS + 1}"
    ),
    "the time for which a request may wait (`wait`, `timeout`)": waiting,
}
ELSEWHERE = {
    "all bodies that are arriving, together": ("server/test_limits.py", "test_all_of_them_together"),
    "the time until a body has arrived": ("server/test_limits.py", "test_one_that_never_ends"),
    "the time until a form of somebody who has not logged in has arrived": (
        "server/test_limits.py",
        "test_a_form_of_a_stranger_that_never_ends",
    ),
    "the time for the rest of a body that was refused": (
        "server/test_limits.py",
        "test_nobody_is_asked_for_what_will_be_refused",
    ),
    "address and headers": ("server/test_limits.py", "test_too_large"),
    "trailers of a body, and what else comes between two of its pieces": (
        "server/test_limits.py",
        "test_too_much_of_it",
    ),
    "the time until address and headers have arrived; until TLS has begun": (
        "server/test_limits.py",
        "test_a_byte_now_and_then",
    ),
    "requests of a connection that wait for the answer to one before them": (
        "server/test_limits.py",
        "test_many_requests_that_do_not_wait_for_answers",
    ),
    "connections": ("server/test_limits.py", "test_too_many_connections"),
    "of those, followers": ("server/test_follow.py", "test_no_more_than_there_may_be"),
    "what is read for a follower before its client takes it": (
        "server/test_follow.py",
        "test_who_never_reads_holds_little",
    ),
    "of those, consumers": ("server/websocket/test_ends.py", "test_too_many_connections"),
    "all of those that are arriving, together": (
        "console/test_in_process.py",
        "test_a_slow_form_of_a_stranger_gives_way",
    ),
    "pieces of a frame": ("server/websocket/test_hostile.py", "test_too_many_fragments"),
    "frames that are wrong": ("server/websocket/test_hostile.py", "test_too_many_wrong_frames"),
    "the time until a consumer says hello": ("server/websocket/test_ends.py", "test_no_hello_in_time"),
    "the time for which a read looks for messages": ("server/test_read.py", "test_a_read_that_takes_too_long"),
    "the time for which nobody takes an answer, or a delivery": (
        "server/test_follow.py",
        "test_who_never_reads_is_left",
    ),
    "all answers that wait to be taken, together": (
        "server/test_limits.py",
        "test_answers_that_nobody_takes_are_bounded_together",
    ),
    "the time for which a consumer does not answer pings": (
        "server/websocket/test_hostile.py",
        "test_whoever_is_silent_is_given_up",
    ),
}
"""Limits in seconds, and of connections: files of tests, and the tests that try them."""
NUMBERS: dict[str, list[float]] = {
    "messages of an append, to all of its streams together": [MAX_APPEND_MESSAGES],
    "properties of a message": [MAX_PROPERTIES],
    "a name of a stream, a type or a property": [MAX_NAME_BYTES],
    "deliveries of a settlement": [MOST_SETTLED],
    "deliveries to retry or to skip at once": [MAX_DECIDED_DELIVERIES],
    "states, of deliveries to retry or to skip": [MAX_STATES],
    "categories, streams or types to choose from": [MAX_CHOICES, MAX_PATTERN_CHARACTERS],
    "a filter": [MAX_BYTES, MAX_OPERATORS, MAX_LEVELS],
    "a token": [LONGEST_TOKEN],
    "fields of a form": [MAX_FORM_FIELDS],
    "pieces of a frame": [websocket.MAX_FRAGMENTS],
    "deliveries in each list of a frame": [incoming.MAX_DELIVERIES_PER_LIST],
    "deliveries that a client says it still has, when it comes back": [incoming.MAX_OPEN_DELIVERIES],
    "routes of a consumer": [incoming.MAX_CONSUMER_ROUTES, incoming.MAX_FILTER_CHARACTERS],
    "frames that are wrong": [session.MAX_WRONG_FRAMES],
    "the time until a consumer says hello": [session.HELLO_TIMEOUT_SECONDS],
    "messages of an answer": [MAX_PAGE_ITEMS, PAGE_BYTES >> 20],
    "what is read for a follower before its client takes it": [
        http_following.PAGE_MESSAGES,
        http_following.PAGE_BYTES >> 10,
    ],
    "the time for which a request may wait (`wait`, `timeout`)": [MAX_WAIT_SECONDS],
    "the time for which a consumer does not answer pings": [process.PING_SECONDS, process.PING_SECONDS],
}
"""What is no field of `Limits`."""


@pytest.mark.parametrize("row", TRIALS)
async def test_just_within_and_just_beyond(mp: Milepost, serve: Serve, row: str) -> None:
    assert row in TABLE
    await TRIALS[row](Arena(mp, serve))


def test_each_limit_is_tried() -> None:
    assert TRIALS.keys() | ELSEWHERE.keys() == TABLE.keys()
    assert not TRIALS.keys() & ELSEWHERE.keys()
    for file, test in ELSEWHERE.values():
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), (file, test)


def test_the_table_has_each_limit_with_its_default() -> None:
    told = {name: row[0] for row in TABLE.values() for name in re.findall("`([a-z_]+)`", row[1])}
    assert told.keys() == {field.name for field in fields(Limits)}
    for field in fields(Limits):
        assert told[field.name].startswith(_shown(field.name, field.default)), field.name
    for name, numbers in NUMBERS.items():
        assert re.findall("[0-9][0-9,]*[0-9]|[0-9]", TABLE[name][0]) == [f"{number:,.0f}" for number in numbers], (
            name
        )
    assert f"larger\nthan {UNQUEUED_WORK_BYTES >> 10} KiB" in SECTION
    assert f"{MAX_PROBLEM_BYTES >> 10} KiB of a problem" in SECTION


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return f"{value >> 20} MiB" if value >= 2**20 else f"{value >> 10} KiB"
    return f"{value:g} s" if name.endswith("_seconds") else f"{value:,}"


def test_what_a_row_says_of_problems_is_so() -> None:
    known = {kind.slug: kind.status for kind in problems.ALL_KINDS}
    for row, (_, _, beyond) in TABLE.items():
        for status, slug in re.findall(r"([0-9]{3}) \[?`([a-z-]+)`", beyond):
            assert known[slug] == int(status), row
