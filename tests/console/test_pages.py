"""Every page and every form, without a browser: what it shows, and what it says about what was done."""

import html
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psycopg
import pytest

from milepost import Message, Milepost, NewMessage, Retry
from milepost.console import Console
from milepost.console.poller import PollPace
from milepost.server import create_app
from support import MakeMilepost

SHIPPING = "subscriptions/default/shipping"
FAILING = "parked/default/failing"

PAGES = [
    ("", "default/failing has 2 parked messages"),
    ("subscriptions", "default/failing has 2 parked messages"),
    (SHIPPING, "default/shipping"),
    ("subscriptions/default/failing", "default/failing"),
    ("parked", "default/failing"),
    (FAILING, "no customer 0"),
    (f"{FAILING}?reason=CUSTOMER+1", "no customer 1"),
    (f"{FAILING}?state=waiting", "waiting"),
    (f"{FAILING}/1", "Position 1"),
    (f"{FAILING}/1?part=1&whole=1", "Traceback"),
    ("trace", "Where is my message"),
    ("trace?q=order-1", "behind order-1 version 1"),
    ("trace?q=order-1&before_version=x", "a version is wanted, not 'x'"),
    ("trace?q=order-1&subscription=nobody", "no subscription"),
    ("log", "order.placed"),
    ("log?category=order&order=oldest", "order-0 v1"),
    ("log?after=3", "order-1"),
    ("log?before=3&type=order.*", "order-1"),
    ("log/check?where=total+%3E+1&category=order", "Matches 4 of the newest 6 messages"),
    ("log/check?where=total+%3E&category=order", "found the end"),
    ("log/check?where=regin", "None of them has regin"),
    ("log/check?where=total&stream=-x", "has no category"),
    ("log/check", ""),
    ("log/3", "order.placed"),
    ("log/3?further=1&whole=1", "order.placed"),
    ("log/streams?prefix=order", "order-1"),
    ("log/streams?prefix=nowhere", "No stream begins with that."),
    ("log/categories?prefix=or", "order"),
    ("log/types?category=order", "order.placed"),
    ("log/types?prefix=order", "order.placed"),
    ("log/append?stream=order-1&type=a", "Append a message"),
    ("log/find?message=3", "order.placed"),
    ("log/find?message=nothing", "a position such as"),
    ("log/find?message=5f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f", "No message has this id."),
    ("tokens", "No token was made yet."),
    ("filter", "Nothing to explain yet"),
    ("filter?where=total+%3E+2&message=4", "match"),
    (f"{SHIPPING}/plan/move?to=beginning", "Nothing comes again"),
    (f"{SHIPPING}/plan/move?to=now", "never handled"),
    (f"{SHIPPING}/plan/move", "say where"),
    (f"{SHIPPING}/plan/move?to=time&to-time=soon", "a time is wanted"),
    (f"{SHIPPING}/plan/move?to=time&to-time=2026-03-01T12:00", "It goes on after position"),
    ("subscriptions/default/failing/plan/move?to=position&to-position=0", "are forgotten: 2 parked"),
    ("subscriptions/default/failing/plan/replay?start=0", "marked as a replay"),
    ("subscriptions/default/failing/plan/replay?start=5&end=3", "has nothing in it"),
    (f"{SHIPPING}/plan/pause", "until somebody resumes it"),
    (f"{SHIPPING}/plan/resume", "6 positions behind"),
    (f"{SHIPPING}/plan/delete", "Its progress is forgotten"),
    ("subscriptions/default/failing/plan/delete", "6 deliveries are forgotten"),
    (f"{FAILING}/plan/retry?scope=all", "2 messages are tried now"),
    (f"{FAILING}/plan/skip?scope=positions&positions=1", "1 message is passed over"),
    (f"{FAILING}/plan/skip?scope=up_to&up_to=1", "1 message is passed over"),
    (f"{FAILING}/plan/skip?scope=all&key=nobody", "There is none of them"),
    (f"{FAILING}/plan/skip", "say which"),
]
WRONG = [
    ("log?stream=-x", 400, "has no category"),
    ("log?where=a+%3D%3D", 400, "The filter cannot be used"),
    ("log?before=soon", 400, "a position is wanted, not 'soon'"),
    ("log?type=a.b*", 400, "* and > stand for whole parts"),
    ("log/123456789", 404, "There is no message at position 123,456,789"),
    ("log/tail?where=a+%3D%3D", 400, ""),
    ("trace?q=a%00b", 400, "a NUL character cannot be stored"),
    ("log/streams?prefix=" + "x" * 600, 400, "no name has more than 512 bytes"),
    (f"{FAILING}?state=lost", 400, ""),
    (f"{FAILING}?after=-1", 400, "a position is wanted, not '-1'"),
    (f"{FAILING}/999999", 404, "Position 999999 has no delivery"),
    (f"{FAILING}/plan/dance?scope=all", 404, "There is no action 'dance'"),
    ("parked/default/unheard-of", 404, "There is no such subscription"),
    ("subscriptions/default/unheard-of", 404, "There is no such subscription"),
    (f"{SHIPPING}/plan/dance", 404, "There is no action 'dance'"),
    ("nowhere", 404, "There is no page at this address."),
    ("log/none", 404, ""),
]
FILTERS: list[tuple[dict[str, str], str]] = [
    ({"where": "a == "}, "found the end (character 5)"),
    ({"where": "a = 1 nad b"}, 'did you mean "and"?'),
    ({"where": '1 == "a"'}, "cannot be used"),
    ({"where": "a", "properties": "{"}, "Properties: this is no JSON"),
    ({"where": "a", "properties": "[1]"}, "Properties: an object is wanted"),
    ({"where": "a", "properties": '{"a": [1]}'}, "an integer, a string or a boolean is wanted"),
    ({"where": "a", "message": "9999999"}, "Message: there is no message 9999999"),
    ({"where": "a", "message": "<b>"}, "Message: a position such as 81,244 is wanted"),
    ({"where": "a == EU", "properties": '{"a": "EU"}'}, 'did you mean "EU"? Without quotes it is a property'),
    ({"where": "a" * 4097}, "4,097 bytes, more than 4,096"),
    ({"where": "a", "properties": " " * 5990 + '{"a": "12345"}'}, "over the limit of 6,000"),
    ({"where": "a > 1 && b", "properties": '{"a": 2, "b": false}'}, "no match"),
]


