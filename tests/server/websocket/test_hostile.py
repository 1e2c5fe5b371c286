"""Clients that mean harm, or behave as if they did: each costs itself the connection, and nobody else anything."""

import asyncio
import base64
import json
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import SplitResult, urlsplit

import psutil
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from engine.consuming.taking import orders, take, until
from milepost import Milepost, NewMessage, Retry
from milepost.server import process as serving
from milepost.server.follow import FollowerLimit
from server.process import ServerProcess, StartServer
from server.websocket.conftest import Serve, Serving
from server.websocket.talking import Talk, consuming, talking


@asynccontextmanager
async def silent_one(address: str) -> AsyncIterator[socket.socket]:
    """A connection that is a WebSocket, of which nobody reads anything."""
    connection = await asyncio.to_thread(_connect, urlsplit(address))
    with connection:
        yield connection


def _connect(address: SplitResult) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((address.hostname, address.port))
    connection.sendall(_upgrade(address))
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += connection.recv(1)
    assert answer.startswith(b"HTTP/1.1 101 ")
    return connection


def _upgrade(address: SplitResult) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET /v1/subscriptions/default/shipping/consume HTTP/1.1\r\nhost: {address.netloc}\r\n"
        f"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        f"sec-websocket-key: {key}\r\n\r\n"
    ).encode()


