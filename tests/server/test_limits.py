"""What a connection may cost, tried on a server with a network before it."""

import asyncio
import json
import resource
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import psutil
import pytest

from engine.consuming.taking import until
from milepost import Milepost, NewMessage
from milepost.console import Console
from milepost.server import process as serving
from milepost.server.http.asgi import Event, Receive, Scope, Send, header
from milepost.server.http.body import FORM_TYPE, BodyBudgets, RequestBody, WorkTurns
from milepost.server.http.guard import RequestGuard
from milepost.server.limits import Limits
from milepost.server.problems import HEAD_TOO_LARGE, TOO_LARGE, TOO_MANY, TOO_SLOW, RequestRefused
from milepost.server.process import TlsCertificate
from server.answers import problem
from server.process import StartServer
from server.websocket.conftest import Serve
from servers import make_certificate

JSON = {"content-type": "application/json"}


def send(port: int, request: bytes, *, more: bytes = b"") -> bytes:
    """Everything that is answered to some bytes, until the server ends it."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        found = b""
        with suppress(ConnectionError):
            connection.sendall(request + more)
        with suppress(ConnectionError):
            while part := connection.recv(65536):
                found += part
        return found


def problem_in(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    slug: str = json.loads(body)["type"].removeprefix("/problems/")
    return slug


class TestBodies:
    @pytest.mark.shard("hostile")
    async def test_one_hundred_megabytes(self, mp: Milepost, start_server: StartServer) -> None:
        server = start_server(rest_seconds=60)
        process = psutil.Process(server.process.pid)
        async with server.client() as client:
            await client.get("/v1/head")
            before = process.memory_info().rss
            body = b'{"type": "a", "data": "' + b"x" * 100_000_000 + b'"}'
            answer = await client.post("/v1/streams/a-1", content=body, headers=JSON)
            assert problem(answer, TOO_LARGE, "16,842,752 bytes")["field"] == "body"
            assert process.memory_info().rss - before < 50 * 2**20
            assert (await client.get("/v1/head")).json() == {"position": 0}

    async def test_without_a_length(self, serve: Serve) -> None:
        async def body() -> AsyncIterator[bytes]:
            yield b'{"type": "a", "data": "'
            for _ in range(30):
                yield b"x" * 1_000_000
            yield b'"}'

        async with (await serve(rest_seconds=60)).client() as client:
            answer = await client.post("/v1/streams/a-1", content=body(), headers=JSON)
            assert problem(answer, TOO_LARGE)["field"] == "body"
            assert (await client.get("/v1/head")).status_code == 200

    async def test_nobody_is_asked_for_what_will_be_refused(self, serve: Serve) -> None:
        request = (
            b"POST /v1/streams/a-1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100000000\r\nExpect: 100-continue\r\n\r\n"
        )
        server = await serve(rest_seconds=0.1)
        answer = await asyncio.to_thread(send, server.port, request)
        assert answer.startswith(b"HTTP/1.1 413 ")

    async def test_a_large_one_that_is_allowed(self, mp: Milepost, serve: Serve) -> None:
        messages = [{"type": "a", "data": "x" * 1_000_000}] * 15
        async with (await serve()).client() as client:
            assert (await client.post("/v1/streams/a-1", json=messages)).json()["version"] == 15

    async def test_all_of_them_together(self, serve: Serve) -> None:
        server = await serve(bodies_bytes=100_000)
        head = b"POST /v1/streams/a-1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as first:
            first.sendall(head + b"Content-Length: 95000\r\n\r\n" + b" " * 90_000)
            async with server.client() as client, asyncio.timeout(60):
                # Until the first one has arrived as far as it does.
                while True:
                    answer = await client.post("/v1/streams/a-1", content=b" " * 20_000, headers=JSON)
                    if answer.status_code != 400:
                        break
                problem(answer, TOO_MANY, "again in a moment")
                first.close()
                while answer.status_code != 400:
                    answer = await client.post("/v1/streams/a-1", content=b" " * 20_000, headers=JSON)

    async def test_one_that_never_ends(self, serve: Serve) -> None:
        server = await serve(body_seconds=0.1, rest_seconds=0.1)
        head = b"POST /v1/streams/a-1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        answer = await asyncio.to_thread(send, server.port, head + b"Content-Length: 100\r\n\r\n{")
        assert problem_in(answer) == TOO_SLOW.slug

    async def test_a_form_of_a_stranger_that_never_ends(self, serve: Serve) -> None:
        server = await serve(access="tokens", pages=Console, head_seconds=0.1, body_seconds=600, rest_seconds=0.1)
        head = (
            b"POST /console/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
        )
        answer = await asyncio.to_thread(send, server.port, head + b"token=")
        assert answer.startswith(b"HTTP/1.1 408 ")

    async def test_a_form_whose_time_is_up_can_give_way(self) -> None:
        """Before it has heard that its time is up: whoever makes it give way is not to fail for that."""
        body = RequestBody(
            {"headers": []}, _sends_nothing, BodyBudgets(Limits(head_seconds=0.01), WorkTurns()), FORM_TYPE
        )
        body.apply_stranger_limits()
        gave_way: list[bool] = []

        def give_way() -> None:
            body.give_way()
            gave_way.append(True)

        with body:
            waiting = asyncio.create_task(body.receive())
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.02, give_way)
            # Both are due when the loop looks again, one directly after the other.
            time.sleep(0.1)  # noqa: ASYNC251
            with pytest.raises(RequestRefused):
                await waiting
        assert gave_way == [True]

    async def test_slow_forms_of_strangers_keep_nobody_out(self, serve: Serve) -> None:
        """The connection ends of the one that has been arriving for longest."""
        server = await serve(
            access="tokens", pages=Console, strangers_bytes=20_000, head_seconds=600, rest_seconds=0.1
        )
        head = (
            b"POST /console/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken="
        )
        slow = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(5)]
        try:
            for each in slow:
                each.sendall(head + b"x" * 7000)
            for each in slow[:3]:
                assert (await asyncio.to_thread(_received, each)).startswith(b"HTTP/1.1 503 ")
                while await asyncio.to_thread(_received, each):
                    pass
            async with server.client() as client:
                answer = await client.post("/console/login", data={"token": "x" * 7000})
                # It was read: it is refused since it does not bring the token of its page.
                assert answer.status_code == 403
        finally:
            for each in slow:
                each.close()

    @pytest.mark.parametrize(
        ("path", "kind"), [("v1/streams/a-1", "json"), ("console/login", "x-www-form-urlencoded")]
    )
    async def test_one_that_breaks_off_is_no_fault(
        self, serve: Serve, caplog: pytest.LogCaptureFixture, path: str, kind: str
    ) -> None:
        server = await serve(pages=Console)
        head = f"POST /{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/{kind}\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        route = f"/{path.replace('a-1', '{stream}')}"
        await until(lambda: server.app.traffic.requests["POST", route, 400] == 1)
        assert not caplog.records


class TestHeads:
    async def test_one_that_never_ends(self, serve: Serve) -> None:
        server = await serve(head_seconds=0.1)
        answer = await asyncio.to_thread(send, server.port, b"GET /v1/head HTTP/1.1\r\nHost: local")
        assert problem_in(answer) == TOO_SLOW.slug

    async def test_a_byte_now_and_then(self, serve: Serve) -> None:
        """It ends in time, though something comes as long as it lasts."""
        server = await serve(head_seconds=0.2)

        async def drip() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /v1/head HTTP/1.1\r\nX: ")
            ended = asyncio.create_task(reader.read())
            while not ended.done():
                writer.write(b"x")
                await asyncio.sleep(0.02)
            with suppress(ConnectionError):
                assert problem_in(await ended) == TOO_SLOW.slug
            writer.close()

        async with asyncio.timeout(60):
            await drip()

    async def test_a_connection_that_says_nothing(self, serve: Serve) -> None:
        server = await serve(head_seconds=0.1)
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as silent:
            assert await asyncio.to_thread(silent.recv, 1) == b""

    @pytest.mark.parametrize(
        "request_",
        [
            b"GET /v1/head HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
            b"GET /v1/head HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 1_000_000,
            b"GET /v1/head HTTP/1.1\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
            b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
        ],
        ids=["one header", "one that does not end", "many headers", "a long address"],
    )
    async def test_too_large(self, serve: Serve, request_: bytes) -> None:
        answer = await asyncio.to_thread(send, (await serve()).port, request_)
        # It need not read all of what it refuses, and the answer may get lost by that.
        assert not answer or problem_in(answer) == HEAD_TOO_LARGE.slug

    @pytest.mark.parametrize(
        "request_",
        [
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            b"GET /v1/head HTTP/9.9\r\n\r\n",
            b"GET /v1/h\xffad HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"POST /v1/streams HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
            b"POST /v1/streams HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"POST /v1/streams HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        ],
    )
    async def test_what_is_no_http(self, serve: Serve, request_: bytes) -> None:
        answer = await asyncio.to_thread(send, (await serve(rest_seconds=0.1)).port, request_)
        assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 415 "))
        assert problem_in(answer)


CHUNKED = (
    b"POST /v1/streams/a-1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


class TestWhatStandsAroundPiecesOfABody:
    """Trailers, and what may stand behind the size of a piece: nobody wants it, and it has no end."""

    @pytest.mark.shard(
        "hostile", fast=["local-trailers-many", "local-size-a long one", "tokens-trailers-a long one"]
    )
    @pytest.mark.parametrize("more", [b"X: y\r\n" * 50_000, b"X: " + b"y" * 300_000], ids=["many", "a long one"])
    @pytest.mark.parametrize("body", [b'c\r\n{"type":"a"}\r\n0\r\n', b"1\r\n{\r\n1;"], ids=["trailers", "size"])
    @pytest.mark.parametrize("access", ["local", "tokens"])
    async def test_too_much_of_it(self, serve: Serve, access: str, body: bytes, more: bytes) -> None:
        """Also where the answer is there already, and the rest is read only so that the client gets to it."""
        server = await serve(access=access, rest_seconds=60)
        answer = await asyncio.to_thread(send, server.port, CHUNKED + body, more=more)
        assert not answer or answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 401 ", b"HTTP/1.1 400 "))

    async def test_small_pieces_are_no_trailers(self, serve: Serve) -> None:
        body = b'{"type":"a"}' + b" " * 40_000
        pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        async with (await serve(head_bytes=1000)).client() as client:
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            writer.write(CHUNKED + pieces + b"0\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            writer.close()

    async def test_trailers_are_no_headers(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        server = await serve()
        scopes: list[Scope] = []
        answer = RequestGuard._answer

        async def seen(self: RequestGuard, scope: Scope, receive: Receive, send: Send) -> None:
            scopes.append(scope)
            await answer(self, scope, receive, send)

        monkeypatch.setattr(RequestGuard, "_answer", seen)
        trailers = b"0\r\nAuthorization: Bearer x\r\nConnection: close\r\n\r\n"
        request = CHUNKED.replace(b"Host", b"Connection: close\r\nHost")
        answered = await asyncio.to_thread(send, server.port, request + b'c\r\n{"type":"a"}\r\n' + trailers)
        assert answered.startswith(b"HTTP/1.1 200 ")
        [scope] = [scope for scope in scopes if scope["method"] == "POST"]
        assert header(scope, b"authorization") is None


async def test_too_many_connections(serve: Serve) -> None:
    # A server looks whether it is reached where it says it is: one more connection, which goes elsewhere here.
    server = await serve(connections=3, advertise="http://127.0.0.1:1")
    traffic = server.app.traffic
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(server.client())
        for _ in range(3):
            await stack.enter_async_context(client.stream("GET", "/v1/follow"))
        # An answer can be cut off by what its connection had not read.
        answer = await asyncio.to_thread(send, server.port, b"")
        assert problem_in(answer) == TOO_MANY.slug
    await until(lambda: traffic.connections == 0)
    async with server.client() as client:
        assert (await client.get("/healthz")).status_code == 200


@pytest.mark.shard("hostile", fast=["GET /healthz HTTP/1.1\\r\\nHost: local"])
@pytest.mark.parametrize(
    "said", [b"", b"GET /healthz HTTP/1.1\r\nHost: local", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"]
)
async def test_silent_connections_keep_nobody_out(serve: Serve, said: bytes) -> None:
    """The one that has been silent for longest ends: one that says nothing, never ends its head, or is idle."""
    server = await serve(connections=3, advertise="http://127.0.0.1:1")
    traffic = server.app.traffic
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=60)]
    await until(lambda: traffic.connections == 1)
    silent += [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(2)]
    try:
        for each in silent:
            each.sendall(said)
            if said.endswith(b"\r\n\r\n"):
                assert (await asyncio.to_thread(each.recv, 65536)).startswith(b"HTTP/1.1 200 ")
        await until(lambda: traffic.connections == 3 == len(traffic.silent))
        async with server.client() as client:
            assert (await client.get("/healthz")).status_code == 200
            while await asyncio.to_thread(_received, silent[0]):
                pass
            assert traffic.connections == 3
    finally:
        for each in silent:
            each.close()
    await until(lambda: not traffic.connections)
    assert not traffic.silent


async def _sends_nothing() -> Event:
    await asyncio.Event().wait()
    raise AssertionError("it is never set")


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    ("soft", "hard", "set_to"),
    [(1024, 4096, 2256), (1024, 2000, 2000), (4096, 4096, None), (1024, -1, 2256), (-1, -1, None)],
)
def test_as_many_files_as_connections_need(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, soft: int, hard: int, set_to: int | None
) -> None:
    """Else nobody can connect long before there are too many, and the database is not reached either."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: found.append(limits))
    serving.allow_open_files(2000)
    assert found == ([] if set_to is None else [(set_to, hard)])
    assert ("may open 2,000 files, too few for 2,000 connections" in caplog.text) == (set_to == 2000)