class Reader:
    """Asks for pages and sends forms, as a browser without scripts does."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def asks(self, path: str, **query: Any) -> tuple[int, str]:
        """The status of a page and its text, without its markup."""
        answer = await self._client.get(f"/console/{path}".rstrip("/"), params=query or None)
        return answer.status_code, text_of(answer.text)

    async def sends(self, path: str, **fields: Any) -> str:
        """What is said once a form was sent."""
        form = await self._client.get("/console/log/append")
        csrf = form.text.split('name="csrf" value="')[1].split('"')[0]
        answer = await self._client.post(f"/console/{path}", data={"csrf": csrf, **fields})
        return text_of(answer.text)


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page)).split())


@pytest.fixture
async def mp(make_mp: MakeMilepost) -> AsyncIterator[Milepost]:
    async with make_mp() as mp:
        yield mp


@pytest.fixture
async def reader(mp: Milepost) -> AsyncIterator[Reader]:
    app = create_app(mp, access="local", pages=Console)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", follow_redirects=True
    ) as client:
        yield Reader(client)


@pytest.fixture
async def shop(mp: Milepost) -> Milepost:
    """Six messages, of which a subscription of a program has parked two; others wait behind them."""

    @mp.subscription("failing", category="order", retry=Retry(attempts=1), on_park="block")
    async def fail(message: Message[Any]) -> None:
        raise ValueError(f"no customer {message.data}")

    await mp.create_subscription("shipping", category="order")
    for number in range(6):
        metadata = {"correlation_id": f"c-{number % 2}"}
        message = NewMessage("order.placed", number, properties={"total": number}, metadata=metadata)
        await mp.append(f"order-{number % 2}", message)
    await mp.run_until_idle(errors="park")
    return mp


@pytest.mark.usefixtures("shop")
async def test_every_page_is_shown(reader: Reader) -> None:
    asked = [(path, words, *await reader.asks(path)) for path, words in PAGES]
    assert [each for each in asked if each[2] != 200 or each[1] not in each[3]] == []


FRAGMENTS = ("log/check", "/plan/", "log/tail", "part=1", "%00", "nowhere", "log/none")
"""What scripts ask for, and what no page is asked about."""


@pytest.mark.usefixtures("shop")
async def test_every_page_names_who_holds_the_horizon(
    reader: Reader, mp: Milepost, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that says that something is wrong, and none any more when the transaction has ended."""
    monkeypatch.setattr("milepost.log.protocol.HOLDER_NAMED_SECONDS", 0.0)
    monkeypatch.setattr("milepost.console.poller.WATCHED_PACE", PollPace(0.0, 0, 0.0))
    known = [str(each[0]) for each in (*PAGES, *WRONG)]
    paths = [path for path in known if not any(each in path for each in FRAGMENTS)]
    connecting = psycopg.AsyncConnection.connect(database_url, application_name="<checkout>")
    async with await connecting as holder, holder.transaction():
        await mp.append("order-7", NewMessage("order.placed"), connection=holder)
        await mp.append("order-8", NewMessage("order.placed"))
        pid = holder.info.backend_pid
        said = f"held Followers wait at position 6: 2 positions are held back by pid {pid} (<checkout>), idle in "
        for path in paths:
            _, text = await reader.asks(path)
            assert said in text, path
            assert f"ago. This ends it: select pg_terminate_backend({pid})" in text
        _, shipping = await reader.asks(SHIPPING)
        assert f"held by pid {pid}" in shipping
        assert "2 held back" in shipping
    for path in ("", SHIPPING, "log", "filter"):
        assert "Followers wait" not in (await reader.asks(path))[1]


