"""Hostile input in every field: it is refused or stored as what it is, and never a fault of the server."""

import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from milepost import Milepost
from milepost.server.problems import FILTER, INVALID, URL_TOO_LONG
from server.answers import done, problem, refused

TEXTS = {
    "SQL": "'; drop table messages; --",
    "SQL with a dollar": "$$; drop schema milepost cascade; $$",
    "SQL in an identifier": 'a"."b',
    "percent signs": "%s %(name)s %% {} {0}",
    "a header": "x\r\nSet-Cookie: owned=1\r\n\r\n<html>",
    "a line break": "a\nb",
    "HTML": "<script>alert(1)</script>",
    "a path": "../../etc/passwd",
    "slashes": "a/b//c/",
    "encoded slashes": "a%2Fb%252Fc",
    "dots": "...",
    "a question": "a?b=c&d#e",
    "quotes": "\"'`\\",
    "other scripts": "заказ-注文-طلب-🛒",
    "combining characters": "e\u0301\u0323",
    "right to left": "\u202egnp.exe",
    "the last code point": "\U0010ffff",
    "control characters": "\x01\x1f\x7f",
    "a format of Python": "{mp.settings}",
    "a template": "{{7*7}}${7*7}",
    "LIKE": "%_\\",
    "512 bytes": "a" * 512,
}
SURROGATE = '"\\ud800"'
UNSTORABLE = {
    "NUL": "a\0b",
    "empty": "",
    "513 bytes": "a" * 513,
    "very long": "ä" * 5_000,
}


FAST = {
    *("SQL", "SQL in an identifier", "percent signs", "a header", "encoded slashes", "a question"),
    *("other scripts", "control characters", "512 bytes"),
}
"""The other texts are in a shard of their own."""


def _text(name: str) -> Any:
    return pytest.param(TEXTS[name], id=name, marks=[] if name in FAST else pytest.mark.shard("hostile"))


