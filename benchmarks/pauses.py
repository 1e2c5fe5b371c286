"""For how long a server answers nobody, while it is sent the worst that its limits let pass.

The server is a process of its own. A task within its event loop measures how late its turns come: that is how long
everybody else waits, whoever they are. The machine takes part, so that one case sends nothing.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from multiprocessing.connection import Connection
from time import perf_counter, thread_time
from typing import NamedTuple
from urllib.parse import quote

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from benchmarks.bench import Bench, Step
from benchmarks.contest import Scores
from benchmarks.logs import Log, fresh_log
from benchmarks.processes import Processes
from benchmarks.results import Result
from milepost import Milepost, NewMessage
from milepost.console import Console
from milepost.console.request import csrf_token
from milepost.console.session import BROWSER_COOKIE
from milepost.server import create_app, process

WORK = "pauses"
GOAL_SECONDS = 0.1
TICK_SECONDS = 0.001
SETTLING_SECONDS = 0.05
"""Before and after a case: what was in the way of a turn is told at that turn."""
ANSWER_SECONDS = 120.0
NOTHING = "nothing is sent"
NOTHING_SECONDS = 2.0
AT_ONCE = 16
"""Connections that send the same at the same time."""
MIB = 2**20
BODY_BYTES = 16 * MIB
"""A little less than the largest body of an append."""
MESSAGE_BYTES = MIB - 1100
"""A little less than the largest payload."""
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
VISITOR = "somebody"
"""What a browser is known by, whose forms the console takes."""
APPEND, APPEND_MANY, SETTLE = "/v1/streams/a-1", "/v1/streams", "/v1/settle"
DECIDE = "/v1/subscriptions/default/bench/deliveries/retry"

Case = Callable[[int], Awaitable[None]]
"""Sends something to a port of this machine, and waits for the beginning of the answer."""


class Pause(NamedTuple):
    """How long something took."""

    seconds: float
    processor_seconds: float
    """Of that, in which the event loop's thread worked: the rest it waited for other threads and processes."""


def measure(bench: Bench) -> list[Result]:
    """Send one thing after the other; of each the longest pause in a round counts."""
    cases = _cases()
    waited = Scores(unit="s", fewer_is_better=True)
    worked = Scores(unit="s", fewer_is_better=True)
    with (
        bench.steps(WORK, bench.sizes.rounds * len(cases)) as step,
        fresh_log(bench.url, "pauses") as log,
        Processes(1, _serve, log) as server,
    ):
        asyncio.run(_prepare(log))
        server.send("port")
        [port] = server.receive(ANSWER_SECONDS)
        for _ in range(bench.sizes.rounds):
            for name, pause in _round(server, port, cases, step).items():
                waited.add(name, pause.seconds)
                worked.add(name, pause.processor_seconds)
    return [
        result
        for name in cases
        for result in (
            waited.result(
                f"{WORK}: {name}", "milepost", contender=name, below=None if name == NOTHING else GOAL_SECONDS
            ),
            worked.result(f"{WORK}: {name}", "processor time in it", contender=name),
        )
    ]


def _round(server: Processes, port: int, cases: Mapping[str, Case], step: Step) -> dict[str, Pause]:
    pauses = {}
    for name, case in cases.items():
        server.send("forget")
        server.receive(ANSWER_SECONDS)
        asyncio.run(_sent(case, port))
        server.send("longest")
        [pauses[name]] = server.receive(ANSWER_SECONDS)
        step()
    return pauses


async def _sent(case: Case, port: int) -> None:
    async with asyncio.timeout(ANSWER_SECONDS):
        await case(port)