async def test_strangers_are_not_told_who_holds_the_horizon(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.log.protocol.HOLDER_NAMED_SECONDS", 0.0)
    app = create_app(mp, access="tokens", pages=Console)
    transport = httpx.ASGITransport(app)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        mp.log.database.connection() as holder,
        holder.transaction(),
    ):
        await mp.append("order-7", NewMessage("order.placed"), connection=holder)
        answer = await client.get("/console/login")
    assert (answer.status_code, "pg_terminate_backend" in answer.text) == (200, False)


@pytest.mark.usefixtures("shop")
async def test_what_cannot_be_shown_is_explained(reader: Reader) -> None:
    asked = [(path, wanted, words, *await reader.asks(path)) for path, wanted, words in WRONG]
    assert [each for each in asked if each[3] != each[1] or each[2] not in each[4]] == []


async def test_a_filter_is_explained(reader: Reader) -> None:
    for query, words in FILTERS:
        status, text = await reader.asks("filter", **query)
        assert (status, words in text) == (200, True), (query, status, words, text)


async def test_what_is_done_to_a_subscription_is_said(reader: Reader, shop: Milepost) -> None:
    said = await reader.sends("subscriptions", name="made", category="order, payment", start="now")
    assert "default/made is created: consumers may come." in said
    said = await reader.sends("subscriptions", name="held", paused="yes")
    assert "default/held is created, paused: it waits until you resume it." in said
    assert "default/made exists already" in await reader.sends("subscriptions", name="made")
    assert "a number is wanted, not 'soon'" in await reader.sends(
        "subscriptions/default/made/settings", timeout="soon"
    )
    changes = {"timeout": "45", "retry.attempts": "3", "where": "total > 1", "strategy": "pinned"}
    said = await reader.sends("subscriptions/default/made/settings", **changes)
    assert "default/made: retry, strategy, timeout, where changed" in said
    assert "Nothing was changed." in await reader.sends("subscriptions/default/made/settings", timeout="45")
    assert "default/made is paused." in await reader.sends("subscriptions/default/made/pause")
    assert "default/made goes on." in await reader.sends("subscriptions/default/made/resume")
    for action, place in (("pause", {}), ("move", {"to": "now"}), ("replay", {"start": "beginning"})):
        assert "default/made" in await reader.sends(f"subscriptions/default/made/{action}", force="yes", **place)
    assert "default/made is deleted." in await reader.sends("subscriptions/default/made/delete")
    assert "no subscription" in await reader.sends("subscriptions/default/made/pause")
    said = await reader.sends("subscriptions/default/failing/settings", concurrency="2")
    assert "At most 2 at once in a process." in said
    said = await reader.sends("subscriptions/default/failing/settings", concurrency="many")
    assert "a number is wanted, not 'many'" in said
    said = await reader.sends("subscriptions/default/failing/settings", concurrency="")
    assert "As many at once as its program says." in said
    assert "default/failing was moved; 6 deliveries were forgotten" in await reader.sends(
        "subscriptions/default/failing/move", to="beginning"
    )
    assert "a replay" in await reader.sends("subscriptions/default/failing/replay", start="5", end="3")
    assert [info.name for info in await shop.subscriptions()] == ["failing", "held", "shipping"]


