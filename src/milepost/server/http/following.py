"""Following the log: server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Annotated, Literal

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import HeaderParameter, QueryParameter

from milepost.app import Milepost
from milepost.filter import compile_filter
from milepost.log.database import end
from milepost.log.feed import NOW
from milepost.log.reader import Page
from milepost.log.selection import Selection
from milepost.server.access.entrance import Entrance
from milepost.server.access.role import Role
from milepost.server.access.visitor import Visitor
from milepost.server.events import CHUNK, EventStream, comment, event
from milepost.server.http.operation import operation
from milepost.server.http.parameters import LAST, Category, Streams, Types, Where
from milepost.server.http.request import JsonRequest
from milepost.server.limits import Limits
from milepost.server.problems import (
    FILTER,
    GOING_AWAY,
    INVALID,
    TOO_LARGE,
    TOO_MANY,
    UNAUTHENTICATED,
    Refused,
    answer_to,
)
from milepost.server.stopping import Stopping
from milepost.server.wire.message import StreamMessage

BEAT = 15.0
"""Seconds of silence after which a comment is sent, so that nobody takes it for an end."""
LOOK = 3.0
"""Seconds between two looks at whether the token is still in force."""
RETRY = b"retry: 1000\n\n"
"""Milliseconds after which a client that was cut off comes back."""


class Followers:
    """How many follow."""

    def __init__(self, limits: Limits) -> None:
        self._most = limits.followers
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *error: object) -> None:
        self.count -= 1

    def check(self) -> None:
        """Refuses one more than there may be."""
        if self.count >= self._most:
            raise Refused(TOO_MANY, f"{self._most:,} follow already: come back later, or ask another server")


@get(
    "/follow",
    operation_id="follow",
    opt=operation(Role.READ, FILTER, TOO_LARGE, TOO_MANY, GOING_AWAY),
    media_type="text/event-stream",
)
async def follow(
    request: JsonRequest,
    mp: NamedDependency[Milepost],
    followers: NamedDependency[Followers],
    entrance: NamedDependency[Entrance],
    stopping: NamedDependency[Stopping],
    stream: Streams = None,
    category: Category = None,
    types: Types = None,
    where: Where = None,
    after: Annotated[
        int | Literal["now"],
        QueryParameter(
            description="Only higher positions, or `now` for what is not there yet. Defaults to 0.",
            schema_extra={"minimum": 0, "maximum": LAST},
        ),
    ] = 0,
    last_event_id: Annotated[
        str | None,
        HeaderParameter(
            name="Last-Event-ID", description="The position to go on after; it counts before `after`."
        ),
    ] = None,
) -> EventStream:
    """Messages in order, for ever, as server-sent events: those there now, then each new one once it is final.

    The `id` of an event is its position, its `data` a message. A client that was cut off goes on where it was by
    `Last-Event-ID`, as browsers do by themselves. Comments are sent while nothing happens. An event named
    `problem` says why the server ends it.
    """
    Selection.of(category=category, stream=stream, types=types)
    if where is not None:
        compile_filter(where)
    begin = _position(after if last_event_id is None else last_event_id)
    followers.check()
    pages = mp.follow_pages(
        stream, category=category, types=types, where=where, after=NOW if begin == "now" else begin
    )
    following = Following(pages, request.scope["state"]["visitor"], entrance, stopping)
    return EventStream(following.counted(followers))


def _position(given: int | str) -> int | Literal["now"]:
    """Where to begin; whoever comes back says it in a header."""
    if given == "now":
        return "now"
    text = str(given)
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > LAST:
        raise Refused(INVALID, "Last-Event-ID and after: a position is wanted", field="after")
    return int(text)


class Following:
    """What one follower is sent."""

    def __init__(
        self, pages: AsyncGenerator[Page, None], visitor: Visitor, entrance: Entrance, stopping: Stopping
    ) -> None:
        self._pages = pages
        self._visitor = visitor
        self._entrance = entrance
        self._stopping = stopping

    async def counted(self, followers: Followers) -> AsyncGenerator[bytes, None]:
        """The pieces of the answer, to the end."""
        with followers:
            try:
                async with aclosing(self._pieces()) as pieces:
                    async for piece in pieces:
                        yield piece
            except Exception as error:
                # The answer has begun: what is wrong can only be told within it.
                yield event(answer_to(error).body, name="problem")

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        yield RETRY
        stop = asyncio.create_task(self._stopping.wait())
        news = asyncio.create_task(_next(self._pages))
        silence = 0.0
        try:
            while not stop.done():
                await asyncio.wait([stop, news], timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
                if not await self._entrance.may_stay(self._visitor):
                    raise Refused(UNAUTHENTICATED, "The token was revoked: ask for another")
                if news.done():
                    silence = 0.0
                    for piece in chunks(news.result()):
                        yield piece
                    news = asyncio.create_task(_next(self._pages))
                elif (silence := silence + LOOK) >= BEAT:
                    silence = 0.0
                    yield comment("still here")
            raise Refused(GOING_AWAY, "The server is being stopped: come back, another may answer")
        finally:
            await end(stop)
            await end(news)
            await self._pages.aclose()


async def _next(pages: AsyncGenerator[Page, None]) -> Page:
    return await anext(pages)


def chunks(page: Page) -> Iterator[bytes]:
    """A page as events, in pieces of a bounded size."""
    encoder = msgspec.json.Encoder()
    piece = bytearray()
    for message in page:
        piece += event(encoder.encode(StreamMessage.of(message)), id=message.position)
        if len(piece) >= CHUNK:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


HANDLERS = (follow,)
