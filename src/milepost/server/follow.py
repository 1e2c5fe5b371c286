"""Follow the log over HTTP, as server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import HeaderParameter, QueryParameter

from milepost.app import Milepost
from milepost.concurrency import cancel_and_wait
from milepost.engine.query import query_of
from milepost.filter import compile_filter
from milepost.log.query import NOW, Now, Page, Selection
from milepost.log.resume import RESUME_TOKEN_PATTERN, ResumeFinder, ResumeMark, ResumeTrail, parse_resume_token
from milepost.names import MAX_POSITION_NUMBER
from milepost.server.access.authentication import Authenticator, Principal
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeGuard, ScopeRule
from milepost.server.http.handlers import Category, Streams, Types, Where, operation
from milepost.server.http.json_body import JsonRequest
from milepost.server.http.sse import SSE_CHUNK_BYTES, EventStream, sse_comment, sse_event, sse_id
from milepost.server.limits import Limits
from milepost.server.problems import (
    BEYOND_HEAD,
    FILTER,
    GOING_AWAY,
    INVALID,
    TOO_LARGE,
    TOO_MANY,
    RequestRefused,
    problem_response,
)
from milepost.server.shutdown import Shutdown
from milepost.wire.messages import StreamMessage

FOLLOW_COMMENT_SECONDS = 15.0
"""Seconds of silence after which a comment is sent, so that nobody takes it for an end."""
FOLLOW_CHECK_SECONDS = 3.0
"""Seconds between two looks at whether the token is still in force."""
PAGE_MESSAGES = 250
PAGE_BYTES = 256 * 2**10
"""The most that is read at once for a follower. It holds this page and the next until its client takes them."""
SSE_RETRY_LINE = b"retry: 1000\n\n"
"""Milliseconds after which a client that was cut off comes back."""


class FollowerLimit:
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
            raise RequestRefused(
                TOO_MANY, f"{self._most:,} follow already: come back later, or ask another server"
            )


@get(
    "/follow",
    operation_id="follow",
    opt=operation(
        TokenRole.READ, FILTER, BEYOND_HEAD, TOO_LARGE, TOO_MANY, GOING_AWAY, scope_rule=ScopeRule.ITSELF
    ),
    media_type="text/event-stream",
)
async def follow(
    request: JsonRequest,
    mp: NamedDependency[Milepost],
    followers: NamedDependency[FollowerLimit],
    scope_guard: NamedDependency[ScopeGuard],
    authenticator: NamedDependency[Authenticator],
    shutdown: NamedDependency[Shutdown],
    stream: Streams = None,
    category: Category = None,
    types: Types = None,
    where: Where = None,
    after: Annotated[
        str,
        QueryParameter(
            description="Only higher positions, or `now` for what is not there yet, or the `id` of an event. "
            "Defaults to 0.",
            schema_extra={"pattern": f"^(now|{RESUME_TOKEN_PATTERN})$"},
        ),
    ] = "0",
    last_event_id: Annotated[
        str | None,
        HeaderParameter(
            name="Last-Event-ID",
            description="The `id` of the event to go on after, or a position; it counts before `after`.",
        ),
    ] = None,
) -> EventStream:
    """Messages in order, for ever, as server-sent events: those there now, then each new one once it is final.

    The `data` of an event is a message. Its `id` begins with the position, and names a few messages before it too:
    a client that was cut off sends it back as `Last-Event-ID`, as browsers do by themselves, and goes on after the
    newest of them that is still in the log. So it misses nothing, also if the database lost its newest commits.
    A position alone is taken at its word; one beyond the head of the log is refused.

    Comments are sent while nothing happens. An event named `problem` says why the server ends it.
    With a token that is for some categories, the messages are those of these categories.
    """
    selection = Selection.of(category=scope_guard.scope.narrowed(category, stream), stream=stream, types=types)
    query = query_of(selection, None if where is None else compile_filter(where))
    query = replace(query, page=PAGE_MESSAGES, page_bytes=PAGE_BYTES)
    start = FollowStart(
        ResumeFinder(mp.log), parse_follow_start(after if last_event_id is None else last_event_id)
    )
    followers.check()
    pages = mp.log.feed.follow(query, start.find)
    following = FollowerSession(pages, start.trail, request.scope["state"]["principal"], authenticator, shutdown)
    return EventStream(following.counted(followers))


def parse_follow_start(given: str) -> int | Now | list[ResumeMark]:
    """Return where a follower wants to begin: a position, the marks of an event's id, or `NOW`."""
    if given == "now":
        return NOW
    try:
        return parse_resume_token(given, highest=MAX_POSITION_NUMBER)
    except ValueError:
        problem = "Last-Event-ID and after: a position or the id of an event is wanted"
        raise RequestRefused(INVALID, problem, field="after") from None


