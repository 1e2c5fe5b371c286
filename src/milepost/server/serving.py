"""Runs the server until a signal: then nothing new begins, and what is open has a while to end."""

import asyncio
import logging
import math
import socket
import ssl
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn

from milepost.server.app import Server
from milepost.server.protocol import BoundedProtocol

BACKLOG = 2048
"""Connections that wait to be accepted."""
KEEP_ALIVE = 75
"""Seconds for which a connection without a request is kept."""


@dataclass(frozen=True)
class Certificate:
    """What TLS needs: the files of a certificate, with its chain, and of its key."""

    certificate: str
    key: str

    def check(self) -> None:
        """Raises OSError or `ssl.SSLError` if they cannot be used."""
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address; port 0 is any that is free. OSError if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Where a socket does not say that it is TCP, asyncio lets small writes wait for each other, 40 ms each time.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


async def serve(app: Server, listener: socket.socket, *, grace: float, tls: Certificate | None = None) -> None:
    """Serves on a socket until SIGINT or SIGTERM; a second signal does not wait for `grace` seconds."""
    # It would repeat with a traceback what the application has logged already.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    served: Any = app
    config = uvicorn.Config(
        served,
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # Nobody else says where a request comes from.
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(grace),
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
    )
    await _Process(config, app).serve(sockets=[listener])


class _Process(uvicorn.Server):
    """A server that tells its application when it is over, and then ends as if nobody had asked."""

    def __init__(self, config: uvicorn.Config, app: Server) -> None:
        super().__init__(config)
        self._app = app
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._app.stopping.begin)
