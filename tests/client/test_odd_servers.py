"""Whatever a server sends, a client bears it: it raises an error, and takes a bounded amount of memory."""

import asyncio
import gzip
import json
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection

import milepost
from client.odd import Answer, answering, endless, http, talking
from milepost import ConsumerClosed, MilepostError, NewMessage, TooLarge, Unavailable
from milepost.client import connection as line
from milepost.client import connection as socket
from milepost.client import consumer as consumers

WELCOME: dict[str, Any] = {
    "type": "welcome",
    "consumer": "c",
    "node": None,
    "standby": False,
    "timeout": 30,
    "resume": "r",
    "resume_seconds": 5,
    "resumed": False,
    "open": [],
}
MESSAGE = {
    "position": 1,
    "stream": "a-1",
    "version": 1,
    "id": "5f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f",
    "type": "a",
    "time": "2026-03-01T12:00:00Z",
    "data": None,
    "properties": {},
    "metadata": {},
}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (http("200 OK", b"<html>hello</html>"), MilepostError),
        (http("200 OK", b"[" * 1_000_000), MilepostError),
        (http("200 OK", b'{"position": "many"}'), MilepostError),
        (http("200 OK", b"\xff\xfe"), MilepostError),
        (http("200 OK", b""), MilepostError),
        (http("200 OK", gzip.compress(b'{"position": 1}'), "content-encoding: gzip"), MilepostError),
        (http("302 Found", b"", "location: http://127.0.0.1:1/"), MilepostError),
        (http("404 Not Found", b"nothing"), MilepostError),
        (http("500 Error", b"oops"), MilepostError),
        (http("503 Unavailable", b"later"), Unavailable),
        (http("200 OK", b"x", f"x: {'y' * 1_000_000}"), Unavailable),
        (endless, TooLarge),
    ],
)
async def test_answers(answer: Answer, error: type[Exception]) -> None:
    async with answering(answer) as address:
        async with milepost.connect(address, patience=0, max_answer_bytes=5_000_000) as client:
            for ask in (client.head(), client.append("a-1", NewMessage("a")), anext(client.read())):
                async with asyncio.timeout(60):
                    with pytest.raises(MilepostError) as raised:
                        await ask
                assert isinstance(raised.value, error)


async def test_a_page_that_goes_on_for_ever_does_not() -> None:
    page = {"messages": [MESSAGE], "next": 1, "more": True}
    async with answering(http("200 OK", json.dumps({**page, "position": 0}).encode())) as address:
        async with milepost.connect(address) as client, asyncio.timeout(60):
            assert len([message async for message in client.read()]) == 1


async def test_a_page_with_more_than_was_asked_for() -> None:
    page = {"messages": [MESSAGE] * 3, "next": 1, "more": False}
    async with answering(http("200 OK", json.dumps(page).encode())) as address:
        async with milepost.connect(address) as client, asyncio.timeout(60):
            with pytest.raises(MilepostError, match="answered 3 messages where 2 were asked for"):
                await anext(client.read(limit=2))


async def test_a_problem_that_is_too_long_is_not_looked_into() -> None:
    told = {"type": "/problems/busy", "detail": "", "transient": True, "more": [[]] * 200_000}
    async with answering(http("409 Conflict", json.dumps(told).encode())) as address:
        async with milepost.connect(address, patience=0) as client, asyncio.timeout(60):
            with pytest.raises(MilepostError, match="not as a Milepost server does"):
                await client.head()


async def test_an_event_of_many_lines() -> None:
    lines = b"a: b\n" * 15 + f"data: {json.dumps(MESSAGE)}\n".encode() + b"data: nonsense\n" * 100
    async with answering(http("200 OK", lines + b"\n", "content-type: text/event-stream")) as address:
        async with milepost.connect(address, patience=0) as client, asyncio.timeout(60):
            assert (await anext(client.follow(after=0))).position == 1


async def test_an_event_that_does_not_end() -> None:
    async with answering(endless) as address:
        async with milepost.connect(address, patience=0, max_answer_bytes=5_000_000) as client:
            async with asyncio.timeout(60):
                with pytest.raises(TooLarge):
                    await anext(client.follow())


def a_delivery(number: int) -> dict[str, Any]:
    return {"id": number, "attempt": 1, "route": "everything", "replay": False, "message": MESSAGE}