class TestBeforeTlsHasBegun:
    @pytest.fixture
    async def certificate(self, tmp_path: Path) -> TlsCertificate:
        certificate, key = await asyncio.to_thread(make_certificate, tmp_path)
        return TlsCertificate(str(certificate), str(key))

    @pytest.mark.shard("hostile", fast=["GET / HTTP/1.1\\r\\n\\r\\n"])
    @pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x40\x00x", b"GET / HTTP/1.1\r\n\r\n"])
    async def test_time_runs(self, serve: Serve, certificate: TlsCertificate, said: bytes) -> None:
        server = await serve(tls=certificate, head_seconds=0.1)
        assert not (await asyncio.to_thread(send, server.port, said)).startswith(b"HTTP")
        await until(lambda: not server.app.traffic.connections)

    async def test_a_request_that_comes_with_its_last_words(
        self, serve: Serve, certificate: TlsCertificate
    ) -> None:
        server = await serve(tls=certificate)
        arriving, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=certificate.certificate)
        client = context.wrap_bio(arriving, leaving, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(60):
            while True:
                with suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                    break
                writer.write(leaving.read())
                arriving.write(await reader.read(65536))
            client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            writer.write(leaving.read())
            found = b""
            while b"\r\n" not in found:
                arriving.write(await reader.read(65536))
                with suppress(ssl.SSLWantReadError):
                    found += client.read(65536)
        assert found.startswith(b"HTTP/1.1 200 OK")
        writer.close()

    async def test_connections_count(self, serve: Serve, certificate: TlsCertificate) -> None:
        server = await serve(tls=certificate, connections=2, advertise="http://127.0.0.1:1")
        connections = server._process.server_state.connections
        silent = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(5)]
        await until(lambda: len(connections) == 2)
        for each in silent[:3]:
            assert await asyncio.to_thread(_received, each) == b""
        async with server.client(verify=ssl.create_default_context(cafile=certificate.certificate)) as client:
            for _ in range(2):
                assert (await client.get(f"https://localhost:{server.port}/healthz")).status_code == 200
            await until(lambda: len(connections) <= 2)
        for each in silent:
            each.close()
        await until(lambda: not connections)
        assert not server.app.traffic.silent


