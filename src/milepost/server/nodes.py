"""The servers on one database: list them, and check that this one is reached at the address it advertises."""

import asyncio
import logging
import ssl
from contextlib import suppress
from typing import Final, cast
from urllib.parse import urlsplit

from litestar import get
from litestar.di import NamedDependency

from milepost.app import Milepost
from milepost.names import is_loopback_url
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeRule
from milepost.server.http.asgi import Scope
from milepost.server.http.handlers import operation
from milepost.server.http.json_body import JsonRequest
from milepost.server.http.origin import is_local_request
from milepost.wire.subscriptions import Nodes

NODE_HEADER: Final = "milepost-node"
"""The header with which `/healthz` tells which server it is."""
SELF_CHECK_ATTEMPTS: Final = 5
"""How often in a row: whoever shares requests out among servers gives some to another."""
SELF_CHECK_TIMEOUT_SECONDS: Final = 5.0
"""Seconds for an answer."""
SELF_CHECK_PAUSE_SECONDS: Final = (1.0, 4.0)
"""Seconds before it is tried again: what stands before the server may not know yet that it is there."""

logger = logging.getLogger("milepost.server")


async def warn_unless_reached(address: str, id: str) -> None:
    """Warns, once, unless this very server answers at its address."""
    for pause in (0.0, *SELF_CHECK_PAUSE_SECONDS):
        await asyncio.sleep(pause)
        problem = await _self_check_problem(address, id)
        if problem is None:
            return
    logger.warning(
        "%s, where clients of other servers are sent to reach this one, %s: they would wait in vain. "
        "Give it an address of its own with --advertise",
        address,
        problem,
    )


async def _self_check_problem(address: str, id: str) -> str | None:
    for _ in range(SELF_CHECK_ATTEMPTS):
        try:
            async with asyncio.timeout(SELF_CHECK_TIMEOUT_SECONDS):
                answer = await _healthz_head(address)
        except (OSError, TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
            return f"does not answer ({str(error) or type(error).__name__})"
        if (found := _answering_node(answer)) is None:
            return "is answered by something else"
        if found != id:
            return "is answered by another server"
    return None


async def _healthz_head(address: str) -> bytes:
    """The head of the answer, by a connection of its own. Whom a certificate is for is the clients' business."""
    parts = urlsplit(address)
    encrypted = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port or (443 if encrypted else 80), ssl=_unverified_tls() if encrypted else None
    )
    try:
        writer.write(f"GET {parts.path.rstrip('/')}/healthz HTTP/1.0\r\nhost: {parts.netloc}\r\n\r\n".encode())
        return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _unverified_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _answering_node(answer: bytes) -> str | None:
    """Which server it is that answered."""
    for line in answer.decode("latin-1").lower().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == NODE_HEADER:
            return value.strip()
    return None


@get("/nodes", operation_id="list_nodes", opt=operation(TokenRole.READ, scope_rule=ScopeRule.ANY_SCOPE))
async def list_nodes(mp: NamedDependency[Milepost], request: JsonRequest) -> Nodes:
    """The servers on this database that you can connect to, each with its address."""
    nodes, scope = await mp.nodes(), cast(Scope, request.scope)
    return Nodes(
        nodes if is_local_request(scope) else [node for node in nodes if not is_loopback_url(node.address)]
    )


HANDLERS = (list_nodes,)