class FollowStart:
    """Where a follower begins."""

    def __init__(self, resuming: ResumeFinder, wanted: int | Now | list[ResumeMark]) -> None:
        self._resuming = resuming
        self._wanted = wanted
        self.trail = ResumeTrail()
        """What the follower has seen, once its start was found."""

    async def find(self) -> int | Now:
        """Return the position to begin after; refuse one that was never given to a message."""
        if isinstance(self._wanted, list):
            self.trail.extend(await self._resuming.surviving(self._wanted))
            return self.trail.newest
        if isinstance(self._wanted, Now):
            # Above the horizon, what is open now may still come below what is there.
            self.trail.extend(await self._resuming.marks_up_to(await self._resuming.horizon()))
            return self._wanted
        if self._wanted > (head := await self._resuming.drawn()):
            raise RequestRefused(
                BEYOND_HEAD,
                f"The log ends at position {head}, before {self._wanted}: it is another log, or it lost its "
                "newest messages. Give a lower position",
                field="after",
                head=head,
            )
        self.trail.extend(await self._resuming.marks_up_to(self._wanted))
        return self._wanted


class FollowerSession:
    """What one follower is sent."""

    def __init__(
        self,
        pages: AsyncGenerator[Page, None],
        trail: ResumeTrail,
        principal: Principal,
        authenticator: Authenticator,
        shutdown: Shutdown,
    ) -> None:
        self._pages = pages
        self._trail = trail
        self._visitor = principal
        self._authenticator = authenticator
        self._shutdown = shutdown

    async def counted(self, followers: FollowerLimit) -> AsyncGenerator[bytes, None]:
        """The pieces of the answer, to the end."""
        with followers:
            try:
                async with aclosing(self._pieces()) as pieces:
                    async for piece in pieces:
                        yield piece
            except Exception as error:
                # The answer has begun: what is wrong can only be told within it.
                yield sse_event(problem_response(error).body, name="problem")

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        yield SSE_RETRY_LINE
        stop = asyncio.create_task(self._shutdown.wait())
        news = asyncio.create_task(_next_page(self._pages))
        silence = 0.0
        try:
            while not stop.done():
                await asyncio.wait([stop, news], timeout=FOLLOW_CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                await self._authenticator.check_still_allowed(self._visitor)
                if news.done():
                    silence = 0.0
                    # The first page is empty: the start was found.
                    if not (page := news.result()):
                        yield sse_id(str(self._trail))
                    for piece in encode_events(page, self._trail):
                        # Who reads slowly may take minutes for a page.
                        await self._authenticator.check_still_allowed(self._visitor)
                        yield piece
                    news = asyncio.create_task(_next_page(self._pages))
                elif (silence := silence + FOLLOW_CHECK_SECONDS) >= FOLLOW_COMMENT_SECONDS:
                    silence = 0.0
                    yield sse_comment("still here")
            raise RequestRefused(GOING_AWAY, "The server is being stopped: come back, another may answer")
        finally:
            await cancel_and_wait(stop)
            await cancel_and_wait(news)
            await self._pages.aclose()


async def _next_page(pages: AsyncGenerator[Page, None]) -> Page:
    return await anext(pages)


def encode_events(page: Page, trail: ResumeTrail) -> Iterator[bytes]:
    """A page as events, in pieces of a bounded size."""
    encoder = msgspec.json.Encoder()
    piece = bytearray()
    for message in page:
        piece += sse_event(encoder.encode(StreamMessage.of(message)), id=trail.add_message(message))
        if len(piece) >= SSE_CHUNK_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


HANDLERS = (follow,)
