"""Whether a server is reached at the address that it tells others: a wrong one would strand their clients."""

import asyncio
import logging
import ssl
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

NODE: Final = "milepost-node"
"""The header with which `/healthz` tells which server it is."""
ASKED: Final = 5
"""How often in a row: whoever shares requests out among servers gives some to another."""
PATIENCE: Final = 5.0
"""Seconds for an answer."""
PAUSES: Final = (1.0, 4.0)
"""Seconds before it is tried again: what stands before the server may not know yet that it is there."""

logger = logging.getLogger("milepost.server")


async def check_reached(address: str, id: str) -> None:
    """Warns, once, unless this very server answers at its address."""
    for pause in (0.0, *PAUSES):
        await asyncio.sleep(pause)
        problem = await _problem(address, id)
        if problem is None:
            return
    logger.warning(
        "%s, where clients of other servers are sent to reach this one, %s: they would wait in vain. "
        "Give it an address of its own with --advertise",
        address,
        problem,
    )


async def _problem(address: str, id: str) -> str | None:
    for _ in range(ASKED):
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await _asked(address)
        except (OSError, TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
            return f"does not answer ({str(error) or type(error).__name__})"
        if (found := _node(answer)) is None:
            return "is answered by something else"
        if found != id:
            return "is answered by another server"
    return None


async def _asked(address: str) -> bytes:
    """The head of the answer, by a connection of its own. Whom a certificate is for is the clients' business."""
    parts = urlsplit(address)
    encrypted = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port or (443 if encrypted else 80), ssl=_context() if encrypted else None
    )
    try:
        writer.write(f"GET {parts.path.rstrip('/')}/healthz HTTP/1.0\r\nhost: {parts.netloc}\r\n\r\n".encode())
        return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _node(answer: bytes) -> str | None:
    """Which server it is that answered."""
    for line in answer.decode("latin-1").lower().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == NODE:
            return value.strip()
    return None
