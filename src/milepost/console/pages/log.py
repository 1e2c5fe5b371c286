"""The log page: messages by stream, category, type and filter, the newest first, and the live tail."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from litestar import get
from litestar.di import NamedDependency

from milepost.app import Milepost
from milepost.concurrency import cancel_and_wait
from milepost.console.filter_check import CheckedExpression, FilterEvaluation
from milepost.console.guard import needs
from milepost.console.live import CHECKS_BEFORE_KEEP_ALIVE, RETRY_FIELD, STAY_CHECK_SECONDS
from milepost.console.request import ConsoleRequest, ConsoleResponse, NavItem, redirect_to
from milepost.console.search import LogCriteria, LogPage, LogSearch, find_position, position_parameter
from milepost.errors import FilterError, InvalidMessage
from milepost.filter import Filter
from milepost.log.message import Message
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeRule
from milepost.server.http.asgi import Receive, Scope, Send
from milepost.server.http.sse import EventStream, sse_comment, sse_event
from milepost.server.problems import problem_response

MAX_SAMPLE_MESSAGES = 100
"""Messages that a filter is tried on."""
SAMPLE_SECONDS = 0.5
"""Seconds after which the filter is tried on the messages found so far."""


@dataclass(frozen=True)
class FilterSample:
    """A filter tried on some messages."""

    count: int
    matches: int
    newest: Message[Any]
    explained: FilterEvaluation
    """The evaluation on the newest message."""
    missing: Sequence[str]
    """The properties that the filter needs and no message has."""


async def try_filter(mp: Milepost, choice: LogCriteria, filter: Filter) -> FilterSample | None:
    """Try a filter on the newest messages that fit the other criteria; None if there are none."""
    stretch = await LogSearch(mp, choice.unfiltered, most=MAX_SAMPLE_MESSAGES, seconds=SAMPLE_SECONDS).backwards()
    messages = stretch.messages
    if not messages:
        return None
    known = {name for message in messages for name in message.properties}
    return FilterSample(
        len(messages),
        sum(filter.matches(message.properties) for message in messages),
        messages[0],
        FilterEvaluation.of(filter, messages[0].properties),
        sorted(filter.names - known),
    )


TAIL_PAUSE_SECONDS = 0.5
"""Seconds between two batches of rows."""
MAX_BATCH_ROWS = 50
"""Rows of a batch: the newest of those that came."""
MAX_CATCH_UP_POSITIONS = 1000
"""Positions that a reader who comes back is shown at most."""
MAX_PAYLOAD_CHARACTERS = 500
"""Characters of a payload that are kept for a row."""


class TailRow(msgspec.Struct, frozen=True):
    """The part of a message that a row shows."""

    position: int
    stream: str
    version: int
    type: str
    time: Any
    raw: str

    @classmethod
    def of(cls, message: Message[Any]) -> "TailRow":
        """Return the row of a message."""
        return cls(
            message.position,
            message.stream,
            message.version,
            message.type,
            message.time,
            message.raw[:MAX_PAYLOAD_CHARACTERS],
        )


class LiveTail(ConsoleResponse):
    """An ASGI application that sends messages as they are appended."""

    def __init__(self, console: ConsoleRequest, choice: LogCriteria, after: int | None) -> None:
        self._console = console
        self._choice = choice
        self._after = after
        self._rows: deque[TailRow] = deque(maxlen=MAX_BATCH_ROWS)
        self._came = 0
        self._news = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until either side ends."""
        await EventStream(self._pieces())(scope, receive, send)

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        yield RETRY_FIELD
        stopping = asyncio.create_task(self._console.served.shutdown.wait())
        following = asyncio.create_task(self._follow())
        silence = 0
        try:
            while True:
                await self._wait(stopping, following)
                if stopping.done():
                    yield sse_event(b"{}", name="away")
                    return
                # Looked at last: who may no longer read is not sent what came meanwhile.
                if not await self._console.served.authenticator.is_still_allowed(self._console.principal):
                    break
                if following.done():
                    following.result()
                # The follower waits silently while the database is away, so the poller is asked.
                self._console.live_pages.poller.check()
                if self._came:
                    yield self._batch_event()
                    silence = 0
                    await asyncio.wait([stopping], timeout=TAIL_PAUSE_SECONDS)
                elif (silence := silence + 1) % CHECKS_BEFORE_KEEP_ALIVE == 0:
                    yield sse_comment("still here")
            yield sse_event(b"{}", name="ended")
        except Exception as error:
            yield sse_event(problem_response(error).body, name="problem")
        finally:
            await cancel_and_wait(stopping)
            await cancel_and_wait(following)

    async def _wait(self, stopping: asyncio.Task[None], following: asyncio.Task[None]) -> None:
        news = asyncio.create_task(self._news.wait())
        try:
            await asyncio.wait(
                [stopping, following, news], timeout=STAY_CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            await cancel_and_wait(news)

    async def _follow(self) -> None:
        """Take messages as fast as they come, however slow the reader is."""
        head = await self._console.mp.head()
        after = head if self._after is None else max(min(self._after, head), head - MAX_CATCH_UP_POSITIONS)
        choice = self._choice
        pages = self._console.mp.follow_pages(
            choice.stream or None,
            category=choice.categories,
            types=choice.type or None,
            where=choice.where or None,
            after=after,
        )
        async with aclosing(pages):
            async for page in pages:
                self._rows.extend(map(TailRow.of, page[-MAX_BATCH_ROWS:]))
                self._came += len(page)
                self._news.set()

    def _batch_event(self) -> bytes:
        """Return the event with the rows since the last one, newest first."""
        rows = list(reversed(self._rows))
        html = self._console.fragment("parts/rows.html", messages=rows).body.decode()
        batch = {"html": html, "left_out": self._came - len(rows), "position": rows[0].position}
        self._rows.clear()
        self._came = 0
        self._news.clear()
        return sse_event(msgspec.json.encode(batch), name="messages")


NAV_ITEM = NavItem("Log", "log")


@get("/log", opt=needs(TokenRole.READ, ScopeRule.ITSELF))
async def log(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Show the messages that fit the criteria."""
    query = console.query
    choice = LogCriteria.of(query, console.principal.scope)
    oldest_first = query.get("order") == "oldest"
    stretch, problem = None, None
    try:
        stretch = await _load_page(console, choice, oldest_first)
    except FilterError:
        problem = "The filter cannot be used."
    except InvalidMessage as error:
        problem = str(error)
    return console.page(
        "log.html",
        status=200 if stretch else 400,
        choice=choice,
        checked=CheckedExpression.of(choice.where),
        stretch=stretch,
        problem=problem,
        oldest_first=oldest_first,
        going_on=_goes_forwards(query),
        following=query.get("follow") == "1",
    )


async def _load_page(console: ConsoleRequest, choice: LogCriteria, oldest_first: bool) -> LogPage:
    """Search in the direction of paging; order the messages as asked for."""
    search = LogSearch(console.mp, choice)
    before, after = position_parameter(console.query, "before"), position_parameter(console.query, "after")
    forwards = _goes_forwards(console.query)
    stretch = await (search.forwards(after or 0) if forwards else search.backwards(before))
    if forwards != oldest_first:
        stretch.messages.reverse()
    return stretch


def _goes_forwards(query: Mapping[str, str]) -> bool:
    """Return True if paging goes towards the end of the log."""
    return "after" in query or (query.get("order") == "oldest" and "before" not in query)


@get("/log/check", opt=needs(TokenRole.READ, ScopeRule.ITSELF))
async def check(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Check a filter while it is typed."""
    choice = LogCriteria.of(console.query, console.principal.scope)
    checked = CheckedExpression.of(choice.where)
    sample, problem = None, None
    try:
        sample = None if checked.filter is None else await try_filter(console.mp, choice, checked.filter)
    except InvalidMessage as error:
        problem = str(error)
    narrowed = not choice.unfiltered.everything
    return console.fragment("parts/check.html", checked=checked, sample=sample, problem=problem, narrowed=narrowed)


@get("/log/tail", opt=needs(TokenRole.READ, ScopeRule.ITSELF))
async def tail(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Send messages as they come, as server-sent events."""
    choice = LogCriteria.of(console.query, console.principal.scope)
    # What is wrong is told before the answer begins.
    choice.query(backwards=False)
    return LiveTail(console, choice, position_parameter(console.query, "after"))


@get("/log/find", opt=needs(TokenRole.READ, ScopeRule.ITSELF))
async def find(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Redirect to a message by its position or its id."""
    try:
        position = await find_position(console.scope_guard, console.query.get("message", ""))
    except InvalidMessage as error:
        return console.redirect_with_flash(console.url("log"), str(error), "problem")
    if position is None:
        return console.redirect_with_flash(console.url("log"), "No message has this id.", "problem")
    return redirect_to(console.url("log", position))


HANDLERS = (log, check, tail, find)
