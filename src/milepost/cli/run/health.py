"""The HTTP server of `--health`: `/healthz`, `/readyz` and `/metrics`."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeAlias
from urllib.parse import urlsplit

import msgspec

from milepost.cli.exit_status import CommandError
from milepost.cli.run.reports import ProcessMetrics, ProcessReports
from milepost.contrib.gauges import LogGauges

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class ListenAddress:
    """The address of the health server. Without a host it is every interface, with port 0 any free port."""

    host: str | None
    port: int

    @classmethod
    def of(cls, text: str) -> "ListenAddress":
        """Parse `8481` for this machine alone, `:8481` for every interface, `[::1]:8481` for one."""
        host, colon, port = text.rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise _bad_address(text)
        if not colon:
            return cls(LOOPBACK, int(port))
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host or "[" in host:
            raise _bad_address(text)
        return cls(host or None, int(port))

    def __str__(self) -> str:
        host = self.host or "0.0.0.0"  # noqa: S104 - it is what was asked for
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def _bad_address(text: str) -> CommandError:
    return CommandError(
        f"--health {text}: an address is wanted: 8481 for this machine alone, :8481 for every interface, "
        "127.0.0.1:8481 or [::1]:8481 for one"
    )


MAX_CONNECTIONS = 64
"""Open connections. One more closes the oldest: a request is answered within milliseconds, so the oldest does not
ask, or does not take the answer."""
MAX_REQUEST_BYTES = 8192
"""Bytes; a larger one is refused."""
MAX_REQUEST_SECONDS = 5.0
"""Seconds from a connection to the end of its answer."""

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    503: "Service Unavailable",
}


HealthAnswer: TypeAlias = tuple[int, str, bytes]
"""A status, and a body with its type."""

JSON_TYPE = "application/json"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The form of metrics that every Prometheus reads."""


class HealthServer:
    """The server of `/healthz`, `/readyz` and `/metrics`, in a thread of its own: no handler can block it."""

    def __init__(self, address: ListenAddress, reports: ProcessReports) -> None:
        self._address = address
        self._questions: dict[str, Callable[[], HealthAnswer]] = {
            "/healthz": lambda: _verdict(reports.troubles()),
            "/readyz": lambda: _verdict(reports.obstacles(), reports.metrics.log()),
            "/metrics": lambda: _metrics(reports.metrics),
        }
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="milepost-health", daemon=True)
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> ListenAddress:
        """The address at which it listens."""
        if self._server is None:
            return self._address
        return ListenAddress(self._address.host, self._server.sockets[0].getsockname()[1])

    def __enter__(self) -> Self:
        listening = asyncio.start_server(
            self._serve, self._address.host, self._address.port, limit=MAX_REQUEST_BYTES
        )
        try:
            self._server = self._loop.run_until_complete(listening)
        except OSError as error:
            self._loop.close()
            raise CommandError(f"--health {self._address}: {error.strerror or error}") from error
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            longest = next(iter(self._open))
            del self._open[longest]
            longest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(MAX_REQUEST_SECONDS):
                writer.write(await self._answer(reader))
                await writer.drain()
        except (TimeoutError, ConnectionError):
            # Whatever a stranger sends or does not take: it is over.
            writer.transport.abort()
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(431)
        except asyncio.IncompleteReadError:
            return _response(400)
        match request.partition(b"\r\n")[0].split(b" "):
            case [method, target, version] if version.startswith(b"HTTP/1."):
                return self._answer_to(method, target.decode("latin-1"))
        return _response(400)

    def _answer_to(self, method: bytes, target: str) -> bytes:
        try:
            question = self._questions.get(urlsplit(target).path)
        except ValueError:
            return _response(400)
        if question is None:
            return _response(404)
        if method not in (b"GET", b"HEAD"):
            return _response(405, b"Allow: GET, HEAD\r\n")
        status, kind, body = question()
        return _response(status, kind=kind, body=body, with_body=method == b"GET")


def _verdict(reasons: list[str], log: LogGauges | None = None) -> HealthAnswer:
    verdict: dict[str, object] = {"status": "unavailable" if reasons else "ok", "reasons": reasons}
    if log is not None and log.held_lasting and not reasons:
        # Restarting the program, or leaving it out, would not help.
        verdict["horizon"] = {
            "held_positions": log.head - log.horizon,
            "held_seconds": round(log.held_for, 3),
            "held_by": log.held_lasting,
        }
    body = msgspec.json.encode(verdict) + b"\n"
    return 503 if reasons else 200, JSON_TYPE, body


def _metrics(metrics: ProcessMetrics) -> HealthAnswer:
    try:
        return 200, METRICS_TYPE, metrics.text()
    except ImportError as error:
        return 501, JSON_TYPE, _verdict([str(error)])[2]


def _response(
    status: int, headers: bytes = b"", *, kind: str = JSON_TYPE, body: bytes = b"", with_body: bool = True
) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n"
    )
    return head.encode() + headers + b"\r\n" + (body if with_body else b"")