async def _prepare(log: Log) -> None:
    """What is stored may be hostile, too: the console shows it."""
    deep = b"[" * 400 + b"1," * (MESSAGE_BYTES // 2 - 400) + b"1" + b"]" * 400
    wide = _filled(b"[],", MESSAGE_BYTES)
    async with Milepost(log.url, schema=log.schema) as mp:
        await mp.create_subscription("bench")
        for number, text in enumerate((deep, wide)):
            await mp.append(f"stored-{number}", NewMessage("stored", msgspec.Raw(text)))


# The server


class Ticker:
    """Measures how late the turns of an event loop come."""

    def __init__(self) -> None:
        self._longest = Pause(0.0, 0.0)

    async def run(self) -> None:
        """Measure for ever."""
        last, worked = perf_counter(), thread_time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now, working = perf_counter(), thread_time()
            self._longest = max(self._longest, Pause(now - last - TICK_SECONDS, working - worked))
            last, worked = now, working

    async def longest(self) -> Pause:
        """Return the longest pause since this was last asked."""
        await asyncio.sleep(SETTLING_SECONDS)
        longest, self._longest = self._longest, Pause(0.0, 0.0)
        return longest


async def _serve(pipe: Connection, number: int, log: Log) -> None:
    """What `milepost serve` does, and a ticker beside it."""
    with process.listen("127.0.0.1", 0) as listener:
        async with Milepost(log.url, schema=log.schema) as mp:
            app = create_app(mp, access="local", pages=Console)
            answering = asyncio.create_task(_answer(pipe, listener.getsockname()[1]))
            await process.serve(app, listener, grace=1.0, ready=lambda: pipe.send("ready"))
            await answering


async def _answer(pipe: Connection, port: int) -> None:
    ticker = Ticker()
    ticking = asyncio.create_task(ticker.run())
    with suppress(EOFError):
        while (order := await asyncio.to_thread(pipe.recv)) is not None:
            pipe.send(port if order == "port" else await ticker.longest())
    ticking.cancel()
    os.kill(os.getpid(), signal.SIGTERM)


# What is sent


def _cases() -> dict[str, Case]:
    appends = {f"append, {what}": _posting(APPEND, body) for what, body in _appends().items()}
    streams = {f"append, {what}": _posting(APPEND_MANY, body) for what, body in _streams().items()}
    settlements = {f"settle, {what}": _posting(SETTLE, body) for what, body in _settlements().items()}
    others = {f"other bodies, {what}": _posting(path, body) for what, (path, body) in _others().items()}
    forms = {f"forms, {what}": _posting(path, body, FORM) for what, (path, body) in _forms().items()}
    heads = {f"heads, {what}": _getting(path, headers) for what, (path, headers) in _heads().items()}
    pages = {f"pages, {what}": _getting(path) for what, path in _pages().items()}
    frames = {f"frames, {what}": _saying(texts) for what, texts in _frames().items()}
    at_once = {
        f"{AT_ONCE} at once, {what}": _at_once(appends[f"append, {what}"])
        for what in ("1.29 million tiny messages", "16 messages of empty arrays", "10,000 messages of 1.6 KB")
    }
    return {
        NOTHING: _nothing,
        **appends,
        **streams,
        **settlements,
        **others,
        **forms,
        **heads,
        **pages,
        **frames,
        **at_once,
    }


def _filled(unit: bytes, size: int, *, last: bytes = b"1") -> bytes:
    """An array of so many bytes: the same again and again."""
    return b"[" + unit * ((size - len(last) - 2) // len(unit)) + last + b"]"


def _keys(size: int, value: bytes) -> bytes:
    """An object of so many bytes, with as many different names as fit."""
    count = size // (len(value) + 10)
    return b"{" + b",".join(b'"a%05x":' % number + value for number in range(count)) + b"}"


def _message(data: bytes = b"1", **fields: bytes) -> bytes:
    more = b"".join(b',"' + name.encode() + b'":' + value for name, value in fields.items())
    return b'{"type":"a","data":' + data + more + b"}"


def _several(item: bytes, count: int) -> bytes:
    return b"[" + b",".join([item] * count) + b"]"


def _numbered(item: bytes, count: int) -> bytes:
    return b"[" + b",".join(item % number for number in range(count)) + b"]"


def _appends() -> dict[str, bytes]:
    properties = b"{" + b",".join(b'"a%d":%d' % (number, number) for number in range(255)) + b"}"
    kilobytes = _several(_message(b'"' + b"x" * 1600 + b'"'), 9_990)
    size = MESSAGE_BYTES - 20
    return {
        "1.29 million tiny messages": _several(b'{"type":"a"}', BODY_BYTES // 13),
        "10,000 tiny messages": _several(b'{"type":"a"}', 10_000),
        "10,000 messages of 1.6 KB": kilobytes,
        "10,000 messages in Cyrillic": _several(_message(b'"' + "ж".encode() * 800 + b'"'), 10_000),
        "10,000 messages with ids": _numbered(_message(id=b'"00000000-0000-4000-8000-%012d"'), 10_000),
        "messages with 255 properties": _several(_message(properties=properties), BODY_BYTES // 3000),
        "one message of empty arrays": _several(_message(_filled(b"[],", BODY_BYTES)), 1),
        "16 messages of empty arrays": _several(_message(_filled(b"[],", size)), 16),
        "16 messages with as many arrays as may be": _several(_message(_filled(b"[],", 299_900)), 16),
        "16 messages with as many objects as may be": _several(_message(_filled(b'{"a":{}},', 449_000)), 16),
        "16 messages of numbers": _several(_message(_filled(b"1.5,", size)), 16),
        "16 messages of names": _several(_message(_keys(size, b"1")), 16),
        "16 messages of escapes": _several(_message(b'"' + b"\\n" * (size // 2 - 1) + b'"'), 16),
        "16 deep messages": _several(_message(b"[" * 450 + _filled(b"1,", size - 900) + b"]" * 450), 16),
        "metadata with as many arrays as may be": _several(
            _message(metadata=b'{"a":' + _filled(b"[],", 299_800) + b"}"), 16
        ),
        "metadata of names": _several(_message(metadata=_keys(size, b"1")), 16),
        "metadata of nothing": _several(_message(metadata=b'{"a":' + _filled(b"null,", size - 10) + b"}"), 16),
        "properties of names": _several(_message(properties=_keys(size, b"1")), 16),
        "arrays that do not end": b"[" * BODY_BYTES,
        "chains of arrays": _several(_message(_filled(b"[" * 450 + b"]" * 450 + b",", size)), 16),
        "a field that nobody knows": b'[{"typ":' + _filled(b"[],", 15 * MIB) + b"}]",
        "a name of 16 MiB that nobody knows": b'{"' + b"x" * (BODY_BYTES - 10) + b'":1}',
        "no JSON at its end": kilobytes[:-1],
        "no UTF-8 at its end": kilobytes[:-3] + b'\xff"}]',
        "spaces": b" " * (BODY_BYTES - 20) + b'{"type":"a"}',
    }


def _streams() -> dict[str, bytes]:
    one = b'{"stream":"a-%d","messages":[{"type":"a"}]}'
    many = _several(b'{"type":"a"}', BODY_BYTES // 27)
    return {
        "10,000 streams": _numbered(one, 10_000),
        "as many streams as fit": _numbered(one, BODY_BYTES // 52),
        "streams without messages": _several(b'{"stream":"a","messages":[]}', BODY_BYTES // 29),
        "two streams of tiny messages": _numbered(b'{"stream":"a-%d","messages":' + many + b"}", 2),
    }


def _settlements() -> dict[str, bytes]:
    token = b'"3-%d-0cc175b9c0f1b6a831c399e269772661"'
    failed = b":" + b'{"reason":"no","error":"' + b"x" * 1500 + b'"}'
    failures = b",".join(token % number + failed for number in range(10_000))
    return {
        "10,000 tokens": b'{"ack":' + _numbered(token, 10_000) + b"}",
        "10,000 with errors": b'{"retry":{' + failures + b"}}",
        "tokens as many as fit": b'{"ack":' + _numbered(token, BODY_BYTES // 48) + b"}",
        "one token again and again": b'{"ack":' + _filled(token % 1 + b",", BODY_BYTES, last=token % 1) + b"}",
        "empty texts": b'{"ack":' + _filled(b'"",', BODY_BYTES, last=b'""') + b"}",
        "names": b'{"retry":' + _keys(BODY_BYTES - 20, b'""') + b"}",
        "empty arrays": b'{"ack":' + _filled(b"[],", BODY_BYTES) + b"}",
    }


def _others() -> dict[str, tuple[str, bytes]]:
    size = 2 * MIB - 200
    conditions = b"(a + 1) * 2 > 1 && " * 60 + b"a == 1"
    return {
        "categories": (
            "/v1/subscriptions",
            b'{"name":"a","category":' + _filled(b'"a",', size, last=b'"a"') + b"}",
        ),
        "states": (DECIDE, b'{"all":true,"state":' + _filled(b'"parked",', size, last=b'"parked"') + b"}"),
        "positions": (DECIDE, b'{"positions":' + _filled(b"1,", size) + b"}"),
        "properties": ("/v1/filter/evaluate", b'{"where":"a == 1","properties":' + _keys(size, b"1") + b"}"),
        "a filter": ("/v1/filter/explain", b'{"where":"' + conditions + b'","properties":{"a":1}}'),
        "a long filter": ("/v1/filter/check", b'{"where":"' + b"a" * size + b'"}'),
        "a field that nobody knows": (SETTLE, b'{"ak":' + _filled(b"[],", 250_000) + b"}"),
        "fields that nobody knows": (SETTLE, b'{"retry":' + _keys(250_000, b'{"reason":"","a":1}') + b"}"),
        "empty arrays": ("/v1/subscriptions", _filled(b"[],", size)),
    }


def _forms() -> dict[str, tuple[str, bytes]]:
    csrf = b"csrf=" + quote(csrf_token(VISITOR), safe="").encode() + b"&"
    path, given = "/console/log/append", csrf + b"stream=a-1&type=a&data="
    return {
        "of a stranger": ("/console/login", csrf + b"a=%41&" * 1300),
        "percent signs": (path, given + b"%31" * (MIB - 100)),
        "as many fields as may be": (path, csrf + b"a=1&" * 19_990),
        "too many fields": (path, csrf + b"a&" * (3 * MIB // 2)),
        "empty arrays": (path, given + _filled(b"[],", 3 * MIB)),
        "as many arrays as may be": (path, given + _filled(b"[],", 299_000)),
        "no JSON": (path, given + _filled(b"1,", MESSAGE_BYTES)[:-1]),
    }


def _heads() -> dict[str, tuple[str, bytes]]:
    full = 32_000
    conditions = quote("(a + 1) * 2 > 1 && " * 60 + "a == 1")
    return {
        "types": ("/v1/messages?" + "&".join(f"types=t{number}" for number in range(full // 12)), b""),
        "empty parameters": ("/v1/messages?" + "&" * full, b""),
        "unknown parameters": ("/v1/messages?" + "&".join(f"a{number}=" for number in range(full // 7)), b""),
        "states": (
            "/v1/subscriptions/default/bench/deliveries?" + "&".join(["state=parked"] * (full // 13)),
            b"",
        ),
        "percent signs": ("/v1/streams/" + "%2F" * (full // 3), b""),
        "percent signs of a parameter": ("/v1/messages?where=" + "%41" * (full // 3), b""),
        "slashes": ("/" * full, b""),
        "a filter": (f"/v1/messages?where={conditions}", b""),
        "headers": ("/v1/head", b"a:b\r\n" * 12_000),
        "a cookie": ("/console", b"cookie: " + b'a="\\' * 15_000 + b"\r\n"),
        "cookies": ("/console", b"cookie: " + b"a=;" * 20_000 + b"\r\n"),
        "a token": ("/v1/head", b"authorization: Bearer " + b"x" * 60_000 + b"\r\n"),
        "the id of an event": ("/v1/follow", b"last-event-id: 1-" + b"a.1-" * 15_000 + b"\r\n"),
        "a trace": ("/v1/head", b"traceparent: " + b" " * 30_000 + b"\r\ntracestate: " + b" ," * 15_000 + b"\r\n"),
    }


def _pages() -> dict[str, str]:
    return {
        "a deep message in the console": "/console/log/1?whole=1",
        "a wide message in the console": "/console/log/2?whole=1",
        "a page of messages": "/v1/messages?limit=1000",
    }


def _frames() -> dict[str, list[bytes]]:
    size = MIB - 1000
    hello = b'{"type":"hello"}'
    filter_ = b"(a + 1) * 2 > 1 && " * 6 + b"a == 1"
    several = (
        (b"ack", b"1"),
        (b"back", b"1"),
        (b"retry", b'{"id":1}'),
        (b"park", b'{"id":1}'),
        (b"skip", b'{"id":1}'),
    )
    settled = b"".join(b',"%s":' % word + _several(item, 10_000) for word, item in several)
    return {
        "1,000 routes": [b'{"type":"hello","routes":' + _several(b'{"where":"' + filter_ + b'"}', 1000) + b"}"],
        "more routes than may be": [b'{"type":"hello","routes":' + _several(b"{}", size // 3) + b"}"],
        "what is open": [b'{"type":"hello","resume":"x","open":' + _filled(b"1,", size) + b"}"],
        "50,000 settlements": [hello, b'{"type":"settle","ref":1' + settled + b"}"],
        "more settlements than may be": [hello, b'{"type":"settle","ref":1,"ack":' + _filled(b"1,", size) + b"}"],
        "empty arrays": [hello, b'{"type":"ping","a":' + _filled(b"[],", size) + b"}"],
        "fields that nobody knows": [hello, b'{"type":"settle","retry":' + _several(b'{"a":1}', size // 8) + b"}"],
        "many small ones": [hello, *[b'{"type":"ping","ref":1}'] * 20_000],
    }


# Sending


async def _nothing(port: int) -> None:
    await asyncio.sleep(NOTHING_SECONDS)


def _at_once(case: Case) -> Case:
    async def several(port: int) -> None:
        await asyncio.gather(*(case(port) for _ in range(AT_ONCE)))

    return several


def _posting(path: str, body: bytes, kind: str = JSON) -> Case:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {BROWSER_COOKIE}={VISITOR}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )

    async def post(port: int) -> None:
        await _ask(port, head.encode() + body)

    return post


def _getting(path: str, headers: bytes = b"") -> Case:
    async def get(port: int) -> None:
        await _ask(port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + headers + b"\r\n")

    return get


async def _ask(port: int, request: bytes) -> None:
    """Send a request, and read the first line of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    # What is refused need not be read, and its connection ends before all of it was sent.
    with suppress(ConnectionError):
        writer.write(request)
        await reader.readline()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


def _saying(texts: list[bytes]) -> Case:
    async def say(port: int) -> None:
        url = f"ws://127.0.0.1:{port}/v1/subscriptions/default/bench/consume"
        with suppress(WebSocketException):
            async with connect(url, proxy=None, compression=None, max_size=None) as talk, _read(talk):
                for text in texts:
                    await talk.send(text, text=True)
                await talk.send('{"type":"leave"}')
                await talk.wait_closed()

    return say


@asynccontextmanager
async def _read(talk: ClientConnection) -> AsyncIterator[None]:
    """Read whatever comes meanwhile."""

    async def read() -> None:
        with suppress(WebSocketException):
            async for _ in talk:
                pass

    reading = asyncio.create_task(read())
    try:
        yield
    finally:
        reading.cancel()