async def test_a_replay_is_said(reader: Reader, mp: Milepost) -> None:
    @mp.subscription("done", category="order")
    async def handle(message: Message[Any]) -> None: ...

    await mp.append("order-1", [NewMessage("a"), NewMessage("a")])
    await mp.run_until_idle()
    said = await reader.sends("subscriptions/default/done/replay", start="beginning")
    assert "default/done: 2 positions are being repeated." in said


async def test_what_is_decided_about_messages_is_said(reader: Reader, shop: Milepost) -> None:
    assert "say which" in await reader.sends(f"{FAILING}/skip")
    assert "There is no action" in await reader.sends(f"{FAILING}/dance", scope="all")
    assert "a position is wanted" in await reader.sends(f"{FAILING}/skip", scope="positions", positions="x")
    said = await reader.sends(f"{FAILING}/skip", scope="positions", positions="1,99")
    assert "1 message is skipped. Not so 1 other: 99:" in said
    said = await reader.sends(f"{FAILING}/retry", scope="up_to", up_to="2")
    assert "1 message is tried again." in said
    said = await reader.sends(f"{FAILING}/skip", scope="all", state="waiting", reason="nothing like it")
    assert "0 messages are skipped." in said


async def test_what_is_appended_is_said_and_what_is_wrong_with_it(reader: Reader, mp: Milepost) -> None:
    usual = {"stream": "kept-1", "type": "kept.a", "data": "{}", "expected": "any"}
    for field, text, words in (
        ("data", '{"a": 1,\n}', "data: this is no JSON"),
        ("properties", '{"a": [1]}', "an integer, a string or a boolean is wanted"),
        ("properties", "7", "properties: an object is wanted"),
        ("id", "7", "id: '7' is not a UUID"),
        ("stream", "-x", "has no category"),
        ("version", "3", 'choose "at this version" as well'),
    ):
        assert words in await reader.sends("log/append", **{**usual, field: text})
    known = "8f6e1f60-3a3c-4a58-9c0b-8a1b8b9f2d11"
    assert "versions" in await reader.sends("log/append", **{**usual, "stream": "versions-1"})
    said = await reader.sends("log/append", **{**usual, "expected": "stream_exists"})
    assert "the stream kept-1 has no message yet" in said
    assert "Appended to kept-1 as version 1" in await reader.sends("log/append", **usual, id=known)
    assert "It was there already" in await reader.sends("log/append", **usual, id=known)
    said = await reader.sends("log/append", **{**usual, "type": "other"}, id=known)
    assert known in said
    said = await reader.sends("log/append", **{**usual, "expected": "no_stream"})
    assert "the stream kept-1 is at version 1" in said
    said = await reader.sends("log/append", **{**usual, "expected": "version"}, version="soon")
    assert "a number from 0 on is wanted" in said
    said = await reader.sends("log/append", **{**usual, "expected": "version"}, version="1")
    assert "as version 2" in said
    assert await mp.last("kept-1") == 2


async def test_circles_of_causes_and_long_chains_are_shown(reader: Reader, mp: Milepost) -> None:
    one, other = "5f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f", "6f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f"
    await mp.append("circle-1", NewMessage("circle.one", metadata={"causation_id": other}, id=one))
    await mp.append("circle-2", NewMessage("circle.other", metadata={"causation_id": one}, id=other))
    same = {"correlation_id": one}
    await mp.append("circle-3", [NewMessage("circle.more", metadata=same)] * 120)
    assert "circle.other" in (await reader.asks("log/1"))[1]
    assert "circle.more" in (await reader.asks("log/1", further=1))[1]


async def test_a_large_payload_is_shown_in_part_until_all_is_asked_for(reader: Reader, mp: Milepost) -> None:
    appended = await mp.append("large-1", NewMessage("large.a", ["x" * 100] * 3000))
    (_, part), (_, whole) = await reader.asks("log/1"), await reader.asks("log/1", whole=1)
    assert "more characters" in part
    assert len(whole) > 300_000 > len(part)
    assert appended.position == 1
