"""A TCP proxy before PostgreSQL that breaks connections on purpose."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from enum import Enum, auto
from types import TracebackType
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CHUNK = 65536
ENDS = (ConnectionError, asyncio.IncompleteReadError)


class Fate(Enum):
    """What becomes of something that a client sends."""

    PASSES = auto()
    IS_LOST = auto()
    """The server does not get it, and the connection is cut."""
    LOSES_ITS_ANSWER = auto()
    """The server gets it and answers, and the connection is cut before the answer reaches the client."""
    IS_HELD = auto()
    """The server does not get it until `let_go`."""


Rule = Callable[[bytes], Fate]


def everything_passes(frame: bytes) -> Fate:
    return Fate.PASSES


def is_commit(frame: bytes) -> bool:
    """Whether a client asks for the end of a transaction, in a query of its own."""
    return frame[:1] == b"Q" and frame[5:].rstrip(b"\0").strip().upper() == b"COMMIT"


class Link:
    """A client's connection, and the one to the server behind it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._client = client
        self._server = server
        self.loses_answer = False

    def cut(self) -> None:
        """Ends both without a word."""
        for writer in (self._client, self._server):
            writer.transport.abort()

    async def request(self, frame: bytes) -> None:
        self._server.write(frame)
        await self._server.drain()

    async def answer(self, data: bytes) -> None:
        self._client.write(data)
        await self._client.drain()


class Proxy:
    """Stands between clients that use its address and the server of another; `rule` says what goes through."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._go_on = asyncio.Event()
        self.rule: Rule = everything_passes
        self.lost = 0
        """How many requests or answers were lost by the rule."""
        self.held = asyncio.Event()
        """Set when something is held."""
        self.url = ""

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        plain = {"sslmode": "disable", "gssencmode": "disable"}
        self.url = make_conninfo(self._url, host="127.0.0.1", port=port, **plain)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cut(self, chance: random.Random | None = None) -> None:
        """Cuts all connections, or each with one half's probability."""
        for link in list(self._links):
            if chance is None or chance.random() < 0.5:
                link.cut()

    def let_go(self) -> None:
        """What was held goes on to the server."""
        self._go_on.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        with suppress(*ENDS, FileNotFoundError, asyncio.CancelledError):
            from_server, to_server = await self._connect()
            await self._join(reader, from_server, Link(writer, to_server))
        writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        given = conninfo_to_dict(self._url)
        host, port = str(given.get("host") or "localhost"), given.get("port") or 5432
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _join(self, client: asyncio.StreamReader, server: asyncio.StreamReader, link: Link) -> None:
        self._links.add(link)
        pumps = [
            asyncio.create_task(self._carry_requests(client, link)),
            asyncio.create_task(self._carry_answers(server, link)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._links.discard(link)
            link.cut()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _carry_requests(self, client: asyncio.StreamReader, link: Link) -> None:
        async for frame in frames(client):
            fate = self.rule(frame)
            if fate is Fate.IS_LOST:
                self.lost += 1
                return
            if fate is Fate.IS_HELD:
                self.held.set()
                await self._go_on.wait()
            link.loses_answer = fate is Fate.LOSES_ITS_ANSWER
            await link.request(frame)

    async def _carry_answers(self, server: asyncio.StreamReader, link: Link) -> None:
        while data := await server.read(CHUNK):
            if link.loses_answer:
                self.lost += 1
                return
            await link.answer(data)


async def frames(client: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """What a client sends, one message of the protocol at a time; the first has no type."""
    with suppress(*ENDS):
        kind = b""
        while True:
            length = await client.readexactly(4)
            yield kind + length + await client.readexactly(int.from_bytes(length, "big") - 4)
            kind = await client.readexactly(1)