@pytest.fixture(params=map(_text, TEXTS))
def text(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


class TestStored:
    """What can be stored comes back as it is."""

    @pytest.mark.shard("hostile", fast=["SQL", "a header", "512 bytes"])
    async def test_in_a_message(self, mp: Milepost, client: httpx.AsyncClient, text: str) -> None:
        stream = f"order-{text}"[:512]
        body = {
            "type": text.translate({ord(">"): "<", ord("*"): "+"}),
            "data": {text: [text]},
            "properties": {"p": text},
            "metadata": {text: text, "correlation_id": text},
        }
        path = f"/v1/streams/{quote(stream, safe='')}"
        assert done(await client.post(path, json=body))["stream"] == stream
        [found] = done(await client.get(path))["messages"]
        assert {name: found[name] for name in body} == body
        assert found["stream"] == stream
        assert done(await client.get(f"{path}/last")) == {"stream": stream, "version": 1}
        for params in ({"stream": stream}, {"category": "order"}):
            [again] = done(await client.get("/v1/messages", params=params))["messages"]
            assert again == found
        where = f"p == {json.dumps(text, ensure_ascii=False)}"
        if not any(c in text for c in "\r\n\x01\x1f\x7f"):
            [again] = done(await client.get("/v1/messages", params={"where": where}))["messages"]
            assert again == found

    @pytest.mark.shard("hostile", fast=["SQL", "percent signs", "other scripts"])
    async def test_in_the_names_of_subscriptions(self, mp: Milepost, client: httpx.AsyncClient, text: str) -> None:
        answer = await client.post("/v1/subscriptions", json={"name": text})
        if "/" in text:
            problem(answer, INVALID, "without /")
            return
        assert done(answer)["name"] == text
        path = f"/v1/subscriptions/default/{quote(text, safe='')}"
        assert done(await client.get(path))["name"] == text
        assert done(await client.post(f"{path}/pause"))["status"] == "paused"
        assert done(await client.get(f"{path}/deliveries"))["deliveries"] == []
        metrics = (await client.get("/metrics")).text
        assert sum(line.startswith("milepost_lag_positions{") for line in metrics.splitlines()) == 1
        assert (await client.delete(path)).status_code == 204

    @pytest.mark.shard("hostile", fast=["SQL", "encoded slashes", "control characters"])
    async def test_in_what_is_looked_for(self, mp: Milepost, client: httpx.AsyncClient, text: str) -> None:
        await mp.create_subscription("shipping")
        base = "/v1/subscriptions/default/shipping"
        for params in ({"key": text}, {"reason": text}):
            assert done(await client.get(f"{base}/deliveries", params=params))["deliveries"] == []
        body = {"all": True, "reason": text}
        assert done(await client.post(f"{base}/deliveries/retry", json=body))["moved"] == 0
        for path in (
            f"/v1/subscriptions/{quote(text, safe='')}/shipping",
            f"/v1/trace/order-1?subscription={quote(text, safe='')}",
            f"/v1/trace/order-1?group={quote(text, safe='')}",
        ):
            answer = await client.get(path)
            assert refused(answer)["type"] == "/problems/unknown-subscription"
            assert not answer.headers.get("set-cookie")
        assert done(await client.get("/v1/subscriptions", params={"group": text})) == {"subscriptions": []}


class TestRefused:
    """What cannot be stored is refused, with the field."""

    @pytest.mark.parametrize("value", UNSTORABLE.values(), ids=UNSTORABLE.keys())
    async def test_names(self, client: httpx.AsyncClient, value: str) -> None:
        refused(await client.post("/v1/streams", json=[{"stream": value, "messages": [{"type": "a"}]}]))
        refused(await client.post("/v1/streams/a-1", json={"type": value}))
        refused(await client.post("/v1/streams/a-1", json={"type": "a", "properties": {value: 1}}))
        refused(await client.post("/v1/streams/a-1", json={"type": "a", "id": value}))
        refused(await client.post("/v1/settle", json={"ack": ["1-1-" + "0" * 32], "id": value}))
        refused(await client.post("/v1/subscriptions", json={"name": value}))
        assert (
            refused(await client.post("/v1/subscriptions", json={"name": "a", "group": value}))["field"] == "group"
        )
        refused(await client.post("/v1/subscriptions", json={"name": "a", "ordered_by": {"property": value}}))
        for field in ("category", "stream", "types"):
            refused(await client.post("/v1/subscriptions", json={"name": "a", field: value}))
            refused(await client.get("/v1/messages", params={field: value}))

    @pytest.mark.parametrize("value", ["a\0b", "\0"])
    async def test_nul(self, mp: Milepost, client: httpx.AsyncClient, value: str) -> None:
        await mp.create_subscription("shipping")
        base = "/v1/subscriptions/default/shipping"
        for body in (
            {"data": value},
            {"data": {value: 1}},
            {"properties": {"p": value}},
            {"metadata": {"m": value}},
        ):
            problem(await client.post("/v1/streams/a-1", json={"type": "a", **body}), INVALID)
        for params in ({"key": value}, {"reason": value}, {"state": value}):
            problem(await client.get(f"{base}/deliveries", params=params), INVALID, "NUL")
        for action in ("retry", "skip"):
            meant = {"all": True, "reason": value}
            problem(await client.post(f"{base}/deliveries/{action}", json=meant), INVALID, "NUL")
        for path in (
            f"/v1/streams/{quote(value)}",
            f"/v1/trace/{quote(value)}",
            f"/v1/subscriptions/{quote(value)}/a",
        ):
            problem(await client.get(path), INVALID, "NUL")
        order = {"name": "a", "ordered_by": {"property": value}}
        problem(await client.post("/v1/subscriptions", json=order), INVALID)

    @pytest.mark.parametrize(
        "path", ["/v1/streams/%ff", "/v1/messages?types=%ff", "/v1/messages?%ff=1", "/%c3%28"]
    )
    async def test_what_is_not_utf8_in_an_address(self, client: httpx.AsyncClient, path: str) -> None:
        problem(await client.get(path), INVALID, "UTF-8")

    @pytest.mark.shard(
        "hostile",
        fast=[
            "\\xff",
            '{"type": "a", "data": "\\ud800"}',
            "\\xef\\xbb\\xbf{}",
            "[null]",
            "{'type': 'a'}",
            '{"type": "a", "data": NaN}',
            '{"type": "a", "data": 1e999999999}',
            '{"type": "a", "properties": {"p": 99999999999999999999}}',
        ],
    )
    @pytest.mark.parametrize(
        "content",
        [
            b"\xff",
            b'{"type": "\xff"}',
            b'{"type": "a", "data": "\xff"}',
            b'{"type": "a", "data": "\\ud800"}',
            b'{"type": "\\ud800"}',
            b'{"type": "a", "properties": {"p": "\\udfff"}}',
            b"\xff\xfe{\x00}\x00",
            b"\xef\xbb\xbf{}",
            b"",
            b"null",
            b"[null]",
            b'{"type": "a"',
            b'{"type": "a"} {"type": "b"}',
            b"{'type': 'a'}",
            b'{"type": "a", "data": NaN}',
            b'{"type": "a", "data": -Infinity}',
            b'{"type": "a", "data": 1e400}',
            b'{"type": "a", "data": 1e999999999}',
            b'{"type": "a", "data": 0x10}',
            b'{"type": "a", "properties": {"p": 1e3}}',
            b'{"type": "a", "properties": {"p": 99999999999999999999}}',
            b'{"type": "a", "properties": {"p": null}}',
            b'{"type": "a", "properties": {"p": {}}}',
            b'{"type": "a", "data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"type": "a", "metadata": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
            b"[" * 1_000_000,
        ],
    )
    async def test_bodies(self, mp: Milepost, client: httpx.AsyncClient, content: bytes) -> None:
        headers = {"content-type": "application/json"}
        for path in ("/v1/streams/a-1", "/v1/streams", "/v1/subscriptions", "/v1/filter/check"):
            refused(await client.post(path, content=content, headers=headers))
        assert await mp.head() == 0

    @pytest.mark.parametrize("digits", [20, 400, 5000])
    async def test_huge_numbers(self, client: httpx.AsyncClient, digits: int) -> None:
        number = "9" * digits
        for path in (
            f"/v1/messages?after={number}",
            f"/v1/messages?limit={number}",
            f"/v1/streams/a-1?after_version={number}",
            f"/v1/follow?after={number}",
            f"/v1/subscriptions/a/b/caught-up?position={number}",
            f"/v1/subscriptions/a/b/caught-up?position=1&timeout={number}",
            f"/v1/subscriptions/a/b/move?to={number}",
            f"/v1/trace/a-1?before_version={number}",
        ):
            refused(await client.get(path))
        refused(await client.get("/v1/follow", headers={"last-event-id": number}))
        headers = {"content-type": "application/json"}
        for path, body in (
            ("/v1/subscriptions", f'{{"name": "a", "window": {number}}}'),
            ("/v1/subscriptions", f'{{"name": "a", "timeout": {number}}}'),
            ("/v1/subscriptions", f'{{"name": "a", "start": {number}}}'),
            ("/v1/subscriptions/a/b/move", f'{{"to": {number}}}'),
            ("/v1/subscriptions/a/b/deliveries/skip", f'{{"positions": [{number}]}}'),
            ("/v1/streams", f'[{{"stream": "a-1", "messages": [{{"type": "a"}}], "expected": {number}}}]'),
            ("/v1/filter/check", f'{{"where": "x > {number}"}}'),
        ):
            refused(await client.post(path, content=body, headers=headers))
        refused(await client.post(f"/v1/streams/a-1?expected={number}", json={"type": "a"}))

    @pytest.mark.parametrize("number", ["nan", "inf", "-inf", "-1", "1e400", "0x10", "\uff11", " ", "1;drop"])
    async def test_numbers_that_are_none(self, client: httpx.AsyncClient, number: str) -> None:
        for name in ("after", "limit"):
            refused(await client.get("/v1/messages", params={name: number}))
        refused(await client.post("/v1/subscriptions/a/b/pause", params={"timeout": number}))
        refused(await client.get("/v1/follow", headers={b"last-event-id": number.encode()}))

    async def test_filters(self, client: httpx.AsyncClient) -> None:
        deep = "(" * 10_000 + "a" + ")" * 10_000
        for where in (deep, "!" * 10_000 + "a", "a" * 5000, "a == 1 " + "&& a == 1" * 1000, '"', "\0", "a == '1'"):
            answer = await client.post("/v1/filter/check", json={"where": where})
            assert problem(answer, FILTER)["kind"] in ("syntax", "too_long", "too_complex")
            problem(await client.post("/v1/subscriptions", json={"name": "a", "where": where}), FILTER)
            body = {"where": where, "properties": {"a": 1}}
            problem(await client.post("/v1/filter/explain", json=body), FILTER)

    async def test_long_addresses(self, client: httpx.AsyncClient) -> None:
        for path in (f"/{'x' * 40_000}", f"/v1/messages?where={'x' * 40_000}", f"/v1/streams/{'%2F' * 12_000}"):
            problem(await client.get(path), URL_TOO_LONG)

    async def test_many_parameters(self, client: httpx.AsyncClient) -> None:
        query = "&".join(f"types=t{number}" for number in range(1001))
        refused(await client.get(f"/v1/messages?{query}"))
        refused(await client.get("/v1/messages?" + "&" * 10_000 + "x"))


async def test_names_with_slashes_and_percent_signs_are_told_apart(
    mp: Milepost, client: httpx.AsyncClient
) -> None:
    names = ["a-/", "a-%2F", "a-%252F", "a-//", "a-%", "a-+", "a- ", "a-;", "a-?x=1", "a-#x", "a-.", "a-/../b"]
    for number, name in enumerate(names):
        appended = done(
            await client.post(f"/v1/streams/{quote(name, safe='')}", json={"type": "a", "data": number})
        )
        assert appended["stream"] == name
    for number, name in enumerate(names):
        page: Any = done(await client.get(f"/v1/streams/{quote(name, safe='')}"))
        assert [message["data"] for message in page["messages"]] == [number]
