"""A WebSocket to a node, as frames."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from milepost.client.frames import BadFrame, Received, received
from milepost.client.node import Node
from milepost.client.problems import error_of
from milepost.client.requests import Unanswered, certificate_problem, words_of
from milepost.errors import MilepostError

OPENING: Final = 5.0
"""Seconds in which a node has to take a connection."""
SILENCE: Final = 10.0
"""Seconds after which a node is asked whether it is still there, and again within which it has to answer."""
CLOSING: Final = 2.0
"""Seconds for a good-bye."""
SUBPROTOCOL: Final = Subprotocol("milepost.v1")

# It would write the token down.
_silent = logging.Logger("milepost.client.websocket", logging.INFO)
_silent.addHandler(logging.NullHandler())


class Socket:
    """Sends and receives frames; `Unanswered` where the connection is over."""

    def __init__(self, connection: ClientConnection, node: Node) -> None:
        self._connection = connection
        self.node = node

    async def send(self, frame: Mapping[str, Any]) -> None:
        """Sends a frame; returns when there is room for the next."""
        try:
            await self._connection.send(msgspec.json.encode(frame).decode())
        except (WebSocketException, OSError) as error:
            raise _cut(self.node, error) from error

    async def wait_closed(self) -> None:
        """Waits until the server has closed the connection."""
        await self._connection.wait_closed()

    async def receive(self) -> Received:
        """The next frame."""
        while True:
            try:
                text = await self._connection.recv(decode=False)
            except (WebSocketException, OSError) as error:
                raise _cut(self.node, error) from error
            try:
                frame = received(text)
            except BadFrame as error:
                raise Unanswered(f"{self.node}: {error}", sent=True) from error
            if frame is not None:
                return frame


class _Connect(connect):
    """Goes where it was told and nowhere else: a redirect could be to anybody."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


@asynccontextmanager
async def opened(
    node: Node, path: str, *, headers: Mapping[str, str], tls: ssl.SSLContext, largest: int
) -> AsyncIterator[Socket]:
    """A WebSocket within this block. Who is refused gets the error that the node tells."""
    connecting = _Connect(
        node.websocket(path),
        subprotocols=[SUBPROTOCOL],
        additional_headers=dict(headers),
        ssl=tls if node.is_secure else None,
        compression=None,
        open_timeout=OPENING,
        close_timeout=CLOSING,
        ping_interval=SILENCE,
        ping_timeout=SILENCE,
        max_size=largest,
        max_queue=4,
        logger=_silent,
    )
    try:
        connection = await connecting
    except InvalidStatus as error:
        raise error_of(bytes(error.response.body or b""), error.response.status_code, node) from error
    except (WebSocketException, OSError, TimeoutError, EOFError, asyncio.IncompleteReadError) as error:
        raise _unreached(node, error) from error
    try:
        yield Socket(connection, node)
    finally:
        await asyncio.shield(connection.close())


def _unreached(node: Node, error: BaseException) -> MilepostError:
    if (problem := certificate_problem(error)) is not None:
        return MilepostError(
            f"{node}: its certificate is not trusted ({problem}): give the file of its authority, ca=…"
        )
    return Unanswered(f"{node} cannot be reached: {words_of(error)}", sent=False)


def _cut(node: Node, error: BaseException) -> Unanswered:
    return Unanswered(f"the connection to {node} was cut: {str(error) or type(error).__name__}", sent=True)