async def test_answers_that_nobody_takes_are_bounded_together(mp: Milepost, serve: Serve) -> None:
    """Each is a page of the log in memory. Who reads gets all of it while others do not."""
    server = await serve(answers_bytes=3 * 2**20)
    await mp.append("a-1", [NewMessage("a", "x" * 1_000_000)] * 8)
    request = b"GET /v1/messages HTTP/1.1\r\nHost: localhost\r\n\r\n"
    untaken = server.app.traffic._unread_answers
    connections = []
    try:
        for count in range(1, 4):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            connections.append(connection)
            connection.sendall(request)
            port = connection.getsockname()[1]
            await until(lambda: port in {each.get_extra_info("peername")[1] for each in untaken})  # noqa: B023
            assert len(untaken) == 1, count
        async with server.client() as client:
            assert len((await client.get("/v1/messages")).content) > 8_000_000
    finally:
        for each in connections:
            each.close()
    await until(lambda: not untaken)


async def test_requests_after_each_other_on_one_connection(serve: Serve) -> None:
    """Between two requests none is waited for, however short the time for a head is."""
    server = await serve(head_seconds=0.5)
    request = b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        for _ in range(2):
            # At once, so that it is there when the server looks.
            connection.sendall(request)
            answer = await asyncio.to_thread(connection.recv, 65536)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert answer.endswith(b"\r\n\r\n")
            # One that says nothing since then is over before it goes on.
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as silent:
                assert await asyncio.to_thread(silent.recv, 1) == b""


async def test_requests_that_do_not_wait_for_answers(serve: Serve) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = await asyncio.to_thread(send, (await serve()).port, one * 5 + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 6


async def test_many_requests_that_do_not_wait_for_answers(serve: Serve) -> None:
    """As many are answered as may wait: the client may send the others again, on another connection."""
    server = await serve(pipelined=3)
    answer = await asyncio.to_thread(send, server.port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
    *_, last = answer.split(b"HTTP/1.1 200 OK")
    assert answer.count(b"HTTP/1.1 200 OK") == 4
    assert b"connection: close" in last


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
async def test_small_answers_do_not_wait_for_each_other(host: str, family: int) -> None:
    """Nothing is held back to be sent with what comes next."""
    held_back: list[int] = []

    async def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        held_back.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0)
        writer.close()

    with serving.listen(host, 0) as listener:
        assert listener.family == family
        async with await asyncio.start_server(look, sock=listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            await reader.read()
            writer.close()
    assert held_back == [False]
