"""Run a server until a signal: listen, configure uvicorn, stop within the grace time."""

import asyncio
import gc
import logging
import math
import resource
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from milepost.server.app import Server
from milepost.server.http.protocols import BoundedHttpProtocol, BoundedTlsProtocol, BoundedWebSocketProtocol

BACKLOG_CONNECTIONS = 2048
"""Connections that wait to be accepted."""
KEEP_ALIVE_SECONDS = 75
"""Seconds for which a connection without a request is kept."""
PING_SECONDS = 15.0
"""Seconds between two signs of life that a consumer is asked for, and for its answer."""
MAX_OTHER_FILES = 256
"""How many files there may be besides connections: those of the database, and what is loaded."""
LAST_WORDS_SECONDS = 2.0
"""Seconds, after the grace time, for the last words to consumers."""

logger = logging.getLogger("milepost.server")


@dataclass(frozen=True)
class TlsCertificate:
    """What TLS needs: the files of a certificate, with its chain, and of its key."""

    certificate: str
    key: str

    def check(self) -> None:
        """Raises OSError or `ssl.SSLError` if they cannot be used."""
        self.context()

    def context(self) -> ssl.SSLContext:
        """Return what TLS begins with; raises like `check`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


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
        listener.listen(BACKLOG_CONNECTIONS)
    except BaseException:
        listener.close()
        raise
    return listener


def allow_open_files(connections: int) -> None:
    """Have the operating system allow so many connections, and what else the process opens, as far as it may.

    Where it allows fewer, whoever opens the most connections keeps all others out, the database among them.
    """
    wanted = connections + MAX_OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        logger.warning(
            "this process may open %s files, too few for %s connections: raise the limit (`ulimit -Hn`)",
            f"{allowed:,}",
            f"{connections:,}",
        )


async def serve(
    app: Server,
    listener: socket.socket,
    *,
    grace: float,
    tls: TlsCertificate | None = None,
    ready: Callable[[], None] | None = None,
) -> None:
    """Serves on a socket until SIGINT or SIGTERM; a second signal does not wait for `grace` seconds.

    `ready` is called when it serves, and a signal ends it in good order.
    """
    # What is loaded by now stays: to look through it again and again took a third of the time of a delivery.
    gc.collect()
    gc.freeze()
    allow_open_files(app.limits.connections)
    await ServerProcess(app, grace=grace, tls=tls, ready=ready).serve(sockets=[listener])


def _uvicorn_config(app: Server, grace: float, tls: TlsCertificate | None) -> uvicorn.Config:
    # It would repeat with a traceback what the application has logged already.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    served: Any = app
    http: Any = BoundedHttpProtocol if tls is None else partial(BoundedTlsProtocol, tls.context())
    return uvicorn.Config(
        served,
        http=http,
        ws=BoundedWebSocketProtocol,
        ws_max_size=app.limits.frame_bytes,
        # Deliveries are many small texts, and whoever reads them is mostly near: it costs more than it saves.
        ws_per_message_deflate=False,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PING_SECONDS,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # Nobody else says where a request comes from.
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(grace + LAST_WORDS_SECONDS),
    )


class ServerProcess(uvicorn.Server):
    """A server that tells its application when it is over, and then ends as if nobody had asked."""

    def __init__(
        self,
        app: Server,
        *,
        grace: float,
        tls: TlsCertificate | None = None,
        ready: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(_uvicorn_config(app, grace, tls))
        self._ready = ready
        self._app = app
        self._grace = grace
        self._loop = asyncio.get_running_loop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._ready is not None:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._app.shutdown.begin, self._grace)