def masked(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """A frame as clients send it."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack("!H", size)
    return bytes([(0x80 if fin else 0) | opcode]) + length + b"\0\0\0\0" + payload


def text(**frame: object) -> bytes:
    """A frame with JSON in it."""
    return masked(1, json.dumps(frame).encode())


async def is_served(mp: Milepost, server: Serving | ServerProcess, first: int) -> None:
    """Somebody else gets what is there."""
    async with consuming(server.address, routes=[{"priority": 9}]) as talk:
        await orders(mp, 3, first=first)
        found = await talk.take(3)
        assert [each["message"]["data"]["n"] for each in found] == [first, first + 1, first + 2]
        await talk.say("settle", ref=1, ack=[each["id"] for each in found])
        await talk.expect("settled", ref=1, refused=[])


@pytest.mark.shard("hostile", fast=["nonsense", '"text"'])
@pytest.mark.parametrize(
    "frame",
    ["", "nonsense", "[]", "5", "null", '"text"', '{"type": "ping"', "[" * 100_000, '{"a":' * 100_000, "\ufeff{}"],
)
async def test_what_is_no_frame_ends_it(mp: Milepost, server: Serving, frame: str) -> None:
    async with consuming(server.address) as talk:
        await talk.connection.send(frame)
        await talk.ended("bad frame", 1008)
    await is_served(mp, server, 0)


async def test_bytes_are_no_frame(server: Serving) -> None:
    async with consuming(server.address) as talk:
        await talk.connection.send(b'{"type": "ping"}')
        await talk.ended("bad frame", 1008)


async def test_what_is_not_utf_8(server: Serving) -> None:
    async with consuming(server.address) as talk:
        talk.connection.transport.write(masked(1, b"\xff\xfe"))
        assert await talk.closed() == 1007


async def test_too_many_wrong_frames(server: Serving) -> None:
    async with consuming(server.address) as talk:
        for _ in range(101):
            await talk.say("nothing")
        for _ in range(100):
            await talk.expect("problem")
        await talk.ended("bad frame", 1008)


async def test_an_answer_that_is_under_way_becomes_no_websocket(server: Serving) -> None:
    """Else nobody would tell the follower that its client has gone."""
    address = urlsplit(server.address)
    followers: FollowerLimit = server.app._inner._given["followers"]  # type: ignore[attr-defined]
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"GET /v1/follow HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await reader.readuntil(b"retry: ")
    assert followers.count == 1
    writer.write(_upgrade(address))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readuntil(b"HTTP/1.1 101 ")
    writer.close()
    await until(lambda: followers.count == 0)


async def test_too_large_a_frame(mp: Milepost, serve: Serve) -> None:
    server = await serve(frame_bytes=10_000)
    async with consuming(server.address) as talk:
        await talk.say("ping", ref="x" * 9_900)
        await talk.expect("problem")
        await talk.say("ping", ref="x" * 10_000)
        assert await talk.closed() == 1009
    await is_served(mp, server, 0)


async def test_too_many_fragments(mp: Milepost, server: Serving) -> None:
    async with consuming(server.address) as talk:
        talk.connection.transport.write(masked(1, b"", fin=False) + masked(0, b"", fin=False) * 2000)
        assert await talk.closed() == 1009
    await is_served(mp, server, 0)


@pytest.mark.shard("hostile")
async def test_hostile_words_in_every_field(mp: Milepost, server: Serving) -> None:
    """They are stored as they are, or refused, and break out of nothing."""
    word = "'; drop table messages; --\r\n\x01\u202e\U0001f4a5\0"
    await orders(mp, 4)
    name = "'; drop schema public --"
    async with consuming(server.address, consumer=name, routes=[{"name": name, "capacity": 4}]) as talk:
        first, second, third, fourth = await talk.take(4)
        assert first["route"] == name
        await talk.say(
            "settle",
            ref=name,
            retry=[{"id": first["id"], "after": 3600, "reason": word, "error": word * 2000}],
            park=[{"id": second["id"], "reason": word}],
            skip=[{"id": third["id"], "reason": word}],
        )
        await talk.expect("settled", ref=name, refused=[])
        for route in ({"where": f'n == "{word}"'}, {"where": word}, {"name": word}):
            await talk.say("configure", ref=1, routes=[{**route, "capacity": 0}])
            await talk.expect("problem", ref=1)
        # A route without room, for which a message waits beside one that nobody takes.
        where = f'n == 5 || "{word[:-1]}" == "a"'
        await talk.say("configure", ref=2, routes=[{"where": where, "capacity": 0}])
        await talk.expect("done", ref=2)
        await orders(mp, 2, first=4)
        await until(lambda: has_unrouted(mp))
        await until(lambda: has_stored(mp, word.replace("\0", "").replace("\r\n", " ")))
        assert (await mp.manage("shipping").info()).status == "running"
        await until(lambda: tells(mp, name))
        await talk.say("drain")
        await talk.expect("done")
        await talk.say("settle", ack=[fourth["id"]])
        await talk.ended("drained", 1000)
    async with consuming(server.address) as talk:
        found = await talk.take(2)
        assert {each["message"]["data"]["n"] for each in found} == {4, 5}
        await talk.say("settle", ref=1, ack=[each["id"] for each in found])
        await talk.expect("settled", ref=1, refused=[])
    await is_served(mp, server, 6)


async def has_unrouted(mp: Milepost) -> bool:
    return (await mp.manage("shipping").statistics()).unrouted > 0


async def tells(mp: Milepost, name: str) -> bool:
    statistics = await mp.manage("shipping").statistics()
    return [
        each.consumer.startswith(name) and "drop table" in str(each.last_error) for each in statistics.consumers
    ] == [True]


async def has_stored(mp: Milepost, word: str) -> bool:
    rows = [row async for row in mp.manage("shipping").deliveries(state=["parked", "retrying"])]
    return [row.reason for row in rows] == [word, word]


@pytest.mark.shard("hostile", fast=["default/%00"])
@pytest.mark.parametrize("path", ["default/%00", "default/%ff"])
async def test_paths_that_are_no_text(server: Serving, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with talking(server.address, path):
            pass
    assert refused.value.response.status_code == 400


@pytest.mark.shard("hostile", fast=["path0"])
@pytest.mark.parametrize("path", ["default/" + "x" * 5000, "a/b%2Fc", "a/%25", "a/';--"])
async def test_names_that_nothing_has(server: Serving, path: str) -> None:
    async with talking(server.address, path) as talk:
        await talk.say("hello")
        problem = (await talk.expect("problem"))["problem"]
        assert problem["status"] in (404, 413), problem
        await talk.ended("refused", 4005)


# Those who do not read, or do not stop


async def test_who_never_reads_is_ended_and_costs_nobody_anything(mp: Milepost, serve: Serve) -> None:
    # Long enough for the one that does read.
    server = await serve(stalled_seconds=3, resume_seconds=0.1)
    await mp.manage("shipping").update(retry=Retry(delay=0))
    blob = {"blob": "x" * 200_000}
    for n in range(100):
        await mp.append(f"order-{n}", NewMessage("a", {"n": n, **blob}))
    async with silent_one(server.address) as silent:
        silent.sendall(text(type="hello", routes=[{"capacity": 50}]))
        async with consuming(server.address) as talk:
            seen: dict[int, int] = {}
            # It takes what is not the other's at once, and that too when the other is ended.
            while len(seen) < 100:
                for each in (await talk.expect("deliveries"))["deliveries"]:
                    seen[each["message"]["data"]["n"]] = each["attempt"]
                    await talk.say("settle", ack=[each["id"]])
            assert set(seen.values()) <= {1, 2}


async def test_who_settles_nothing_costs_nobody_anything(mp: Milepost, server: Serving) -> None:
    """Whatever one keeps, up to its capacity: everything else goes on."""
    async with consuming(server.address, routes=[{"capacity": 500}]) as idle, consuming(server.address) as talk:
        for n in range(0, 1500, 500):
            streams = {f"order-{each}": [NewMessage("a", {"n": each})] for each in range(n, n + 500)}
            await mp.append_many(streams)
        kept = len(await idle.take(500))
        seen = 0
        while seen < 1500 - kept:
            deliveries = (await talk.expect("deliveries"))["deliveries"]
            seen += len(deliveries)
            await talk.say("settle", ack=[each["id"] for each in deliveries])


async def test_whoever_is_silent_is_given_up(mp: Milepost, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is gone closes nothing: only its missing answers to pings tell."""
    monkeypatch.setattr(serving, "PING_SECONDS", 0.5)
    server = await serve(resume_seconds=0.1)
    await mp.manage("shipping").update(retry=Retry(delay=0.01))
    await orders(mp, 1)
    async with silent_one(server.address) as silent:
        silent.sendall(text(type="hello"))
        await asyncio.to_thread(_read_to, silent, b'"deliveries"')
        # Somebody without a connection to this server, who waits until it serves nobody any more.
        async with mp.consumer("shipping") as consumer:
            [delivery] = await take(consumer, 1)
            assert delivery.attempt == 2
            await delivery.ack()


def _read_to(connection: socket.socket, wanted: bytes) -> None:
    connection.settimeout(60)
    found = b""
    while wanted not in found:
        piece = connection.recv(4096)
        assert piece, found
        found += piece


@pytest.mark.shard("hostile")
async def test_who_asks_and_never_reads_the_answers(mp: Milepost, serve: Serve) -> None:
    server = await serve(stalled_seconds=0.5)
    async with silent_one(server.address) as silent:
        silent.sendall(text(type="hello"))
        silent.settimeout(60)
        with pytest.raises(OSError):  # noqa: PT011 - it depends on when it is noticed
            await asyncio.to_thread(_flood, silent, text(type="ping", ref="x" * 100) * 1000)
    await is_served(mp, server, 0)


def _flood(connection: socket.socket, data: bytes) -> None:
    while True:
        connection.sendall(data)


FLOOD = 12 * 2**20
"""Bytes, of which a server that kept the answers would keep as many."""


@pytest.mark.shard("hostile")
@pytest.mark.parametrize("opcode", [1, 9, 10])
async def test_a_flood_is_bounded_and_leaves_others_their_turn(
    mp: Milepost, shipping: str, start_server: StartServer, opcode: int
) -> None:
    """Frames, pings and pongs, without ever reading."""
    server = start_server(stalled_seconds=60)
    process = psutil.Process(server.process.pid)
    async with consuming(server.address) as talk:
        await exchange(mp, talk, 0)
        before = process.memory_info().rss
        async with silent_one(server.address) as silent:
            silent.sendall(text(type="hello", routes=[{"capacity": 0}]))
            data = (text(type="ping", ref="x" * 90) if opcode == 1 else masked(opcode, b"x" * 120)) * 500
            flooding = asyncio.create_task(asyncio.to_thread(_flood_until_stuck, silent, data))
            n = 1
            while not flooding.done():
                await exchange(mp, talk, n)
                n += 1
            sent = await flooding
            await exchange(mp, talk, n)
            grown = process.memory_info().rss - before
        assert (sent >= FLOOD) is (opcode != 1)
        assert grown < FLOOD // 2, (sent, grown)


async def exchange(mp: Milepost, talk: Talk, n: int) -> None:
    """One order, from its append to its settlement."""
    await orders(mp, 1, first=n)
    [delivery] = await talk.take(1)
    await talk.say("settle", ref=n, ack=[delivery["id"]])
    await talk.expect("settled", ref=n)


def _flood_until_stuck(connection: socket.socket, data: bytes) -> int:
    """How much went through, up to so much or until the other side has taken nothing for a while."""
    connection.settimeout(8)
    sent = 0
    while sent < FLOOD:
        try:
            sent += connection.send(data)
        except OSError:
            break
    return sent


@pytest.mark.shard("hostile")
async def test_a_thousand_connections_in_one_process(
    mp: Milepost, shipping: str, start_server: StartServer
) -> None:
    server = start_server()
    process = psutil.Process(server.process.pid)
    async with consuming(server.address, routes=[{"priority": 1, "where": "n < 0"}]):
        before = process.memory_info().rss
        talks: list[Talk] = []
        try:
            for _ in range(20):
                found = await asyncio.gather(*[_connected(server, k) for k in range(len(talks), len(talks) + 50)])
                talks += found
            grown = process.memory_info().rss - before
            await orders(mp, 100, streams=100)
            for k in range(100):
                [delivery] = await talks[k].take(1)
                assert delivery["message"]["data"]["n"] == k
                await talks[k].say("settle", ref=k, ack=[delivery["id"]])
                await talks[k].expect("settled", ref=k)
            assert grown < 200 * 2**20, grown
        finally:
            await asyncio.gather(*[talk.connection.close() for talk in talks])


async def _connected(server: ServerProcess, k: int) -> Talk:
    url = f"{server.address.replace('http', 'ws')}/v1/subscriptions/default/shipping/consume"
    talk = Talk(await connect(url, proxy=None, compression=None, ping_interval=None))
    await talk.hello(routes=[{"where": f"n == {k}", "capacity": 10}])
    return talk
