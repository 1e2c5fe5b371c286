"""Servers that do not behave."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from websockets.asyncio.server import ServerConnection, serve

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    """A server that answers everything like this; its address."""

    tasks: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                await answer(writer)
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(converse(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)


def http(status: str, body: bytes, *headers: str) -> Answer:
    """An answer of one piece."""
    head = "".join(f"{header}\r\n" for header in (f"content-length: {len(body)}", *headers))

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body)
        await writer.drain()

    return answer


async def endless(writer: asyncio.StreamWriter) -> None:
    """An answer that does not end."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x" * 100_000)
        await writer.drain()


@asynccontextmanager
async def talking(talk: Callable[[ServerConnection], Awaitable[None]]) -> AsyncIterator[str]:
    """A server whose WebSockets say this; its address."""

    async def handler(connection: ServerConnection) -> None:
        with suppress(Exception):
            await connection.recv()
            await talk(connection)

    async with serve(handler, "127.0.0.1", 0, max_size=None) as server:
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
