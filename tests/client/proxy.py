"""What stands between a client and a server, and breaks."""

import asyncio
import socket
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Passes bytes on, until it is told to cut, to swallow or to refuse."""

    def __init__(self, address: str) -> None:
        self.lead_to(address)
        self._server: asyncio.Server | None = None
        self._kept: socket.socket | None = None
        """Has the port while nobody listens there, so that nobody else gets it."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._swallows = asyncio.Event()
        self.port = 0
        self.connections = 0

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()
        if self._kept is not None:
            self._kept.close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lead_to(self, address: str) -> None:
        """Pass connections on to this address from now on."""
        parts = urlsplit(address)
        self._host, self._port = parts.hostname or "", parts.port or 0

    async def listen(self) -> None:
        """Takes connections, at the same port as before."""
        kept, self._kept = self._kept or self._bound(), None
        self.port = kept.getsockname()[1]
        self._server = await asyncio.start_server(self._connected, sock=kept)

    async def refuse(self) -> None:
        """Takes no connections, and cuts those that there are."""
        if self._server is not None:
            self._server.close()
            self._server, self._kept = None, self._bound()
        self.cut()

    def _bound(self) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", self.port))
        return bound

    def swallow(self) -> None:
        """What the server answers from now on gets lost, with the connection."""
        self._swallows.set()

    def pass_on(self) -> None:
        """As before."""
        self._swallows.clear()

    def cut(self) -> None:
        """Cuts every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._pass(reader, far_writer, False), self._pass(far_reader, writer, True))
        finally:
            self._writers -= {writer, far_writer}
            for each in (writer, far_writer):
                each.transport.abort()
                with suppress(OSError):
                    await each.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        with suppress(OSError):
            while piece := await reader.read(65_536):
                if answers and self._swallows.is_set():
                    break
                writer.write(piece)
                await writer.drain()
        writer.transport.abort()