async def said(connection: ServerConnection, *frames: object) -> None:
    for frame in frames:
        await connection.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))


FIRST: list[object] = [
    "",
    "nonsense",
    b"\x00\xff",
    "[" * 100_000,
    {"type": "welcome"},
    {"type": "deliveries", "deliveries": []},
    {**WELCOME, "timeout": "long"},
    "x" * 6_000_000,
]


@pytest.mark.parametrize("frame", FIRST, ids=range(len(FIRST)))
async def test_an_answer_to_a_hello(frame: object) -> None:
    async with talking(lambda connection: said(connection, frame)) as address:
        async with milepost.connect(address, patience=0.2, max_answer_bytes=5_000_000) as client:
            async with asyncio.timeout(60):
                with pytest.raises(Unavailable):
                    async with client.consumer("shipping"):
                        pass


async def test_frames_that_mean_nothing_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "LEAVE_TIMEOUT_SECONDS", 0.2)
    odd: list[object] = [
        {"type": "news", "from": "the future"},
        {"type": "settled", "ref": 99, "moved": [1], "refused": [{"id": 2, "reason": "x"}]},
        {"type": "settled", "moved": [], "refused": []},
        {"type": "lost", "deliveries": [{"id": 77, "reason": "never had it"}]},
        {"type": "done", "ref": "nobody asked"},
        {"type": "pong", "ref": None},
        {"type": "problem", "ref": 5, "problem": {"type": "?"}},
        {"type": "deliveries", "deliveries": [a_delivery(1)]},
    ]

    async def talk(connection: ServerConnection) -> None:
        await said(connection, WELCOME, *odd)
        await connection.wait_closed()

    async with talking(talk) as address, milepost.connect(address) as client, asyncio.timeout(60):
        async with client.consumer("shipping") as consumer:
            assert (await anext(consumer)).id == 1


async def test_more_deliveries_than_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "CLOSE_TIMEOUT_SECONDS", 0.1)
    connections = 0

    async def talk(connection: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await said(connection, WELCOME)
        for start in range(0, 1_000_000, 100):
            frame = {"type": "deliveries", "deliveries": [a_delivery(start + n) for n in range(100)]}
            await connection.send(json.dumps(frame))

    async with talking(talk) as address, milepost.connect(address) as client, asyncio.timeout(60):
        async with client.consumer("shipping", capacity=10) as consumer:
            while connections < 3:
                assert consumer.in_flight <= 1010
                await asyncio.sleep(0.01)


async def test_being_sent_round_in_circles_waits_longer_and_longer() -> None:
    connections = 0

    async def talk(connection: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        host = connection.request.headers["host"] if connection.request else ""
        await said(connection, {"type": "end", "reason": "moved", "to": f"http://{host}", "detail": ""})

    async with talking(talk) as address, milepost.connect(address, patience=1) as client, asyncio.timeout(60):
        with pytest.raises(Unavailable, match="moved"):
            async with client.consumer("shipping"):
                pass
    assert connections < 40


@pytest.mark.parametrize("reason", ["deleted", "too many consumers", "access", "bad frame"])
async def test_an_end_that_is_one(reason: str) -> None:
    async def talk(connection: ServerConnection) -> None:
        await said(connection, WELCOME, {"type": "end", "reason": reason, "detail": "so it is", "to": None})

    async with talking(talk) as address, milepost.connect(address) as client, asyncio.timeout(60):
        async with client.consumer("shipping") as consumer:
            with pytest.raises(ConsumerClosed, match="so it is") as raised:
                await anext(consumer)
            assert raised.value.reason == reason


async def test_a_server_that_never_answers_a_settlement_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumers, "FINAL_ANSWERS_SECONDS", 0.2)
    monkeypatch.setattr(line, "LEAVE_TIMEOUT_SECONDS", 0.2)

    async def talk(connection: ServerConnection) -> None:
        await said(connection, WELCOME, {"type": "deliveries", "deliveries": [a_delivery(1)]})
        async for _ in connection:
            pass

    async with talking(talk) as address, milepost.connect(address) as client, asyncio.timeout(60):
        async with client.consumer("shipping") as consumer:
            async with await anext(consumer):
                pass
