"""The live tail: what is appended, as rows of a page; what comes faster than it can be read is counted."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from milepost.console.answer import Answer
from milepost.console.choice import Choice
from milepost.console.visit import Visit
from milepost.log.database import end
from milepost.log.message import Message
from milepost.server.asgi import Receive, Scope, Send
from milepost.server.events import EventStream, comment, event
from milepost.server.problems import answer_to

PACE = 0.5
"""Seconds between two lots of rows."""
MOST = 50
"""Rows of a lot; the newest of those that came."""
LOOK = 3.0
"""Seconds between two looks at whether the reader may stay."""
BEAT = 5
"""So many looks without a row, and a comment is sent."""
CATCH_UP = 1000
"""Positions that somebody who comes back is shown at most."""
KEPT = 500
"""Characters of a payload that are kept for a row."""
RETRY = b"retry: 2000\n\n"


class Row(msgspec.Struct, frozen=True):
    """As much of a message as a row shows."""

    position: int
    stream: str
    version: int
    type: str
    time: Any
    raw: str

    @classmethod
    def of(cls, message: Message[Any]) -> "Row":
        """The row of a message."""
        return cls(
            message.position, message.stream, message.version, message.type, message.time, message.raw[:KEPT]
        )


class Tail(Answer):
    """An ASGI application that sends what is appended."""

    def __init__(self, visit: Visit, choice: Choice, after: int | None) -> None:
        self._visit = visit
        self._choice = choice
        self._after = after
        self._rows: deque[Row] = deque(maxlen=MOST)
        self._came = 0
        self._news = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends until one of both sides ends it."""
        await EventStream(self._pieces())(scope, receive, send)

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        yield RETRY
        stopping = asyncio.create_task(self._visit.served.stopping.wait())
        following = asyncio.create_task(self._follow())
        silence = 0
        try:
            while True:
                await self._wait(stopping, following)
                if stopping.done():
                    yield event(b"{}", name="away")
                    return
                # Looked at last: who may no longer read is not sent what came meanwhile.
                if not await self._visit.served.entrance.may_stay(self._visit.visitor):
                    break
                if following.done():
                    following.result()
                # Who follows waits for a database that is away, and says nothing.
                self._visit.live_pages.watch.check()
                if self._came:
                    yield self._lot()
                    silence = 0
                    await asyncio.wait([stopping], timeout=PACE)
                elif (silence := silence + 1) % BEAT == 0:
                    yield comment("still here")
            yield event(b"{}", name="ended")
        except Exception as error:
            yield event(answer_to(error).body, name="problem")
        finally:
            await end(stopping)
            await end(following)

    async def _wait(self, stopping: asyncio.Task[None], following: asyncio.Task[None]) -> None:
        news = asyncio.create_task(self._news.wait())
        try:
            await asyncio.wait([stopping, following, news], timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(news)

    async def _follow(self) -> None:
        """Takes what is there as fast as it comes, whoever reads it how slowly."""
        head = await self._visit.mp.head()
        after = head if self._after is None else max(min(self._after, head), head - CATCH_UP)
        choice = self._choice
        pages = self._visit.mp.follow_pages(
            choice.stream or None,
            category=choice.categories,
            types=choice.type or None,
            where=choice.where or None,
            after=after,
        )
        async with aclosing(pages):
            async for page in pages:
                self._rows.extend(map(Row.of, page[-MOST:]))
                self._came += len(page)
                self._news.set()

    def _lot(self) -> bytes:
        """What came since the last one, the newest first."""
        rows = list(reversed(self._rows))
        html = self._visit.fragment("parts/rows.html", messages=rows).body.decode()
        lot = {"html": html, "left_out": self._came - len(rows), "position": rows[0].position}
        self._rows.clear()
        self._came = 0
        self._news.clear()
        return event(msgspec.json.encode(lot), name="messages")
