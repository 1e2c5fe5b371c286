"""Messages for one answer: bounded in number, in bytes, and in the time it takes to find them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from milepost.log.message import Message
from milepost.log.reader import Page
from milepost.server.limits import PAGE_BYTES
from milepost.server.problems import TOOK_TOO_LONG, Refused


class Looked:
    """How far a read has looked that has found nothing yet."""

    def __init__(self) -> None:
        self.to: int | None = None
        """Where to go on; None: at its beginning."""

    def __call__(self, to: int) -> None:
        """So far."""
        self.to = to


async def gathered(
    pages: AsyncGenerator[Page, None], looked: Looked, *, limit: int, seconds: float
) -> tuple[list[Message[Any]], bool]:
    """The first messages of a read, and whether there may be more. The read has to go beyond the limit by one."""
    found: list[Message[Any]] = []
    try:
        async with asyncio.timeout(seconds) as deadline, aclosing(pages):
            more = await _gather(pages, found, limit)
    except TimeoutError:
        if not deadline.expired():
            raise
        if not found:
            raise Refused(
                TOOK_TOO_LONG,
                f"Nothing that matches was found in {seconds:g} seconds: narrow it by category, stream or since, "
                "or go on at next",
                next=looked.to,
            ) from None
        return found, True
    return found, more


async def _gather(pages: AsyncGenerator[Page, None], found: list[Message[Any]], limit: int) -> bool:
    size = 0
    async for page in pages:
        for message in page:
            if len(found) == limit or (found and size + message.size > PAGE_BYTES):
                return True
            found.append(message)
            size += message.size
    return False
